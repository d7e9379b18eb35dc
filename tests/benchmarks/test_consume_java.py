from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from benchmarks.consume_java import run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


# A first worker of KCL waits for up to half a minute.
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("one_process")
def test_each_contender_is_measured(jars: Callable[[str], list[Path]]) -> None:
    for name in ("kcl", "flink"):
        jars(name)  # skipped where they cannot be downloaded
    # More than one event for each shard, as the clock of a JVM's CPU ticks every 10 ms.
    report = run(rounds=1, records={100: 60_000})
    ratios = {f"consume/kinesis-java/100/vs_{name}" for name in ("kcl", "flink")}
    assert report.ratios.keys() == ratios
    assert [row.name for row in report.rows] == ["fanout", "KCL 3", "Flink"]
    for row in report.rows:
        assert row.cpu_seconds_per_million
        assert min(row.records_per_second, row.cpu_seconds_per_million, row.peak_rss_bytes) > 0
