from __future__ import annotations

import os
import sys
import uuid
from typing import TYPE_CHECKING, Any

import aioboto3
import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from fanout.kinesis import KinesisSource
from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from fanout.testing.spark.session import small_settings
from tests.support.groups import SPARK, group_folder
from tests.support.spark.cluster import standalone_cluster as standalone_cluster  # noqa: PLC0414 - a fixture
from tests.support.spark.harness import fanout_threads
from tests.support.spark.table_formats import format_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fanout.core.source import Source
    from fanout.spark import FanOutQuery
    from fanout.spark.query.batch_runner import Handler


def pytest_configure(config: pytest.Config) -> None:
    if pyspark.__version__.startswith(("3.", "4.0.")):
        # Its collect() leaves the socket of the result to the garbage collector.
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")
    if pyspark.__version__.startswith("3."):
        # It compares the version of pandas so.
        config.addinivalue_line("filterwarnings", "ignore:.*distutils:DeprecationWarning")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    group_folder(__file__, items, SPARK)


def pytest_exception_interact(call: pytest.CallInfo[None]) -> None:
    """After a test that hung, talk to the JVM by another connection.

    pytest-timeout raises where the test waits, which may be for an answer of the JVM. Nobody reads
    that answer then, and on the same connection the next call would take it for its own.
    """
    if call.excinfo is None or call.excinfo.errisinstance(Exception):
        return
    if (gateway := SparkContext._gateway) is not None:
        connection = gateway._gateway_client.get_thread_connection()
        if connection is not None:
            connection.close(reset=True)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable  # or workers run another python3
    session = (
        SparkSession.builder.master("local[2]")
        .appName("fanout-tests")
        # JdbcSink refuses what depends on the zone of the machine.
        .config(
            map=small_settings("-Duser.timezone=UTC")
            | format_settings(tmp_path_factory.mktemp("warehouse"))
        )
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        # For some rows it takes longer to compile a plan than to interpret it. The drivers that are
        # killed have Spark's default.
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    remembered = _remembers_driver(session)
    session.stop()
    assert remembered, "a test that loses files of a shuffle must use the fixture lost_shuffle"


@pytest.fixture
def lost_shuffle(spark: SparkSession) -> Iterator[None]:
    """Let a test lose files of a shuffle; afterwards Spark knows the driver's block manager again.

    Spark takes a failed fetch for a lost executor and forgets its block manager. In local mode that
    is the driver's, and it cannot register again as that of a cluster's executor does. Each
    heartbeat fails then, and after 60 of them, which takes ten minutes, the JVM ends itself.
    """
    yield
    blocks = _block_manager(spark)
    blocks.master().registerBlockManager(
        blocks.blockManagerId(),
        blocks.diskBlockManager().localDirsString(),
        _field(spark, blocks, "storage.BlockManager", "maxOnHeapMemory"),
        _field(spark, blocks, "storage.BlockManager", "maxOffHeapMemory"),
        _field(spark, blocks, "storage.BlockManager", "storageEndpoint"),
        False,  # noqa: FBT003 - isReregister: such an executor would be refused
    )
    assert _remembers_driver(spark)


def _remembers_driver(spark: SparkSession) -> bool:
    """Return whether Spark knows the driver's block manager; if not, heartbeats fail."""
    blocks = _block_manager(spark)
    return bool(blocks.master().getMemoryStatus().contains(blocks.blockManagerId()))


def _block_manager(spark: SparkSession) -> Any:
    context: Any = spark.sparkContext._jsc
    return _field(spark, context.sc().env(), "SparkEnv", "blockManager")


def _field(spark: SparkSession, instance: Any, class_name: str, name: str) -> Any:
    """Read a field of Spark; py4j cannot call methods of a class that names missing classes."""
    java: Any = spark._jvm
    field = java.java.lang.Class.forName(f"org.apache.spark.{class_name}").getDeclaredField(name)
    field.setAccessible(True)
    return field.get(instance)


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


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")


@pytest.fixture
def start(spark: SparkSession, checkpoint: str) -> Iterator[Callable[..., FanOutQuery]]:
    """Start queries that end with the test; nothing of them is left, also after a failure."""
    # Imported here, so that the tests of the values and files below need not load it.
    from fanout.spark import foreach_batch  # noqa: PLC0415

    queries = []

    def start(source: Source, handler: Handler, **options: Any) -> FanOutQuery:
        options.setdefault("checkpoint_location", checkpoint)
        query = foreach_batch(spark, source, handler, **options)
        queries.append(query)
        return query

    yield start
    for query in queries:
        query.stop()
    assert fanout_threads() == []
    assert spark.streams.active == []


@pytest.fixture
def kinesis() -> Iterator[KinesisServer]:
    """An embedded Kinesis with a stream of two shards."""
    with KinesisServer(KinesisRules.fast()) as server:
        server.create_stream("orders", 2)
        yield server


@pytest.fixture
def orders(kinesis: KinesisServer) -> KinesisSource:
    return KinesisSource(
        stream="orders",
        consumer="etl",
        start="TRIM_HORIZON",
        endpoint_url=kinesis.endpoint_url,
        region="us-east-1",
        session=aioboto3.Session(aws_access_key_id="testing", aws_secret_access_key="testing"),
    )
