"""Landers in processes of their own, for a driver that only coordinates: what each of them costs.

There is no Spark: the driver takes each batch, writes its entry, and does nothing with its records.
So its CPU is that of discovery, assignment, the control channel and the ledger; the landers' is
that of sockets, decoding and Parquet. The peer reads, writes and keeps the ledger in one process.

On a machine with more cores than landers the rate grows with the landers. How long the death of one
stops its splits is measured in `benchmarks.lander_deaths`.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
import time
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks.consume_kinesis import CREDENTIALS, kinesis_source
from benchmarks.harness import Report, Row, own_cpu_seconds, own_peak_rss_bytes, run_apart
from benchmarks.kinesis_replay import Replay, replay_server
from benchmarks.lander_deaths import PEACE, measure_deaths
from benchmarks.turns import take_turns, tell
from fanout.core.cancellation import in_thread
from fanout.core.opening import open_lineage, open_stream
from fanout.landers.assignment import Assignment
from fanout.landers.control_handshake import SECRET_BYTES
from fanout.landers.control_server import ControlServer
from fanout.landers.coordinator import Coordinator
from fanout.landers.task import LanderTask
from fanout.landing.claims import ThisProcess, claim
from fanout.landing.log.entries import BatchEntry
from fanout.landing.log.ledger import BatchLedger
from fanout.landing.log.reading import BatchLimits
from fanout.landing.segments.segment_filler import SegmentFiller
from fanout.landing.segments.segments import Filled, LandedBatch, SegmentLog, publish
from fanout.landing.storage.local_storage import LocalStorage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from fanout.core.checkpoint import Checkpoint
    from fanout.kinesis import KinesisSource
    from fanout.landing.segments.segments import SegmentFile

__all__ = ("compare", "run", "stops")

RECORD_BYTES: Final = 1024
EVENTS: Final = 1000
FEW, MANY = 4, 1000
LANDERS: Final = (1, 2, 4)
# The rest fills no segment of some lander.
SHARE: Final = 0.8
MAX_RECORDS: Final = 100_000
MAX_BYTES: Final = 128 << 20
_QUERY: Final = "benchmark"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run has cost.

    Args:
        records_per_second: Records per second of wall time.
        driver: CPU seconds of the driver for a million records.
        landers: CPU seconds of all landers together for a million records.
        peak_rss_bytes: The most memory of the driver.
    """

    records_per_second: float
    driver: float
    landers: float
    peak_rss_bytes: int

    def __str__(self) -> str:
        cpu = self.driver + self.landers
        return f"{self.records_per_second:,.0f} records/s, {cpu:.2f} CPU s/million"


def run(rounds: int) -> Report:
    """Measure one process against 1, 2 and 4 landers, with few splits and with many, and deaths.

    Args:
        rounds: How often each is run, and a lander killed; figures are medians.
    """
    report = compare(rounds)
    report.seconds.update(stops(rounds))
    return report


