from __future__ import annotations

import asyncio
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fanout.core.slot import Slot
from fanout.core.subscriber import Subscriber
from fanout.kinesis.aws.api import HashRange
from fanout.testing.virtual_time.loop import simulate
from tests.provers.simulation.errors import SimulationError
from tests.provers.simulation.job.job import SimJob
from tests.provers.simulation.kinesis.faults import KinesisFault, KinesisFaultKind
from tests.provers.simulation.kinesis.plan import KinesisPlan
from tests.provers.simulation.kinesis.service.stream_log import (
    RECORD_STRIDE,
    SourceLog,
    SourceRecord,
    SourceShard,
    SubRecord,
    number_of,
    shard_id_of,
)
from tests.provers.simulation.moments.moments import KinesisSometimes
from tests.provers.simulation.moments.observers import Observers
from tests.provers.simulation.moments.observers.calls import after, around, before, timed
from tests.provers.simulation.run import run_kinesis_seed, run_plan
from tests.provers.simulation.service_clock import millis

if TYPE_CHECKING:
    from collections.abc import Iterator

EVERYTHING = HashRange(0, (1 << 128) - 1)


def shard(
    index: int,
    *arrivals: float,
    parents: tuple[str, ...] = (),
    opened: float = 0,
    closed: float = 0,
) -> SourceShard:
    return SourceShard(
        index,
        parents,
        EVERYTHING,
        millis(opened),
        millis(closed) if closed else None,
        tuple(
            SourceRecord(
                number_of(index, millis(at)) + RECORD_STRIDE,
                millis(at),
                "k",
                (SubRecord("k", b"data"),),
                "plain",
            )
            for at in arrivals
        ),
    )


STEADY = (shard(0, *range(5, 600, 10)),)
MERGED = (
    shard(0, *range(5, 300, 10), closed=300),
    shard(1, closed=300),
    shard(2, *range(305, 600, 10), parents=(shard_id_of(0), shard_id_of(1)), opened=300),
)


def met(
    monkeypatch: pytest.MonkeyPatch,
    shards: tuple[SourceShard, ...],
    *faults: KinesisFault,
    **changes: object,
) -> dict[str, int]:
    """Return what a run meets that reads a record every ten seconds."""
    log = SourceLog({each.shard_id: each for each in shards})
    monkeypatch.setattr(KinesisPlan, "log", lambda _: log)
    plan: dict[str, object] = {
        "seed": 0,
        "schedule": "fifo",
        "mode": "efo",
        "start": "TRIM_HORIZON",
        "shards": 1,
        "records": 1,
        "reshards": 0,
        "large": False,
        "seconds": 600.0,
        "heartbeat": 5.0,
        "reading": "iterate",
        "checkpoint_every": 1,
        "broken": None,
        "faults": faults,
    }
    outcome = run_plan(KinesisPlan(**(plan | changes)))  # type: ignore[arg-type]
    return dict(outcome.moments)


CONSUMER_GONE = KinesisFault(kind=KinesisFaultKind.CONSUMER_GONE, at=342.3)
TAKEN_OVER = KinesisFault(kind=KinesisFaultKind.TAKEN_OVER, at=342.3)
CLOSE = KinesisFault(kind=KinesisFaultKind.CLOSE, at=342.3, seconds=1)
LOCKED = KinesisFault(kind=KinesisFaultKind.REFUSED, at=300, code="KMSDisabledException")
HANGS = KinesisFault(kind=KinesisFaultKind.CALL_HANGS, at=0, seconds=60)
RESET = KinesisFault(kind=KinesisFaultKind.RESET, at=300)
REFUSED = KinesisFault(
    kind=KinesisFaultKind.REFUSED, at=300, lasts=60, code="InternalFailureException"
)
LONG_REFUSED = replace(REFUSED, lasts=100)
TORN = KinesisFault(kind=KinesisFaultKind.STORE_TORN, at=300)
STORED_SLOWLY = KinesisFault(kind=KinesisFaultKind.STORE_SLOW, at=300, seconds=60)
SLOW = KinesisFault(kind=KinesisFaultKind.SLOW, at=300, seconds=60)
CRASH = KinesisFault(kind=KinesisFaultKind.CRASH, at=308, seconds=10)


