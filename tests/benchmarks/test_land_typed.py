from __future__ import annotations

import pytest

from benchmarks.land_typed import run, run_kinesis

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("one_process")]


def test_the_report_of_kafka_has_a_ratio_to_the_loop() -> None:
    report = run(1, 40_000, 2 << 20)
    assert report.ratios.keys() == {"land/typed Kafka/1000/vs_loop"}
    assert [row.name for row in report.rows] == [
        "land, Avro",
        "confluent, fastavro and write_deltalake",
    ]


def test_the_report_of_kinesis_has_a_ratio_to_the_loop() -> None:
    report = run_kinesis(1, 40, 2 << 20)
    assert report.ratios.keys() == {"land/typed Kinesis/1000/vs_loop"}
    assert [row.name for row in report.rows] == [
        "land, Avro",
        "aioboto3, fastavro and write_deltalake",
    ]
