"""The examples of docs/spark.md run, on a stream of the embedded Kinesis."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aioboto3
import pytest

import fanout
from fanout.kinesis import KinesisSource
from fanout.spark.dataframe import options
from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from tests.spark.dataframe.killed_query import counts, expected
from tests.spark.dataframe.triggers import TELLS_TRIGGER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
PAGE = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
EXAMPLES = [block for block in BLOCKS if '"source"' not in block]  # those name real services
RECORDS = 60


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A landing of two shards, of which one was split."""
    location = str(tmp_path_factory.mktemp("landing"))
    with KinesisServer(KinesisRules.fast()) as server:
        server.create_stream("orders", 2)
        server.put_records("orders", ((str(n % 5), b"%d" % n) for n in range(RECORDS // 2)))
        server.split_shard("orders", "shardId-000000000000")
        server.put_records(
            "orders", ((str(n % 5), b"%d" % n) for n in range(RECORDS // 2, RECORDS))
        )
        asyncio.run(_land(server, location))
    return location


async def _land(server: KinesisServer, location: str) -> None:
    source = KinesisSource(
        stream="orders",
        consumer="lander",
        start="TRIM_HORIZON",
        endpoint_url=server.endpoint_url,
        region="us-east-1",
        session=aioboto3.Session(aws_access_key_id="testing", aws_secret_access_key="testing"),
    )
    async with fanout.land(source, location, available_now=True, max_records=20) as landing:
        assert sum([entry.rows async for entry in landing]) == RECORDS


def run(spark: SparkSession, orders: str, scratch: Path, *examples: str) -> dict[str, Any]:
    """Run examples until their queries have read everything."""
    names: dict[str, Any] = {
        "spark": spark,
        "LANDING": orders,
        "OUTPUT": str(scratch / "output"),
        "CHECKPOINTS": str(scratch / "checkpoints"),
    }
    try:
        for example in examples:
            exec(example, names)  # noqa: S102 - the page is ours
            if "query" in names and names["query"].isActive:
                names["query"].processAllAvailable()
    finally:
        for query in spark.streams.active:
            query.stop()
    return names


@pytest.mark.long
def test_eleven_examples_run() -> None:
    assert len(EXAMPLES) == 11


def test_the_page_has_every_option() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (?:both|read|`read\w*`) \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(options.READ_OPTIONS)


@pytest.mark.prove
def test_the_batch_examples_read_everything(
    spark: SparkSession, orders: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = [example for example in EXAMPLES if "readStream" not in example][:-2]
    names = run(spark, orders, tmp_path, *batch)
    assert capsys.readouterr().out.startswith(f"{RECORDS}\n")
    assert names["slice"].count() == 40
    assert names["files"].count() == RECORDS
    spark.catalog.dropTempView("orders")


@pytest.mark.prove
@pytest.mark.usefixtures("whole_runs")
def test_windows_over_a_stream_that_was_split(
    spark: SparkSession, orders: str, tmp_path: Path
) -> None:
    stream = spark.readStream.format("fanout").option("landing", orders).load()
    numbers = stream.selectExpr("CAST(string(data) AS bigint) AS sequence", "shardId")
    query = (
        counts(numbers)
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "counts"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(50)
    assert not query.isActive
    rows = spark.read.parquet(str(tmp_path / "counts")).collect()
    assert {row["start"]: row["count"] for row in rows} == expected([*range(RECORDS)])


@pytest.mark.prove
def test_the_streaming_examples_write_every_record_once(
    spark: SparkSession, orders: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    streaming = [example for example in EXAMPLES if "readStream" in example]
    assert len(streaming) == 5
    *_, progress, listener = EXAMPLES
    names = run(spark, orders, tmp_path, listener, *streaming, progress)
    shown = capsys.readouterr().out
    assert ("entriesBehind" in shown) is TELLS_TRIGGER
    assert re.search(rf"^None {RECORDS} None$", shown, re.MULTILINE)  # of the listener
    spark.streams.removeListener(names["lag"])
    for name in ("once", "daily", "pairs", "batches/*"):
        written = spark.read.parquet(f"{tmp_path}/output/{name}").collect()
        assert sorted(int(row.data) for row in written) == [*range(RECORDS)]