def test_a_calm_run_meets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert met(monkeypatch, STEADY) == {}


@pytest.mark.parametrize(
    ("moment", "faults"),
    [
        (
            KinesisSometimes.CLOSED_BACKING_OFF,
            [RESET, REFUSED, CLOSE],
        ),
        (KinesisSometimes.CLOSED_FULL, [SLOW, CLOSE]),
        (
            KinesisSometimes.CONSUMER_GONE_BACKING_OFF,
            [RESET, REFUSED, CONSUMER_GONE],
        ),
        (KinesisSometimes.TAKEN_OVER_BACKING_OFF, [RESET, REFUSED, TAKEN_OVER]),
        (KinesisSometimes.TAKEN_OVER_FULL, [SLOW, replace(TAKEN_OVER, at=330)]),
        (KinesisSometimes.IDLE_BEHIND_BATCH, [SLOW]),
        (
            KinesisSometimes.PERSON_NOT_NEEDED,
            [RESET, LOCKED],
        ),
        (
            KinesisSometimes.LAST_ATTEMPT_SUCCEEDED,
            [KinesisFault(kind=KinesisFaultKind.DAMAGED, at=300)] * 2,
        ),
        (
            KinesisSometimes.STRUCK_BLOCKED,
            [KinesisFault(kind=KinesisFaultKind.BLOCKED, at=300, seconds=80)],
        ),
        (
            KinesisSometimes.ARRIVED_IN_LAST_TURN,
            [KinesisFault(kind=KinesisFaultKind.STALL, at=100, seconds=30 - 5e-10)],
        ),
        (
            KinesisSometimes.GAP_WITH_RECORDS,
            [RESET, REFUSED, *[KinesisFault(kind=KinesisFaultKind.TRIMMED, at=355)] * 5],
        ),
        (
            KinesisSometimes.CHECKPOINT_FAILED_ONCE,
            [KinesisFault(kind=KinesisFaultKind.STORE_FAILS, at=300)],
        ),
        (KinesisSometimes.RESTARTED_FROM_TORN, [TORN, CRASH, replace(CRASH, at=400)]),
        (KinesisSometimes.RESTART_REPLAYED, [TORN, CRASH]),
        (KinesisSometimes.DIED_STORING, [STORED_SLOWLY, CRASH]),
        (KinesisSometimes.DIED_UNACKNOWLEDGED, [SLOW, CRASH]),
        (
            KinesisSometimes.DIED_OPENING,
            [HANGS, replace(CRASH, at=30)],
        ),
    ],
)
def test_a_plan_that_brings_it_about_once_is_counted_once(
    monkeypatch: pytest.MonkeyPatch, moment: KinesisSometimes, faults: list[KinesisFault]
) -> None:
    assert met(monkeypatch, STEADY, *faults)[moment] == 1


@pytest.mark.parametrize(
    ("moment", "faults"),
    [
        (KinesisSometimes.CONSUMER_GONE_BACKING_OFF, [CONSUMER_GONE]),
        (KinesisSometimes.TAKEN_OVER_BACKING_OFF, [TAKEN_OVER]),
        (
            KinesisSometimes.TAKEN_OVER_FULL,
            [SLOW, replace(RESET, at=312), LONG_REFUSED, TAKEN_OVER],
        ),
        (
            KinesisSometimes.LAST_ATTEMPT_SUCCEEDED,
            [KinesisFault(kind=KinesisFaultKind.DAMAGED, at=300)],
        ),
        (KinesisSometimes.DIED_UNSTORED, [STORED_SLOWLY, CRASH]),
        (
            KinesisSometimes.STRUCK_BLOCKED,
            [KinesisFault(kind=KinesisFaultKind.STALL, at=100, seconds=100)],
        ),
    ],
)
def test_what_only_resembles_it_is_not_counted(
    monkeypatch: pytest.MonkeyPatch, moment: KinesisSometimes, faults: list[KinesisFault]
) -> None:
    assert moment not in met(monkeypatch, STEADY, *faults)


