"""What every scenario needs: fair timing, peak memory, and one shape of report."""

from __future__ import annotations

import gc
import os
import platform
import resource
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ("Report", "Row", "describe_machine", "median_seconds", "peak_rss_bytes", "table")


def describe_machine() -> dict[str, Any]:
    """Describe what the figures were measured on."""
    return {
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in ("botocore", "msgspec", "pyarrow")},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Hold what one contender did with one size of records; rates are medians over the rounds."""

    name: str
    record_bytes: int
    records_per_second: float
    bytes_per_second: float
    peak_rss_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Hold a scenario's rows, and its ratios by `scenario/record_bytes/vs_peer`."""

    scenario: str
    rows: list[Row]
    ratios: dict[str, float]
    machine: dict[str, Any] = field(default_factory=describe_machine)

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return asdict(self)


def median_seconds(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Time each contender once per round, in turn, so that a slow moment of the machine hits all.

    Args:
        contenders: What to run, by name; each is run once more beforehand, untimed.
        rounds: How often each is timed.

    Returns:
        The median duration of each, in seconds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for contend in contenders.values():
        contend()
    for _ in range(rounds):
        for name, contend in contenders.items():
            gc.collect()
            start = time.perf_counter()
            contend()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(durations) for name, durations in seconds.items()}


def peak_rss_bytes(contend: Callable[[], object]) -> int:
    """Run a contender in a process of its own and return the most memory that process had.

    The process is forked off a small server, since a child that is forked off this process or
    executed by it would start with this process's peak as its own.

    Args:
        contend: What to run; importable by name, like its arguments.
    """
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("forkserver")) as process:
        return process.submit(_peak_rss_bytes, contend).result()


def _peak_rss_bytes(contend: Callable[[], object]) -> int:
    contend()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def table(report: Report) -> Table:
    """Lay a report out for people."""
    ratios = ", ".join(f"{name} {ratio:.1f}x" for name, ratio in report.ratios.items())
    laid_out = Table(title=report.scenario, caption=ratios)
    for heading in ("contender", "record", "records/s", "MB/s", "peak RSS"):
        laid_out.add_column(heading, justify="left" if heading == "contender" else "right")
    for row in report.rows:
        laid_out.add_row(
            row.name,
            f"{row.record_bytes} B",
            f"{row.records_per_second:,.0f}",
            f"{row.bytes_per_second / 1e6:,.0f}",
            f"{row.peak_rss_bytes / 2**20:,.0f} MiB",
        )
    return laid_out
