"""Run sinks batch by batch, without a streaming query, and read what readers see."""

from __future__ import annotations

import itertools
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from fanout.kafka.cluster import Cluster
from fanout.landing.claims import claim
from fanout.landing.storage.local_storage import LocalStorage
from fanout.spark import KafkaSink, ShuffleSink
from fanout.spark.hadoop.jvm_lock import JvmProcess
from fanout.spark.query.batch_context import BatchContext, handling
from fanout.spark.workers.loop_thread import LoopThread
from tests.support.kafka.topics import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from fanout.kafka.security import Security
    from fanout.landing.claims import Ownership
    from fanout.spark.query.batch_runner import Handler
    from fanout.testing.kafka.broker import KafkaBroker

_NAMES = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Record:
    """A record, as a reader sees it."""

    key: bytes | None
    value: bytes | None
    headers: object
    timestamp: int


class Output:
    """A topic of its own for a test, and what readers see of it."""

    def __init__(self, broker: KafkaBroker, partitions: int = 4) -> None:
        self.broker = broker
        self.name = f"output{next(_NAMES)}"
        self.partitions = partitions
        broker.create_topic(self.name, partitions)

    def sink(
        self, security: Security | Callable[[], Security] = PLAINTEXT, **options: Any
    ) -> KafkaSink:
        cluster = Cluster(self.broker.bootstrap_servers, security=security)
        named: dict[str, Any] = {"cluster": cluster, "topic": self.name} | options
        return KafkaSink(**named)

    def read(
        self, *, isolation: str = "read_committed", wait_for: int = 0
    ) -> dict[int, list[Record]]:
        """Return the records of each partition, in order; there may be some to wait for."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap_servers,
                "group.id": "output",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        found: defaultdict[int, list[Record]] = defaultdict(list)
        open_ = set(range(self.partitions))
        consumer.assign([TopicPartition(self.name, number, 0) for number in open_])
        try:
            while open_ or sum(map(len, found.values())) < wait_for:
                message = consumer.poll(20)
                assert message is not None, "no answer"
                if (error := message.error()) is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    open_.discard(message.partition())
                    continue
                _, stamp = message.timestamp()
                found[message.partition() or 0].append(
                    Record(message.key(), message.value(), message.headers(), stamp)
                )
        finally:
            consumer.close()
        return dict(found)

    def values(self, *, isolation: str = "read_committed") -> list[bytes]:
        """Return all values, sorted."""
        records = itertools.chain.from_iterable(self.read(isolation=isolation).values())
        return sorted(record.value or b"" for record in records)


CONTENT, OTHER = "a" * 32, "b" * 32
"""What tells two batches with one id apart."""


class Run:
    """One run of a query on a checkpoint."""

    def __init__(
        self, query_id: str, storage: LocalStorage, ownership: Ownership, loop: LoopThread
    ) -> None:
        self.query_id = query_id
        self.storage = storage
        self.ownership = ownership
        self.loop = loop

    def context(
        self, batch_id: int, watermark: int | None = None, content: str = ""
    ) -> BatchContext:
        return BatchContext(
            batch_id,
            self.query_id,
            self.storage,
            self.ownership,
            self.loop,
            watermark=watermark,
            content=content,
        )

    def write(
        self,
        sink: KafkaSink | ShuffleSink,
        df: DataFrame,
        batch_id: int,
        watermark: int | None = None,
    ) -> None:
        self.call(sink, df, batch_id, watermark)

    def call(
        self,
        handler: Handler,
        df: DataFrame,
        batch_id: int,
        watermark: int | None = None,
        content: str = "",
    ) -> None:
        with handling(self.context(batch_id, watermark, content)):
            handler(df, batch_id)


@contextmanager
def run(spark: SparkSession, checkpoint: Path) -> Iterator[Run]:
    storage = LocalStorage(checkpoint)
    with claim(storage, JvmProcess(spark)) as ownership, LoopThread() as loop:
        # Of each test its own, as brokers remember what another has committed.
        yield Run(str(checkpoint).replace("/", "-"), storage, ownership, loop)