def test_a_consumer_that_is_gone_while_one_of_two_shards_backs_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faults = [RESET, REFUSED, CONSUMER_GONE]
    of_one = [replace(fault, at=fault.at - 200, shard=shard_id_of(0)) for fault in faults]

    assert KinesisSometimes.CONSUMER_GONE_BACKING_OFF not in met(monkeypatch, MERGED, *of_one)


def test_positions_that_are_acknowledged_and_not_stored_die_with_their_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = met(monkeypatch, STEADY, CRASH, checkpoint_every=2)

    assert times == {KinesisSometimes.DIED_UNSTORED: 1, KinesisSometimes.RESTART_REPLAYED: 1}


def test_a_process_that_has_stored_everything_leaves_nothing_unstored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert met(monkeypatch, STEADY, CRASH) == {}


def test_an_iterator_expires_while_the_job_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = KinesisFault(kind=KinesisFaultKind.SLOW, at=100, seconds=400)

    assert met(monkeypatch, STEADY, slow, mode="polling") == {KinesisSometimes.ITERATOR_EXPIRED: 1}


def test_the_ends_of_a_merge_and_the_listing_that_they_ask_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unlisted = KinesisFault(kind=KinesisFaultKind.CALL_CUT, at=300, lasts=5)

    assert met(monkeypatch, MERGED, unlisted) == {
        KinesisSometimes.EMPTY_SHARD_ENDED: 1,
        KinesisSometimes.BOTH_PARENTS_WAIT: 1,
        KinesisSometimes.CHILD_KNOWN_FROM_END: 1,
        KinesisSometimes.HURRIED_LISTING_FAILED: 1,
    }


def test_a_slow_job_lets_ends_wait_and_listings_overtake_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = met(monkeypatch, MERGED, KinesisFault(kind=KinesisFaultKind.SLOW, at=294, seconds=60))

    assert times == {
        KinesisSometimes.EMPTY_SHARD_ENDED: 1,
        KinesisSometimes.END_WAITED: 2,
        KinesisSometimes.CHILD_LISTED_EARLY: 1,
    }


def test_looking_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = [run_kinesis_seed(seed) for seed in range(5)]
    monkeypatch.setattr(Observers, "installed", lambda _: nullcontext())
    alone = [run_kinesis_seed(seed) for seed in range(5)]

    assert [outcome.digest for outcome in looked_at] == [outcome.digest for outcome in alone]


def test_a_run_that_fails_leaves_no_look_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(SimJob, "live", breaks)
    methods = [dict(vars(owner)) for owner in (Slot, Subscriber, SimJob)]

    with pytest.raises(SimulationError, match="ZeroDivisionError"):
        run_kinesis_seed(0)

    assert [dict(vars(owner)) for owner in (Slot, Subscriber, SimJob)] == methods


class Lamp:
    def switch(self, position: str) -> str:
        if position == "broken":
            raise ValueError(position)
        return f"is {position}"

    async def burn(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "burnt"


def test_a_look_is_told_what_a_call_is_given_and_what_it_returns() -> None:
    lamp, seen = Lamp(), list[tuple[str, str]]()

    @contextmanager
    def surround(_: Lamp, position: str) -> Iterator[None]:
        try:
            yield
        finally:
            seen.append(("over", position))

    with (
        around(Lamp, "switch", surround),
        after(Lamp, "switch", lambda result, _, __: seen.append(("after", result))),
        before(Lamp, "switch", lambda _, position: seen.append(("before", position))),
    ):
        assert lamp.switch("on") == "is on"
        with pytest.raises(ValueError, match="broken"):
            lamp.switch("broken")
    lamp.switch("off")

    assert seen == [
        ("before", "on"),
        ("over", "on"),
        ("after", "is on"),
        ("before", "broken"),
        ("over", "broken"),
    ]


def test_a_coroutine_method_is_looked_at_until_it_is_over() -> None:
    seen = list[object]()

    async def burn() -> None:
        with (
            timed(Lamp, "burn", seen.append),
            after(Lamp, "burn", lambda result, _, seconds: seen.append((result, seconds))),
        ):
            await Lamp().burn(0)
            await Lamp().burn(3)

    simulate(burn)

    assert seen == [("burnt", 0), 3, ("burnt", 3)]
