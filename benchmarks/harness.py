"""Measure contenders fairly, by time, CPU and memory, and report them in one shape."""

from __future__ import annotations

import gc
import os
import platform
import resource
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rich.table import Table

from benchmarks.turns import take_turns

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

__all__ = (
    "Counted",
    "Measurement",
    "Report",
    "Row",
    "describe_machine",
    "measure",
    "median_row",
    "median_seconds",
    "own_cpu_seconds",
    "own_peak_rss_bytes",
    "peak_rss_bytes",
    "run_apart",
    "table",
)

T = TypeVar("T")

_LIBRARIES = ("aiokafka", "botocore", "confluent-kafka", "msgspec", "obstore", "pyarrow", "pyspark")


def describe_machine() -> dict[str, Any]:
    """Describe the machine that the figures are measured on."""
    return {
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in _LIBRARIES},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The figures of one contender with one size of records; rates are medians over the rounds.

    Args:
        name: The contender.
        record_bytes: Bytes of data in a record.
        records_per_second: Records per second of wall time.
        bytes_per_second: Their data.
        peak_rss_bytes: The most memory that its process had.
        shards: Shards or partitions that were read at once; None where there is no stream.
        cpu_seconds_per_million: Seconds of CPU for a million records, of its process and of its
            JVM if it has one; None where it was not measured.
        events_above_floor: What memory a shard took beyond the least it must, in events; None
            where it was not measured.
        latency: The seconds within which 50, 95 and 99 % of the records arrived; None where that
            was not measured.
        rate: Records a second that were put; None where they were there before.
    """

    name: str
    record_bytes: int
    records_per_second: float
    bytes_per_second: float
    peak_rss_bytes: int
    shards: int | None = None
    cpu_seconds_per_million: float | None = None
    events_above_floor: float | None = None
    latency: tuple[float, float, float] | None = None
    rate: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The rows of a scenario, its ratios by `scenario/record_bytes/vs_peer`, times and costs."""

    scenario: str
    rows: list[Row]
    ratios: dict[str, float]
    seconds: dict[str, float] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=describe_machine)

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return asdict(self)


def median_seconds(
    what: str, contenders: Mapping[str, Callable[[], object]], rounds: int
) -> dict[str, float]:
    """Time each contender once per round, in turn.

    Args:
        what: What is timed.
        contenders: The contenders, by name; each is run once more beforehand, untimed.
        rounds: How often each is timed.

    Returns:
        The median duration of each, in seconds.
    """
    for contend in contenders.values():
        contend()
    timed = {name: partial(_seconds, contend) for name, contend in contenders.items()}
    seconds = take_turns(what, timed, rounds)
    return {name: statistics.median(durations) for name, durations in seconds.items()}


def _seconds(contend: Callable[[], object]) -> float:
    gc.collect()
    start = time.perf_counter()
    contend()
    return time.perf_counter() - start


def run_apart(work: Callable[[], T]) -> T:
    """Run work in a process of its own and return its result.

    The process is forked off a small server, since a child that is forked off this process or
    executed by it would start with this process's peak as its own.

    Args:
        work: What to run; importable by name, like its arguments.
    """
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("forkserver")) as process:
        return process.submit(work).result()


def peak_rss_bytes(contend: Callable[[], object]) -> int:
    """Run a contender in a process of its own and return the most memory that process had.

    Args:
        contend: What to run; importable by name, like its arguments.
    """
    return run_apart(partial(_peak_rss_bytes, contend))


