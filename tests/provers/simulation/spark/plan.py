"""The plan of a simulated query: its records, its runs, and the faults of each."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from random import Random
from typing import TYPE_CHECKING, TypeAlias, final

from tests.provers.simulation.randomness import happens
from tests.provers.simulation.spark.faults import (
    DiskRefusal,
    DriverKill,
    FileDamage,
    HandlerFails,
    LostAnswer,
    PowerLoss,
    SlowOperation,
)

if TYPE_CHECKING:
    from tests.provers.simulation.spark.faults import DriverFault

__all__ = (
    "DriverRun",
    "QueryPlan",
    "draw_object_race_plan",
    "draw_query_plan",
    "draw_race_plan",
    "on_objects",
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DriverRun:
    """One start of the query, in a process of its own.

    Args:
        faults: What happens to the process.
        damage: What happens to the checkpoint before it.
        stop_after: Seconds after which a user stops the query.
        bounded: Whether it ends by itself when it has caught up.
        overlap: Seconds after its start at which the next run begins, also while this one runs;
            None where the next one begins when this one has ended.
    """

    faults: tuple[DriverFault, ...] = ()
    damage: FileDamage | None = None
    stop_after: float = 8.0
    bounded: bool = False
    overlap: float | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPlan:
    """A run of a query; after its runs comes one without faults that reads what is left.

    Args:
        seed: Where the records come from, and what survives, and how long things take.
        remote: Whether the checkpoint is in a store, without a lock.
        objects: Whether the library reaches that store without the JVM.
        list_lag: For how many seconds a list of that store may miss a change.
        lost_answers: The share of puts and deletions in that store that get no answer.
        lending: Whether the source lends its records.
        splits: The splits at first.
        records: The places in each split's log.
        seconds: When the last record has arrived.
        max_records: The most records in a batch.
        max_bytes: The most bytes of records in a batch.
        min_records: The records for which a batch waits.
        handler_seconds: How long the handler takes.
        stalls: The share of operations that take a second or so; it is then that two drivers meet.
        runs: The starts of the query.
    """

    seed: int
    remote: bool = False
    objects: bool = False
    list_lag: float = 0.0
    lost_answers: float = 0.0
    lending: bool = False
    splits: int = 1
    records: int = 6
    seconds: float = 10.0
    max_records: int = 4
    max_bytes: int = 1 << 20
    min_records: int = 1
    handler_seconds: float = 0.1
    stalls: float = 0.0
    runs: tuple[DriverRun, ...] = ()

    def __str__(self) -> str:
        head = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self)[:-1])
        runs = "".join(f"\n        {run!r}," for run in self.runs)
        return f"Plan({head}, runs=({runs}))"


def _kill(random: Random) -> DriverFault:
    return DriverKill(_effect(random), linger=random.choice((0.0, 2.0, random.uniform(0.0, 2.0))))


def _power(random: Random) -> DriverFault:
    return PowerLoss(_effect(random), forgotten=random.choice((0, 1, 2, 3, 4)))


def _refuse(random: Random) -> DriverFault:
    code = random.choice((errno.EIO, errno.ENOSPC))
    return DiskRefusal(_effect(random) * 2, code, times=random.choice((1, 1, 3, 1000)))


def _slow(random: Random) -> DriverFault:
    return SlowOperation(
        _effect(random) * 2, seconds=random.choice((0.5, 5.0, random.uniform(0, 200)))
    )


def _lost(random: Random) -> DriverFault:
    return LostAnswer(_effect(random))


def _handler(random: Random) -> DriverFault:
    return HandlerFails(random.randint(1, 3), after=happens(random, 0.5))


def _damage(_: Random) -> None:
    """Leave the process alone: the checkpoint is damaged before it."""


def _race(_: Random) -> None:
    """Leave the process alone: another one begins beside it."""


_Kind: TypeAlias = Callable[[Random], "DriverFault | None"]
_KINDS: tuple[_Kind, ...] = (_kill, _power, _refuse, _slow, _lost, _handler, _damage, _race)


def _effect(random: Random) -> int:
    """Return the number of an operation; the first ones, which start a run, are as likely."""
    return int(2 ** random.uniform(0, 8))


def draw_query_plan(seed: int) -> QueryPlan:
    """Draw a run of a query: a few kinds of faults, at moments that are likely to matter."""
    random = Random(f"{seed}/faults")
    if happens(random, 0.2):
        return draw_race_plan(seed)
    objects = Random(f"{seed}/objects")
    plan = _draw_query(seed, random)
    waiting = Random(f"{seed}/min_records")
    plan = replace(plan, min_records=waiting.choice((1, 1, min(3, plan.max_records))))
    return on_objects(plan) if plan.remote and happens(objects, 0.5) else plan


def _draw_query(seed: int, random: Random) -> QueryPlan:
    remote = happens(random, 0.4)
    kinds = [kind for kind in _KINDS if happens(random, 0.5)] or [_kill]
    runs = tuple(_draw_run(random, kinds, remote=remote) for _ in range(random.randint(1, 5)))
    return QueryPlan(
        seed=seed,
        remote=remote,
        splits=random.choice((1, 1, 2, 3)),
        records=random.choice((3, 6, 6, 14)),
        seconds=random.choice((2.0, 10.0, 30.0, 150.0)),
        max_records=random.choice((1, 4, 4, 100)),
        max_bytes=random.choice((100, 400, 1 << 20)),
        handler_seconds=random.choice((0.0, 0.1, 3.0)),
        stalls=random.choice((0.05, 0.2)) if _race in kinds else 0.0,
        runs=runs,
    )


def _draw_run(random: Random, kinds: list[_Kind], *, remote: bool) -> DriverRun:
    faults = [random.choice(kinds)(random) for _ in range(random.choice((0, 1, 1, 2)))]
    possible = tuple(
        fault
        for fault in faults
        if fault is not None and (remote or not isinstance(fault, LostAnswer))
    )
    kind = random.choice(("segments", "batches", "batches", "origin"))
    keep = random.choice((None, 0.0, random.random()))
    damaged = _damage in kinds and happens(random, 0.3)
    overlap = random.choice((0.0, random.uniform(0, 3), random.uniform(0, 12), 61.0))
    return DriverRun(
        faults=possible,
        damage=FileDamage(kind, keep) if damaged else None,
        stop_after=random.choice((0.0, 2.0, 8.0, 8.0, 70.0)),
        bounded=happens(random, 0.2),
        overlap=overlap if _race in kinds and happens(random, 0.5) else None,
    )


def on_objects(plan: QueryPlan) -> QueryPlan:
    """Let a plan be lived through on object storage, where Spark's own files are durable too."""
    random = Random(f"{plan.seed}/objects")
    runs = (replace(run, faults=tuple(map(_unforgotten, run.faults))) for run in plan.runs)
    return replace(
        plan,
        runs=tuple(runs),
        remote=True,
        objects=True,
        list_lag=random.choice((0.0, 2.0, 10.0, 60.0)),
        lost_answers=random.choice((0.0, 0.02, 0.2)),
    )


def _unforgotten(fault: DriverFault) -> DriverFault:
    return replace(fault, forgotten=0) if isinstance(fault, PowerLoss) else fault


def draw_object_race_plan(seed: int) -> QueryPlan:
    """Draw a run in which drivers meet again and again on object storage."""
    return on_objects(draw_race_plan(seed))


def draw_race_plan(seed: int) -> QueryPlan:
    """Draw a run in which drivers meet, again and again, while records come all the time."""
    random = Random(f"{seed}/race")
    kinds = (_slow, _lost, _kill)
    runs = tuple(
        DriverRun(
            faults=(random.choice(kinds)(random),) if happens(random, 0.2) else (),
            stop_after=random.choice((3.0, 8.0)),
            overlap=random.uniform(0.0, random.choice((0.5, 4.0))),
        )
        for _ in range(random.randint(2, 5))
    )
    return QueryPlan(
        seed=seed,
        remote=happens(random, 0.8),
        records=40,
        seconds=12.0,
        max_records=100,
        handler_seconds=random.choice((0.0, 0.5)),
        stalls=random.choice((0.05, 0.1, 0.2)),
        runs=runs,
    )
