from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from benchmarks import latency
from benchmarks.harness import Row, table
from benchmarks.latency import DATA_FRAME, FOREACH_BATCH, SPARK, latencies, measured

if TYPE_CHECKING:
    from collections.abc import Mapping

P50 = {SPARK: 0.3, FOREACH_BATCH: 0.2, DATA_FRAME: 0.6}


def _rows(records: Mapping[str, int]) -> list[Row]:
    return [
        Row(
            name=name,
            record_bytes=1024,
            records_per_second=1.0,
            bytes_per_second=1.0,
            peak_rss_bytes=1,
            latency=(P50[name], 1.0, 2.0),
        )
        for name in records
    ]


def test_the_latency_of_a_record_is_the_time_since_the_stamp_that_it_begins_with() -> None:
    now = time.time_ns()
    stamps = [b"%d and its data" % (now - age * 10**9) for age in (0, 60, 3600)]
    for data in (pa.array(stamps), pa.chunked_array([stamps[:1], stamps[1:]])):
        taken = latencies(data)
        assert [round(each / 10) * 10 for each in taken] == [0, 60, 3600]
        percentiles = measured([taken, taken[:1]], 2.0, 1.0).latency
        assert percentiles is not None
        assert round(percentiles[0] / 10) * 10 == 30  # between the second and the third of four
    many = latencies(pa.array(stamps * 100))
    assert [round(each / 10) * 10 for each in many] == [0, 60, 3600] * 100


@pytest.mark.usefixtures("one_process")
def test_the_ratio_of_a_rate_is_the_median_of_the_peer_by_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(latency, "SKIPPED_SECONDS", 0.1)
    report = latency.run_kinesis(1, rates=(500,), seconds=0.5)
    ours, theirs = report.rows
    assert [row.name for row in report.rows] == ["fanout", "aioboto3"]
    assert ours.latency is not None
    assert theirs.latency is not None
    assert report.ratios == {"latency/asyncio/500/vs_aioboto3": theirs.latency[0] / ours.latency[0]}
    for row in report.rows:
        assert row.latency is not None
        p50, p95, p99 = row.latency
        assert 0 < p50 <= p95 <= p99
        assert row.cpu_seconds_per_million
    assert [str(column.header) for column in table(report).columns][-3:] == ["p50", "p95", "p99"]


def test_queries_are_compared_with_sparks_own_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "paced", lambda *_: nullcontext("a broker"))
    monkeypatch.setattr(latency, "_run_asyncio", lambda *_: None)  # it has a test of its own

    def compared(*_: object, records: Mapping[str, int], **__: object) -> list[Row]:
        assert set(records.values()) == {5000}
        return _rows(records)

    monkeypatch.setattr(latency, "compare", compared)
    assert latency.run_kafka(1, rates=(1000,), seconds=5.0).ratios == {
        "latency/spark/1000/vs_spark_jvm": pytest.approx(1.5),
        "latency/spark/1000/dataframe_vs_spark_jvm": pytest.approx(0.5),
        "latency/spark/1000/dataframe_vs_foreach_batch": pytest.approx(1 / 3),
    }


def test_queries_are_measured_alone_where_sparks_source_has_no_jars(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(latency, "paced", lambda *_: nullcontext("a broker"))
    monkeypatch.setattr(latency, "_run_asyncio", lambda *_: None)  # it has a test of its own

    def compared(*_: object, records: Mapping[str, int], **__: object) -> list[Row]:
        if SPARK in records:
            raise ChildProcessError("no jars")
        return _rows(records)

    monkeypatch.setattr(latency, "compare", compared)
    ratios = latency.run_kafka(1, rates=(10,)).ratios
    assert ratios == {"latency/spark/10/dataframe_vs_foreach_batch": pytest.approx(1 / 3)}
    assert "left out: no jars" in capsys.readouterr().err
