from __future__ import annotations

import json
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from benchmarks import sink
from benchmarks.__main__ import SCENARIOS, Scenario, main
from benchmarks.harness import Report, Row

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from fanout.testing.kafka.broker import KafkaBroker

RATES = {
    sink.EXACTLY_ONCE: 90.0,
    sink.AT_LEAST_ONCE: 100.0,
    sink.TRANSFORMED: 60.0,
    sink.PEER: 120.0,
}


def _rows(records: Mapping[str, int]) -> list[Row]:
    return [
        Row(
            name=name,
            record_bytes=1024,
            records_per_second=RATES[name],
            bytes_per_second=1.0,
            peak_rss_bytes=1,
        )
        for name in records
    ]


@pytest.fixture
def broker(kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The scenario takes the broker that is there, where its topics are deleted again."""
    monkeypatch.setattr(sink, "KafkaBroker", lambda **_: nullcontext(kafka_broker))
    yield
    for topic in sink.TOPICS.values():
        kafka_broker.delete_topic(topic)


def test_a_batch_has_as_many_records_as_are_asked_for_in_a_piece_for_each_reader(
    tmp_path: Path,
) -> None:
    batch = pq.ParquetFile(sink.prepare_batch(tmp_path, 100, 402))
    assert batch.metadata.num_row_groups == 4
    values = batch.read()["value"].to_pylist()
    assert len(values) == len(set(values)) == 402
    assert {len(value) for value in values} == {100}


@pytest.mark.usefixtures("broker")
def test_exactly_once_is_compared_with_at_least_once_and_with_sparks_own_sink(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compare(*_: object, records: Mapping[str, int], **__: object) -> list[Row]:
        return _rows(records)

    monkeypatch.setattr(sink, "compare", compare)
    assert sink.run(rounds=1, batches=[(1024, 4)]).ratios == {
        "sink/kafka/1024/4/exactly_vs_at_least_once": 0.9,
        "sink/kafka/1024/4/exactly_vs_spark_jvm": 0.75,
        "sink/kafka/1024/4/exactly_of_a_dataframe_vs_spark_jvm": 0.5,
    }


@pytest.mark.usefixtures("broker")
def test_ours_are_measured_alone_where_spark_has_no_sink_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compare(*_: object, records: Mapping[str, int], **__: object) -> list[Row]:
        if sink.PEER in records:
            raise ChildProcessError("there are no jars")
        return _rows(records)

    monkeypatch.setattr(sink, "compare", compare)
    report = sink.run(rounds=1, batches=[(1024, 4)])
    assert report.ratios == {"sink/kafka/1024/4/exactly_vs_at_least_once": 0.9}
    assert [row.name for row in report.rows] == [f"{name}, 4 a batch" for name in sink.OURS]
    assert "left out: there are no jars" in capsys.readouterr().err


def test_a_scenario_that_has_no_choice_needs_no_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def report(rounds: int) -> Report:
        return Report(scenario="sink", rows=[], ratios={"rounds": rounds}, machine={})

    monkeypatch.setitem(SCENARIOS, "sink", {"kafka": Scenario(report, partial(report, 1))})
    for named in ([], ["--source", "kafka"]):
        main(["sink", "--rounds", "3", "--json", *named])
        printed: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert printed["ratios"] == {"rounds": 3}
    with pytest.raises(SystemExit):
        main(["sink", "--source", "kinesis"])
    assert "sink: not with --source kinesis" in capsys.readouterr().err
