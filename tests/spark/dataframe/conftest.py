from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from tests.spark.dataframe.landings import FilledLanding
from tests.spark.dataframe.triggers import TELLS_TRIGGER
from tests.support.groups import SPARK_TABLES, group_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

if pyspark.__version__.startswith("3."):
    collect_ignore_glob = ["test_*.py"]  # there are no Python data sources
elif TELLS_TRIGGER:
    collect_ignore = ["test_before_4_2.py"]
else:
    # They call what Spark calls from 4.2 on, or land with Trigger.AvailableNow.
    collect_ignore = [
        "test_connect.py",
        "test_driver_landings.py",
        "test_source_reader.py",
        "test_stream_reader.py",
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    group_folder(__file__, items, SPARK_TABLES)


@pytest.fixture(autouse=True)
def this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's planner runs the interpreter of the tests."""
    monkeypatch.setenv("PYSPARK_PYTHON", os.environ.get("PYSPARK_PYTHON", sys.executable))


@pytest.fixture
def landing(tmp_path: Path) -> FilledLanding:
    return FilledLanding(tmp_path / "landing")


@pytest.fixture
def read_stream(spark: SparkSession, landing: FilledLanding) -> Callable[..., DataFrame]:
    """Read the landing as a streaming DataFrame."""

    def read_stream(**options: Any) -> DataFrame:
        chosen = {"landing": landing.location} | options
        return spark.readStream.format("fanout").options(**chosen).load()

    return read_stream


@pytest.fixture
def whole_runs(spark: SparkSession) -> Iterator[None]:
    """Let Trigger.AvailableNow of Spark 4.0 and 4.1 take all, and write what is complete then."""
    name = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
    spark.conf.set(name, "true")
    yield
    spark.conf.unset(name)


class Runs:
    """Runs of a query that end with what is there.

    Args:
        checkpoint: Where Spark keeps its offsets.
    """

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        self.batches: list[list[int]] = []
        self.last: StreamingQuery | None = None

    def run(self, df: DataFrame, checkpoint: str | None = None) -> list[list[int]]:
        """Run until everything is read; return the sequence numbers of each batch with rows."""
        self.batches = []
        writer = df.writeStream.foreachBatch(self._take).trigger(availableNow=True)
        self.last = writer.option("checkpointLocation", checkpoint or self.checkpoint).start()
        try:
            self.last.awaitTermination(50)
            assert not self.last.isActive
        finally:
            self.last.stop()
        return [batch for batch in self.batches if batch]

    def progress(self) -> list[dict[str, Any]]:
        """Return what Spark says of the source in each batch."""
        assert self.last is not None
        return [json.loads(one.json)["sources"][0] for one in self.last.recentProgress]

    def _take(self, df: DataFrame, _: int) -> None:
        self.batches.append(sorted(row.sequence for row in df.collect()))


@pytest.fixture
def runs(tmp_path: Path, spark: SparkSession) -> Iterator[Runs]:
    yield Runs(str(tmp_path / "checkpoint"))
    assert spark.streams.active == []