def compare(
    rounds: int,
    landers: Sequence[int] = LANDERS,
    events: int = EVENTS,
    many: int = MANY,
    max_records: int = MAX_RECORDS,
) -> Report:
    """Measure what a record costs in one process and on landers.

    Args:
        rounds: How often each is run; figures are medians.
        landers: How many landers read the stream with few shards, 1 and 2 among them.
        events: The events of all shards together.
        many: The shards of the stream with many.
        max_records: The most records in a batch.
    """
    contenders = [(0, FEW), *((number, FEW) for number in landers), (2, many)]
    with ExitStack() as servers:
        replays = {shards: Replay(RECORD_BYTES, events // shards, shards) for shards in (FEW, many)}
        ports = {
            shards: servers.enter_context(replay_server(replay))
            for shards, replay in replays.items()
        }
        work = {
            f"{_name(number)}, {shards} shards": partial(
                _measure, number, ports[shards], int(replays[shards].records * SHARE), max_records
            )
            for number, shards in contenders
        }
        apart = {name: partial(run_apart, each) for name, each in work.items()}
        taken = take_turns("scale", apart, rounds)
    costs = dict(zip(contenders, taken.values(), strict=True))
    rows = [
        row for (number, shards), taken in costs.items() for row in _rows(number, shards, taken)
    ]
    two, alone = costs[2, FEW], costs[0, FEW]
    ratios = {
        "scale/driver_share": median(one.driver / one.landers for one in two),
        f"scale/{many}_splits/vs_{FEW}_splits": _total(two) / _total(costs[2, many]),
        "scale/1_lander/vs_in_process": _total(alone) / _total(costs[1, FEW]),
    }
    return Report(scenario="scale", rows=rows, ratios=ratios)


def stops(deaths: int, peace: float = PEACE) -> dict[str, float]:
    """Return how many seconds the death of a lander stops its splits.

    Args:
        deaths: How many landers are killed, one after the other.
        peace: Seconds before each.
    """
    tell(f"scale: {deaths} landers die, one after the other")
    seconds = run_apart(partial(_measure_deaths, deaths, peace))
    return {"scale/death/median": median(seconds), "scale/death/most": max(seconds)}


def _total(costs: list[Cost]) -> float:
    return median(cost.driver + cost.landers for cost in costs)


def _name(landers: int) -> str:
    return f"{landers} lander{'s' if landers > 1 else ''}" if landers else "in process"


def _rows(landers: int, shards: int, costs: list[Cost]) -> list[Row]:
    name = _name(landers)
    rate = median(cost.records_per_second for cost in costs)
    parts = {name: _total(costs)}
    if landers:
        parts["  of it the driver"] = median(cost.driver for cost in costs)
    return [
        Row(
            name=part,
            record_bytes=RECORD_BYTES,
            shards=shards,
            records_per_second=rate,
            bytes_per_second=rate * RECORD_BYTES,
            cpu_seconds_per_million=cpu,
            peak_rss_bytes=max(cost.peak_rss_bytes for cost in costs),
        )
        for part, cpu in parts.items()
    ]


def _measure(landers: int, port: int, wanted: int, max_records: int) -> Cost:
    _set_credentials()
    return asyncio.run(_read(landers, port, wanted, max_records))


def _measure_deaths(deaths: int, peace: float) -> list[float]:
    _set_credentials()
    return asyncio.run(measure_deaths(deaths, peace))


def _set_credentials() -> None:
    """Let landers find their credentials where they run."""
    os.environ["AWS_ACCESS_KEY_ID"] = CREDENTIALS["aws_access_key_id"]
    os.environ["AWS_SECRET_ACCESS_KEY"] = CREDENTIALS["aws_secret_access_key"]


async def _read(landers: int, port: int, wanted: int, max_records: int) -> Cost:
    """Take batches until there were enough records; the clock starts with the first."""
    async with AsyncExitStack() as resources:
        directory = resources.enter_context(tempfile.TemporaryDirectory())
        storage = LocalStorage(Path(directory))
        ownership = resources.enter_context(claim(storage, ThisProcess("benchmark")))
        ledger = BatchLedger(storage, ownership)
        if landers:
            opening = _on_landers(landers, port, storage, ownership.run, max_records)
        else:
            opening = _in_process(port, storage, ownership.run, max_records)
        reading = await resources.enter_async_context(opening)
        read, first, started, before = 0, 0, 0.0, (0.0, 0.0)
        for batch_id in count():
            segments, positions = await reading.take()
            ledger.write(BatchEntry(batch_id, _QUERY, segments, positions))
            ledger.prune()
            read += sum(segment.rows for segment in segments)
            if not batch_id:
                first, started = read, time.perf_counter()
                before = (own_cpu_seconds(), reading.cpu_seconds())
            elif read >= wanted:
                break
        seconds = time.perf_counter() - started
        driver, others = own_cpu_seconds() - before[0], reading.cpu_seconds() - before[1]
        millions = (read - first) / 1e6
        return Cost(
            (read - first) / seconds, driver / millions, others / millions, own_peak_rss_bytes()
        )


def _source(port: int) -> KinesisSource:
    return replace(kinesis_source(port), session=None, region=CREDENTIALS["region_name"])


@dataclass(frozen=True, slots=True)
class _Reading:
    """A stream that is being read.

    Args:
        take: Returns the segments of the next batch, and the positions after them.
        processes: What reads, besides this process.
    """

    take: Callable[[], Awaitable[tuple[tuple[SegmentFile, ...], Checkpoint]]]
    processes: tuple[int, ...] = ()

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of the other processes so far."""
        return sum(map(_cpu_seconds, self.processes))


def _cpu_seconds(process: int) -> float:
    """Return the CPU seconds of another process so far; see proc(5)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def _in_process(
    port: int, storage: LocalStorage, run: int, max_records: int
) -> AsyncIterator[_Reading]:
    source = _source(port)
    log = SegmentLog(
        storage.scratch(), run, source.schema, max_records=max_records, max_bytes=MAX_BYTES
    )
    async with open_stream(source) as stream:
        filler = SegmentFiller(stream, log, max_wait=1.0, bounded=False)

        async def take() -> tuple[tuple[SegmentFile, ...], Checkpoint]:
            filled = await filler.next(60.0)
            assert isinstance(filled, Filled)
            file = await in_thread(partial(publish, storage, filled.segment))
            return (file,), filled.positions

        async with asyncio.TaskGroup() as tasks:
            filling = tasks.create_task(filler.run())
            yield _Reading(take)
            filling.cancel()


@asynccontextmanager
async def _on_landers(
    landers: int, port: int, storage: LocalStorage, run: int, max_records: int
) -> AsyncIterator[_Reading]:
    source = _source(port)
    secret = secrets.token_bytes(SECRET_BYTES)
    async with open_lineage(source) as opened:
        coordinator = Coordinator(
            opened.connection,
            opened.progress,
            opened.lineage,
            Assignment(landers),
            lifecycle=opened.lifecycle,
        )

        async def take() -> tuple[tuple[SegmentFile, ...], Checkpoint]:
            batch = await coordinator.next(60.0)
            assert isinstance(batch, LandedBatch)
            return batch.segments, batch.positions

        async with (
            ControlServer("127.0.0.1", 0, secret, coordinator.serve) as server,
            asyncio.TaskGroup() as tasks,
        ):
            task = LanderTask(
                source=source,
                location=str(storage.root),
                storage_options=None,
                run=run,
                limits=BatchLimits(max_records // landers, MAX_BYTES // landers, 1.0),
                available_now=False,
                address=server.address,
                secret=secret,
            )
            processes = [
                get_context("spawn").Process(target=task, args=(number, 1))
                for number in range(1, landers + 1)
            ]
            for process in processes:
                process.start()
            coordinating = tasks.create_task(coordinator.run())
            yield _Reading(take, tuple(process.pid or 0 for process in processes))
            await coordinator.close()
            coordinating.cancel()
            for process in processes:
                await in_thread(process.join)
