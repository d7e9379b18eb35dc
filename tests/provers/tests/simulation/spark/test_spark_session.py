"""The simulated Spark session reads a file, or says that it cannot be read."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JError

from tests.provers.simulation.spark.spark_session import SimDataFrame


def parquet(*columns: str) -> bytes:
    sink = io.BytesIO()
    nested = [{"inner": 1, "other": 2}] * 3
    pq.write_table(pa.table(dict.fromkeys(columns, nested)), sink)
    return sink.getvalue()


def test_a_frame_has_the_columns_of_its_file_and_not_their_fields() -> None:
    assert SimDataFrame(lambda: parquet("one", "two")).columns == ["one", "two"]


def test_a_frame_counts_the_rows_of_its_file() -> None:
    assert SimDataFrame(lambda: parquet("one")).count() == 3


def test_neither_columns_nor_rows_are_told_of_a_torn_file() -> None:
    torn = SimDataFrame(lambda: parquet("one")[:-1])
    with pytest.raises(Py4JError, match="the job failed"):
        _ = torn.columns
    with pytest.raises(Py4JError, match="the job failed"):
        torn.count()
