from __future__ import annotations

import pytest

from benchmarks.consume_kinesis import run


@pytest.mark.usefixtures("one_process")
def test_each_contender_is_measured_and_the_ratio_of_a_size_is_the_worst_over_the_shards() -> None:
    report = run(rounds=1, sizes=[100], shards=[1, 2], events={100: 8})
    ratios = dict(report.ratios)
    worst = ratios.pop("consume/kinesis/100/vs_aioboto3")
    costs = {name: ratios.pop(name) for name in list(ratios) if name.endswith("metrics_vs_none")}
    assert ratios.keys() == {
        "consume/kinesis/100/1_shards/vs_aioboto3",
        "consume/kinesis/100/2_shards/vs_aioboto3",
    }
    assert worst == min(ratios.values())
    assert len(costs) == len(ratios)
    assert min(costs.values()) > 0
    assert [(row.name, row.shards) for row in report.rows] == [
        (name, shards)
        for shards in (1, 2)
        for name in ("fanout", "fanout with metrics", "aioboto3")
    ]
    for row in report.rows:
        assert row.cpu_seconds_per_million
        assert min(row.records_per_second, row.cpu_seconds_per_million, row.peak_rss_bytes) > 0
        assert (row.events_above_floor is None) == (row.name != "fanout")
