"""Read what the job has committed: while it runs, and once more from the beginning at the end."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from confluent_kafka import Consumer, IsolationLevel
from confluent_kafka import KafkaError as Refusal
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.provers.crash.plan import CampaignFailedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from fanout.testing.trials.oracle import OutputOracle

__all__ = ("Reader", "end_offsets", "open_reader", "read_again")

_POLL_MS = 100
# The broker is on this machine: who does not answer in this many seconds does not run.
_TIMEOUT = 20.0


@final
class Reader:
    """Read topics for as long as the campaign runs; made by `open_reader`.

    Args:
        consumer: A started read_committed consumer.
        oracles: The oracle that receives the records of each topic.
    """

    def __init__(self, consumer: AIOKafkaConsumer, oracles: Mapping[str, OutputOracle]) -> None:
        self._consumer = consumer
        self._oracles = oracles

    async def run(self) -> None:
        """Read until cancelled, also while the broker is away."""
        while True:
            try:
                found = await self._consumer.getmany(timeout_ms=_POLL_MS)
            except KafkaError as error:
                if not error.retriable:
                    raise
                continue
            for partition, records in found.items():
                oracle = self._oracles[partition.topic]
                for record in records:
                    oracle.read(record.key, record.value)


@asynccontextmanager
async def open_reader(
    bootstrap_servers: str, oracles: Mapping[str, OutputOracle], partitions: int
) -> AsyncIterator[Reader]:
    """Read topics from their beginning while the block runs.

    Args:
        bootstrap_servers: Where the broker is.
        oracles: The oracle that receives the records of each topic.
        partitions: How many each topic has.
    """
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        consumer.assign(
            [TopicPartition(topic, number) for topic in oracles for number in range(partitions)]
        )
        yield Reader(consumer, oracles)
    finally:
        await consumer.stop()


def end_offsets(bootstrap_servers: str, topic: str, partitions: int) -> list[tuple[int, int]]:
    """Return per partition where what is committed ends, and where its log ends.

    The first is the smaller one where a transaction is open. It blocks.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    newest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {Place(topic, number): newest for number in range(partitions)}
    ends = []
    for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
        answers = admin.list_offsets(asked, isolation_level=level, request_timeout=_TIMEOUT)
        ends.append([answer.result(_TIMEOUT).offset for answer in answers.values()])
    return list(zip(*ends, strict=True))


def read_again(bootstrap_servers: str, topic: str, oracle: OutputOracle, partitions: int) -> None:
    """Send an oracle all that is committed in a topic, by another client; it blocks.

    Raises:
        CampaignFailedError: If it does not come to the end.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "fanout-crash-again",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([Place(topic, number, 0) for number in range(partitions)])
        ended: set[Any] = set()
        deadline = time.monotonic() + _TIMEOUT
        while len(ended) < partitions:
            for message in consumer.consume(1000, 0.2):
                if (error := message.error()) is None:
                    oracle.read(message.key(), message.value())
                elif error.code() == Refusal._PARTITION_EOF:
                    ended.add(message.partition())
                deadline = time.monotonic() + _TIMEOUT
            if time.monotonic() > deadline:
                raise CampaignFailedError(f"{topic} could not be read again to its end")
    finally:
        consumer.close()
