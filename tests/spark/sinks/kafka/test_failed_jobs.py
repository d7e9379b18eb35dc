"""What is said of a Spark job of the sink that has failed, for reasons that are Spark's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from fanout.spark.sinks.kafka.job import AttemptFailedError, _run_job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def failure(spark: SparkSession, df: DataFrame) -> str:
    """Return what is said of a job that collects a DataFrame."""
    options: Any = None
    with pytest.raises(AttemptFailedError) as failed:
        _run_job(spark, lambda: [row[0] for row in df.collect()], options, 1)
    return str(failed.value)


def test_a_file_that_is_damaged_is_the_cause(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"value": ["text"] * 100}), file)
    df = spark.read.parquet(str(file))
    file.write_bytes(b"PAR1" + bytes(1000) + b"PAR1")

    said = failure(spark, df)

    assert "corrupted file: the footer index is not within the file" in said
    assert "rows.parquet" in said or pyspark.__version__.startswith("3.")  # which names no file
    assert said.startswith("the Spark job failed: SparkException: ")
    assert "\n" not in said


def test_a_worker_that_dies_is_the_cause(spark: SparkSession) -> None:
    def die(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os._exit(3)

    said = failure(spark, spark.range(1).mapInArrow(die, "id long"))

    assert "Python worker exited unexpectedly (crashed)" in said
    assert "\n" not in said


def test_what_an_expression_raises_is_said(spark: SparkSession) -> None:
    said = failure(spark, spark.range(1).selectExpr("raise_error('the day is no day')"))

    assert "the day is no day" in said
    assert "\n" not in said


def test_a_value_that_spark_refuses_is_not_said(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.ansi.enabled", "true")
    try:
        said = failure(spark, spark.range(1).selectExpr("cast(concat('secret', id) as int)"))
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")

    assert "[CAST_INVALID_INPUT]" in said
    assert "secret" not in said
