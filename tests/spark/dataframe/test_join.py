"""Streams are joined: two landings, and a stream of Kinesis with a topic of Kafka."""

from __future__ import annotations

import random
import threading
import uuid
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.spark.dataframe.driver_process import (
    kill,
    running,
    wait_for_end,
    wait_until_running,
)
from tests.spark.dataframe.joined_query import DELAY, WITHIN, expected
from tests.support.kafka.topics import Topic
from tests.support.process_list import running_with
from tests.support.spark.harness import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from fanout.testing.kafka.broker import KafkaBroker
    from fanout.testing.kinesis.server import KinesisServer

pytestmark = pytest.mark.spark


class Traffic:
    """Orders that a stream of Kinesis got, and payments that a topic of Kafka got.

    Each is a number and a second. Producers send some orders twice; an order has payments in time,
    too early and too late, or none.
    """

    def __init__(self, kinesis: KinesisServer, topic: Topic, drawn: random.Random) -> None:
        self.orders: list[tuple[int, int]] = []
        self.payments: list[tuple[int, int]] = []
        self._kinesis = kinesis
        self._topic = topic
        self._drawn = drawn

    def put(self, numbers: range) -> None:
        """Send orders, each at the second of its number, and their payments."""
        orders = [(n, n) for n in numbers for _ in range(self._drawn.choice((1, 1, 2)))]
        payments = [
            (n, n + self._drawn.randint(-5, WITHIN + 5))
            for n in numbers
            for _ in range(self._drawn.randrange(3))
        ]
        self._drawn.shuffle(orders)
        self._drawn.shuffle(payments)
        self._send(orders, payments)

    def put_last(self) -> None:
        """Send an order and its payment after which nothing waits for the watermark."""
        last = [(-1, 10 * DELAY)]
        self._send(last, last)

    def _send(self, orders: list[tuple[int, int]], payments: list[tuple[int, int]]) -> None:
        self.orders += orders
        self.payments += payments
        self._kinesis.put_records("orders", ((str(n), b"%d,%d" % (n, at)) for n, at in orders))
        for partition in (0, 1):
            some = [{"value": b"%d,%d" % (n, at)} for n, at in payments if n % 2 == partition]
            self._topic.write(some, partition)


@pytest.mark.prove
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(2))
def test_a_stream_and_a_topic_are_joined_through_a_killed_driver(
    spark: SparkSession,
    kinesis: KinesisServer,
    kafka_broker: KafkaBroker,
    tmp_path: Path,
    seed: int,
) -> None:
    drawn, mark = random.Random(seed), uuid.uuid4().hex
    topic = Topic(kafka_broker, partitions=2)
    traffic = Traffic(kinesis, topic, drawn)
    (tmp_path / "scratch").mkdir()
    arguments = (kinesis.endpoint_url, kafka_broker.bootstrap_servers, topic.name, str(tmp_path))

    def read_all() -> None:
        counts = map(str, (len(traffic.orders), len(traffic.payments)))
        with running("joined_query", mark, *arguments, *counts, **kinesis.environment) as driver:
            wait_for_end(driver)

    traffic.put(range(1, 200))
    with running("joined_query", mark, *arguments, **kinesis.environment) as driver:
        wait_until_running(driver)
        threading.Event().wait(drawn.uniform(0.0, 5.0))
        traffic.put(range(200, 300))
        kinesis.split_shard("orders", "shardId-000000000000")
        threading.Event().wait(drawn.uniform(0.0, 5.0))
        assert kill(mark, "driver")
        eventually(lambda: not running_with(mark), "the end of its planners and workers")
    traffic.put(range(300, 400))
    read_all()
    traffic.put_last()
    read_all()
    rows = spark.read.parquet(str(tmp_path / "results")).collect()
    found = Counter((row["ordered"], row["second"]) for row in rows)
    assert found == expected(traffic.orders, traffic.payments)
