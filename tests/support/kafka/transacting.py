"""Writers in transactions, and readers of committed records, for tests."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, TopicPartition

from fanout.kafka.cluster import Cluster
from fanout.kafka.partitions import Partition
from fanout.kafka.transactions.calls import Markers
from fanout.kafka.transactions.commit_token import CommitToken
from fanout.kafka.transactions.outcome import TransactionState
from fanout.kafka.transactions.transactions import open_transactions
from tests.support.kafka.brokers import HERE, create

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from fanout.kafka.transactions.commit_token import Incarnation
    from fanout.kafka.transactions.transactions import Transactions
    from fanout.testing.kafka.broker import KafkaBroker
    from fanout.testing.kafka.cluster import KafkaCluster

_numbers = itertools.count()

LONG = 600.0
"""A timeout that no test reaches."""


@asynccontextmanager
async def transactions(broker: KafkaCluster, **options: Any) -> AsyncIterator[Transactions]:
    """Connect to a broker, as one process does."""
    there = options.pop("cluster", Cluster(broker.bootstrap_servers, security=HERE))
    async with open_transactions(there, random=Random(7), **options) as opened:
        yield opened


@dataclass(frozen=True)
class Sink:
    """A transactional id and a topic of one test alone.

    `broker` has the topic; `also` are more topics that a transaction writes to.
    """

    broker: KafkaBroker
    topic: str
    also: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return f"fanout-{self.topic}"

    @property
    def group(self) -> str:
        return f"{self.id}-marker"

    def token(
        self, incarnation: Incarnation, batch: int = 0, *, lasts: float = LONG
    ) -> CommitToken:
        now = datetime.now(UTC)
        return CommitToken(
            transactional_id=self.id,
            incarnation=incarnation,
            marker_group=self.group,
            batch_id=batch,
            partitions=dict.fromkeys((self.topic, *self.also), (0,)),
            created_at=now,
            expires_at=now + timedelta(seconds=lasts),
        )

    @property
    def partition(self) -> Partition:
        return Partition(self.topic, 0)

    async def write(self, incarnation: Incarnation, *values: bytes, partition: int = 0) -> None:
        """Write as a task does: join the transaction, flush, and leave it open."""
        async with self.writing(incarnation) as producer:
            for topic in (self.topic, *self.also):
                for value in values:
                    await producer.send(topic, value, partition=partition)
            await producer.flush()

    @asynccontextmanager
    async def writing(self, incarnation: Incarnation) -> AsyncIterator[Any]:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.broker.bootstrap_servers,
            transactional_id=self.id,
            linger_ms=0,
        )
        producer._txn_manager.set_pid_and_epoch(incarnation.producer_id, incarnation.epoch)
        await producer.start()
        try:
            await producer.begin_transaction()
            yield producer
        finally:
            # To stop it would wait for what a fenced one can never send.
            producer._closed = True
            await producer._sender.close()
            await producer.client.close()

    async def open(
        self, connection: Transactions, batch: int = 0, *values: bytes, lasts: float = LONG
    ) -> CommitToken:
        """Begin, write, and mark a batch; return its token."""
        incarnation = await connection.begin(self.id, lasts)
        token = self.token(incarnation, batch, lasts=lasts)
        await self.write(incarnation, *(values or (b"batch %d" % batch,)))
        await connection.mark(token)
        return token

    async def committed(self, topic: str = "", partition: int = 0) -> list[bytes]:
        """Return what `read_committed` sees, up to what an open transaction holds back."""
        place = TopicPartition(topic or self.topic, partition, 0)
        return await asyncio.to_thread(_read, self.broker, place)

    async def until_committed(self, *values: bytes, partition: int = 0) -> None:
        """Wait until `read_committed` sees these values and no others."""
        found: list[bytes] = []
        while len(found) < len(values):
            found = await self.committed(partition=partition)
        assert found == list(values)


async def new_sink(broker: KafkaBroker, *, also: int = 0) -> Sink:
    """Create its topics."""
    names = [f"sink-{next(_numbers)}" for _ in range(1 + also)]
    for name in names:
        await create(broker, name, 2)
    return Sink(broker, names[0], tuple(names[1:]))


async def ended(connection: Transactions, sink: Sink) -> None:
    """Wait until the transaction that is open, or being ended, has ended everywhere."""

    async def settled() -> bool:
        description = await connection.describe(sink.id)
        assert description is not None
        return description.settled

    await until(settled)


async def reported(broker: KafkaCluster, *ids: str) -> None:
    """Wait until every partition has the end markers of the transactions of some ids."""
    async with transactions(broker) as connection:
        for id_ in ids:
            while True:
                description = await connection.describe(id_)
                assert description is not None
                if description.state not in {
                    TransactionState.PREPARE_COMMIT,
                    TransactionState.PREPARE_ABORT,
                }:
                    break
                await asyncio.sleep(0.01)


async def gone(connection: Transactions, sink: Sink) -> None:
    """Wait until a topic that was deleted has taken its marker along, open or committed."""

    async def is_gone() -> bool:
        return await connection._calls.markers(sink.group, [sink.topic]) == Markers(
            None, pending=False
        )

    await until(is_gone)


async def until(call: Callable[[], Awaitable[bool]]) -> None:
    """Make a call over and over until its answer is true."""
    while True:
        if await call():
            return
        await asyncio.sleep(0.02)


def _read(broker: KafkaBroker, place: TopicPartition) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    try:
        consumer.assign([place])
        values: list[bytes] = []
        while True:
            message = consumer.poll(30)
            assert message is not None
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return values
            value = message.value()
            assert value is not None
            values.append(value)
    finally:
        consumer.close()
