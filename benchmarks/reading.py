"""How a stream of record batches is measured, and what becomes of the rounds of a contender."""

from __future__ import annotations

import statistics
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.harness import Row, own_cpu_seconds, own_peak_rss_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    import pyarrow as pa

__all__ = ("Reading", "measure", "median_row")


@dataclass(frozen=True, slots=True)
class Reading:
    """What one run of a contender took."""

    records_per_second: float
    cpu_seconds_per_million: float
    peak_rss_bytes: int


async def measure(batches: AsyncGenerator[pa.RecordBatch, None], wanted: int) -> Reading:
    """Read until there were `wanted` records; the clock starts at the first batch.

    What it costs to load libraries and to connect is left out.
    """
    async with aclosing(batches):
        wanted -= (await anext(batches)).num_rows
        counted, started, cpu = 0, time.perf_counter(), own_cpu_seconds()
        while counted < wanted:
            counted += (await anext(batches)).num_rows
        seconds, cpu = time.perf_counter() - started, own_cpu_seconds() - cpu
    return Reading(counted / seconds, cpu / counted * 1e6, own_peak_rss_bytes())


def median_row(
    name: str,
    readings: Sequence[Reading],
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
    )
