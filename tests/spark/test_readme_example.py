from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.readme import SPARK, defined_by

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from fanout.testing.kinesis_server import KinesisServer

pytestmark = pytest.mark.spark


def test_the_spark_example_writes_what_was_put(
    kinesis_server: KinesisServer,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in kinesis_server.environment.items():
        monkeypatch.setenv(name, value)
    kinesis_server.create_stream("orders")
    kinesis_server.put_records("orders", [("customer", b"1"), ("customer", b"2")])
    written = tmp_path / "orders"
    query = defined_by(SPARK.replace("s3a://lake", f"file://{tmp_path}"))["query"]
    while not list(written.glob("batch=*/_SUCCESS")):
        assert query.is_active
        query.await_termination(0.1)
    query.stop()
    rows = spark.read.parquet(f"file://{written}").orderBy("sequenceNumber").collect()
    assert [bytes(row.data) for row in rows] == [b"1", b"2"]
