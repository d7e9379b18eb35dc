from __future__ import annotations

from benchmarks.consume import run


def test_the_ratio_of_a_size_is_the_worst_over_the_numbers_of_shards() -> None:
    report = run(rounds=1, sizes=[100], shards=[1, 2], events={100: 8})
    ratios = dict(report.ratios)
    worst = ratios.pop("consume/kinesis/100/vs_aioboto3")
    assert ratios.keys() == {
        "consume/kinesis/100/1_shards/vs_aioboto3",
        "consume/kinesis/100/2_shards/vs_aioboto3",
    }
    assert worst == min(ratios.values())


def test_each_contender_is_measured_with_each_number_of_shards() -> None:
    report = run(rounds=1, sizes=[1024], shards=[2], events={1024: 8})
    assert [(row.name, row.shards) for row in report.rows] == [("fanout", 2), ("aioboto3", 2)]
    for row in report.rows:
        assert row.cpu_seconds_per_million
        assert min(row.records_per_second, row.cpu_seconds_per_million, row.peak_rss_bytes) > 0
    ours, theirs = report.rows
    assert ours.events_above_floor is not None
    assert theirs.events_above_floor is None
