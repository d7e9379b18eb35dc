"""What a shard costs that has no new records: memory, sockets, calls, and processor time.

The reader opens streams of few and of many shards on a server in another process, which sends each
shard a heartbeat every 5 seconds, as Kinesis does. Two numbers of
shards give a line: what the process costs, and what each further shard adds. That line is
extrapolated in docs/scaling.md.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import fanout
from benchmarks.consume_kinesis import kinesis_source, resident_bytes
from benchmarks.harness import Report, own_cpu_seconds, run_apart
from benchmarks.kinesis_replay import HEARTBEAT, Replay, replay_server
from benchmarks.turns import take_turns
from fanout.core.cancellation import in_thread
from fanout.core.statistics import SplitState

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ("run",)

SHARDS: Final = (100, 1000)
# Heartbeats of each shard while it is idle.
_BEATS: Final = 4
_RECORD_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class Cost:
    """What so many idle shards cost one process.

    Args:
        opening: CPU seconds until each shard had delivered.
        idle: CPU seconds in a second while all are idle.
        memory: Bytes more than before the stream was opened.
        sockets: Open sockets.
        checkpoint: Bytes of the stored positions.
    """

    opening: float
    idle: float
    memory: int
    sockets: int
    checkpoint: int

    def __str__(self) -> str:
        return (
            f"opened with {self.opening:.2f} CPU s, idle at {self.idle:.3f} of a core, "
            f"{self.memory / 2**20:,.0f} MiB, {self.sockets} sockets, "
            f"{self.checkpoint:,} bytes of positions"
        )


def run(rounds: int, shards: Sequence[int] = SHARDS) -> Report:
    """Measure each number of shards.

    Args:
        rounds: How often each is run; figures are medians.
        shards: How many shards the streams have; the first and the last one give the line.
    """
    report = Report(scenario="shards", rows=[], ratios={})
    taken: dict[int, list[Cost]] = {}
    for count in shards:
        with replay_server(Replay(_RECORD_BYTES, 0, count)) as port:
            work = partial(run_apart, partial(_cost, port, count))
            taken |= {
                count: take_turns("shards", {f"{count} shards": work}, rounds)[f"{count} shards"]
            }
    least, most = shards[0], shards[-1]
    for figure, unit in {
        "opening": 1,
        "idle": 1,
        "memory": 1024,
        "sockets": 1,
        "checkpoint": 1,
    }.items():
        low, high = (
            median(getattr(one, figure) for one in taken[count]) / unit for count in (least, most)
        )
        each = (high - low) / (most - least)
        report.costs[f"shards/{figure}/each"] = each
        report.costs[f"shards/{figure}/process"] = low - each * least
    return report


def _cost(port: int, shards: int) -> Cost:
    return asyncio.run(_measured(port, shards))


async def _measured(port: int, shards: int) -> Cost:
    loop = asyncio.get_running_loop()
    await in_thread(partial(import_module, "fanout.kinesis.opening"))  # libraries do not count
    before, started = resident_bytes(), own_cpu_seconds()
    async with fanout.open(kinesis_source(port)) as stream:
        while _read(stream) < shards:
            await stream.drain(max_records=1, max_bytes=1, max_wait=0.5)
        opening, idle_from, end = (
            own_cpu_seconds(),
            own_cpu_seconds(),
            loop.time() + _BEATS * HEARTBEAT,
        )
        while loop.time() < end:
            await stream.drain(max_records=1, max_bytes=1, max_wait=HEARTBEAT)
        idle = own_cpu_seconds() - idle_from
        return Cost(
            opening - started,
            idle / (loop.time() - end + _BEATS * HEARTBEAT),
            resident_bytes() - before,
            _sockets(),
            len(stream.positions),
        )


def _read(stream: fanout.FanOut) -> int:
    """Return how many shards have had an event."""
    return sum(one.state is SplitState.LIVE for one in stream.statistics().splits.values())


def _sockets() -> int:
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the listing itself
            found += str(each.readlink()).startswith("socket:")
    return found
