"""The examples about writing to a shuffle with Spark, from orders to their sums."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fanout.kafka import Activity
from tests.support.kafka.shuffle_reading import drain
from tests.support.kafka.topics import Topic
from tests.support.spark.harness import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = [pytest.mark.spark, pytest.mark.long]

PAGE = (Path(__file__).parents[2] / "docs" / "shuffle.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SHUFFLE, WRITING, READING = (code for code in EXAMPLES if "foreach_batch" in code)
USERS = ("ann", "bob", "cem", "dan", "eve", "fay", "gil")


def test_sums_by_user_are_those_of_the_orders_also_when_the_writer_is_started_again(
    kafka_broker: KafkaBroker, spark: SparkSession, tmp_path: Path
) -> None:
    orders = Topic(kafka_broker, partitions=2)
    names: dict[str, Any] = {"spark": spark, "orders": orders.source()}
    expected: Counter[str] = Counter()

    def run(code: str) -> None:
        local = code.replace("s3a://lake", f"file://{tmp_path}").replace('"SSL"', '"PLAINTEXT"')
        local = local.replace("broker-1:9093", kafka_broker.bootstrap_servers)
        local = local.replace("replication_factor=3", "replication_factor=1")
        exec(local.replace("partition_count=12", "partition_count=3"), names)  # noqa: S102 - our page

    def order(first: int, behind: int) -> None:
        for number in range(first, behind):
            user = USERS[number % len(USERS)]
            expected[user] += number
            at = f"2024-01-01T00:00:{number:02}Z"
            record = {"user": user, "amount": str(number), "at": at}
            orders.write([{"value": json.dumps(record).encode()}], number % 2)

    def sums() -> dict[str, int]:
        written = tmp_path / "sums"
        if not list(written.glob("batch=*/_SUCCESS")):
            return {}
        done = [str(one.parent) for one in written.glob("batch=*/_SUCCESS")]
        rows = spark.read.parquet(*done).groupBy("user").sum("sum").collect()
        return {row["user"]: row["sum(sum)"] for row in rows}

    run(SHUFFLE)
    try:
        order(0, 30)
        run(WRITING)
        run(READING)
        eventually(lambda: sums() == expected, "the sums of 30 orders")
        names["writing"].stop()
        order(30, 50)
        run(WRITING)
        eventually(lambda: sums() == expected, "the sums of 50 orders")
    finally:
        names["writing"].stop()
        names["summing"].stop()
    topic = Topic.__new__(Topic)
    topic.broker, topic.name = kafka_broker, "orders-by-user"
    found = asyncio.run(drain(topic, partition_count=3))
    assert found.late == []
    keys = [{key for key, _, _ in part} for part in found.records.values()]
    assert sum(map(len, keys)) == len(USERS), "each user is in one partition"
    producers = list(found.producers.values())
    assert len(producers) == 3
    assert len({one.generation for one in producers}) == 1
    assert {one.seen[0].activity for one in producers} == {Activity.ACTIVE}
