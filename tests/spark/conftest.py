from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def pytest_configure(config: pytest.Config) -> None:
    if pyspark.__version__.startswith("3."):
        # Its collect() leaves the socket of the result to the garbage collector.
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[2]")
        .appName("fanout-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def remote_checkpoint(spark: SparkSession, tmp_path: Path) -> str:
    """A location that only Hadoop knows: a viewfs mount of a local directory."""
    directory = tmp_path / "mounted"
    directory.mkdir()
    name = f"mount-{uuid.uuid4().hex}"  # Hadoop keeps one file system per name
    java_context: Any = spark.sparkContext._jsc
    java_context.hadoopConfiguration().set(
        f"fs.viewfs.mounttable.{name}.link./chk", directory.as_uri()
    )
    return f"viewfs://{name}/chk/query"