def own_peak_rss_bytes() -> int:
    """Return the most memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def own_cpu_seconds() -> float:
    """Return the CPU seconds of this process so far, all its threads' and the kernel's for it."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def family_cpu_seconds() -> float:
    """Return the CPU seconds so far of this process and, on Linux, of those that it has started."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                ticks += int(fields[11]) + int(fields[12])
    return own_cpu_seconds() + ticks / os.sysconf("SC_CLK_TCK")


def _peak_rss_bytes(contend: Callable[[], object]) -> int:
    contend()
    return own_peak_rss_bytes()


def table(report: Report) -> Table:
    """Make a table of a report, without empty columns."""
    figures = [f"{name} {ratio:.1f}x" for name, ratio in report.ratios.items()]
    figures += [f"{name} {seconds:.2f} s" for name, seconds in report.seconds.items()]
    figures += [f"{name} {cost:,.4g}" for name, cost in report.costs.items()]
    laid_out = Table(title=report.scenario, caption=", ".join(figures))
    columns = {heading: cell for heading, cell in _COLUMNS.items() if any(map(cell, report.rows))}
    for heading in columns:
        laid_out.add_column(heading, justify="left" if heading == "contender" else "right")
    for row in report.rows:
        laid_out.add_row(*(cell(row) for cell in columns.values()))
    return laid_out


def _if_known(figure: float | None, form: str) -> str:
    return "" if figure is None else format(figure, form)


def _milliseconds(row: Row, percentile: int) -> str:
    return "" if row.latency is None else f"{row.latency[percentile] * 1000:,.1f} ms"


_COLUMNS: Mapping[str, Callable[[Row], str]] = {
    "contender": lambda row: row.name,
    "record": lambda row: f"{row.record_bytes} B",
    "shards": lambda row: _if_known(row.shards, "d"),
    "put/s": lambda row: _if_known(row.rate, ",d"),
    "records/s": lambda row: f"{row.records_per_second:,.0f}",
    "MB/s": lambda row: f"{row.bytes_per_second / 1e6:,.0f}",
    "CPU s/million": lambda row: _if_known(row.cpu_seconds_per_million, ".2f"),
    "peak RSS": lambda row: f"{row.peak_rss_bytes / 2**20:,.0f} MiB",
    "p50": lambda row: _milliseconds(row, 0),
    "p95": lambda row: _milliseconds(row, 1),
    "p99": lambda row: _milliseconds(row, 2),
    "events above floor": lambda row: _if_known(row.events_above_floor, ".1f"),
}


@dataclass(frozen=True, slots=True)
class Measurement:
    """The figures of one run of a contender."""

    records_per_second: float
    cpu_seconds_per_million: float
    peak_rss_bytes: int
    latency: tuple[float, float, float] | None = None

    def __str__(self) -> str:
        parts = [
            f"{self.records_per_second:,.0f} records/s",
            f"{self.cpu_seconds_per_million:.2f} CPU s/million",
        ]
        if self.latency is not None:
            parts += [f"p50 {self.latency[0] * 1000:,.1f} ms"]
        return ", ".join(parts)


class Counted(Protocol):
    """What holds records, such as a batch of them or a file."""

    @property
    def num_rows(self) -> int:
        """Its records."""


async def measure(batches: AsyncGenerator[Counted, None], wanted: int) -> Measurement:
    """Read until there were `wanted` records; the clock starts at the first batch.

    What it costs to load libraries and to connect is left out.
    """
    async with aclosing(batches):
        wanted -= (await anext(batches)).num_rows
        counted, started, cpu = 0, time.perf_counter(), family_cpu_seconds()
        while counted < wanted:
            counted += (await anext(batches)).num_rows
        seconds, cpu = time.perf_counter() - started, family_cpu_seconds() - cpu
    return Measurement(counted / seconds, cpu / counted * 1e6, own_peak_rss_bytes())


def median_row(
    name: str,
    readings: Sequence[Measurement],
    *,
    record_bytes: int,
    shards: int,
    events_above_floor: float | None = None,
) -> Row:
    """Return the row of a contender: the medians of its rounds, and its largest memory."""
    rate = statistics.median(reading.records_per_second for reading in readings)
    return Row(
        name=name,
        record_bytes=record_bytes,
        shards=shards,
        records_per_second=rate,
        bytes_per_second=rate * record_bytes,
        cpu_seconds_per_million=statistics.median(r.cpu_seconds_per_million for r in readings),
        peak_rss_bytes=max(reading.peak_rss_bytes for reading in readings),
        events_above_floor=events_above_floor,
        latency=_medians(readings),
    )


def _medians(readings: Sequence[Measurement]) -> tuple[float, float, float] | None:
    latencies = [reading.latency for reading in readings if reading.latency is not None]
    if not latencies:
        return None
    p50, p95, p99 = (statistics.median(column) for column in zip(*latencies, strict=True))
    return p50, p95, p99
