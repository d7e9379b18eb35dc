"""Write records to topics of a real broker, read them through the library, and compare."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict
from contextlib import asynccontextmanager, suppress
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

import fanout
from fanout.core.backoff import Backoff
from fanout.kafka import KafkaSource, Security
from fanout.kafka.cluster import Cluster
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from contextlib import AbstractAsyncContextManager

    from fanout.testing.kafka.broker import KafkaBroker

_NAMES = itertools.count(1)
# While leaders move.
_MOVING = frozenset({KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE})


class Topic:
    """One topic of a broker, and everything that was written to it and not aborted.

    `log` has the offset and the value of each record, by partition.
    """

    def __init__(
        self,
        broker: KafkaBroker,
        *,
        partitions: int = 1,
        name: str | None = None,
        configs: dict[str, str] | None = None,
    ) -> None:
        self.broker = broker
        self.name = name or f"topic{next(_NAMES)}"
        self.log: defaultdict[int, list[tuple[int, bytes | None]]] = defaultdict(list)
        self._values = itertools.count()
        broker.create_topic(self.name, partitions, configs)

    def put(self, count: int, *, partition: int = 0, **options: Any) -> None:
        """Write records, and wait until the broker has them."""
        self.write(
            [{"value": b"%d" % next(self._values)} for _ in range(count)], partition, **options
        )

    def write(self, records: Iterable[dict[str, Any]], partition: int = 0, **options: Any) -> None:
        """Write records as `Producer.produce` takes them."""
        writer = producer(self.broker, **options)
        for record in records:
            writer.produce(self.name, partition=partition, on_delivery=self._written, **record)
        writer.flush(PATIENCE)

    def transaction(
        self, writer: Producer, count: int, *, partition: int = 0, commit: bool | None
    ) -> None:
        """Write records in a transaction; commit it, abort it, or with None leave it open."""
        writer.begin_transaction()
        written = None if commit is False else self._written
        for _ in range(count):
            writer.produce(
                self.name, b"%d" % next(self._values), partition=partition, on_delivery=written
            )
        writer.flush(PATIENCE)
        if commit is not None:
            self.end_transaction(writer, partition=partition, commit=commit)

    def end_transaction(self, writer: Producer, *, partition: int = 0, commit: bool = True) -> None:
        """Commit or abort a transaction that is open, and wait until a partition has its marker."""
        end = self._end(partition)
        (writer.commit_transaction if commit else writer.abort_transaction)(PATIENCE)
        # The coordinator writes the marker soon after it has answered.
        while self._end(partition) == end:
            time.sleep(0.01)

    @cached_property
    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.broker.bootstrap_servers, "log_level": 0})

    def _end(self, partition: int) -> int:
        """Return the end of a partition, open transactions included."""
        wanted = TopicPartition(self.name, partition)
        latest: Any = OffsetSpec
        deadline = time.monotonic() + PATIENCE
        while True:
            (found,) = self._admin.list_offsets({wanted: latest.latest()}).values()
            try:
                return int(found.result(PATIENCE).offset)
            except KafkaException as error:
                # This call, unlike others, is not repeated by the client.
                if error.args[0].code() not in _MOVING or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def _written(self, error: object, message: Any) -> None:
        assert error is None, error
        self.log[message.partition()].append((message.offset(), message.value()))

    @property
    def written(self) -> int:
        return sum(map(len, self.log.values()))

    def source(self, **options: Any) -> KafkaSource:
        chosen: dict[str, Any] = (
            {} if {"pattern", "partitions"} & options.keys() else {"topics": self.name}
        )
        fast = {"backoff": Backoff(base=0.01, cap=0.1), "discovery_interval": 0.1}
        where = {"cluster": Cluster(self.broker.bootstrap_servers, security=PLAINTEXT)}
        return KafkaSource(**chosen | where | fast | options)

    def open(
        self, *, resume: str | None = None, available_now: bool = False, **options: Any
    ) -> AbstractAsyncContextManager[fanout.FanOut]:
        source = self.source(**options)
        return fanout.open(source, resume=resume, available_now=available_now, random=seeded())

    async def read(self, *, resume: str | None = None, **options: Any) -> Reader:
        """Read a bounded stream to its end."""
        reader = Reader()
        async with (
            asyncio.timeout(PATIENCE),
            self.open(resume=resume, **{"stop": "latest"} | options) as stream,
        ):
            await reader.read(stream)
        if reader.failure is not None:
            raise reader.failure
        return reader

    @asynccontextmanager
    async def reading(self, *, resume: str | None = None, **options: Any) -> AsyncIterator[Reader]:
        """Read in the background for as long as the block runs."""
        reader = Reader()
        async with fanout.open(
            self.source(**options), resume=resume, on_resubscribe=reader.tell, random=seeded()
        ) as stream:
            task = asyncio.create_task(reader.read(stream))
            try:
                yield reader
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


class Reader:
    """The batches that a stream has delivered so far, and the calls of its hook.

    `log` is like that of a Topic; `topics` has the same by the names of topics.
    """

    stream: fanout.FanOut

    def __init__(self) -> None:
        self.topics: defaultdict[str, defaultdict[int, list[tuple[int, bytes | None]]]]
        self.topics = defaultdict(lambda: defaultdict(list))
        self.batches: list[fanout.Batch] = []
        self.causes: list[Exception] = []
        self.failure: fanout.FanOutError | None = None
        self._ended = False
        self._changed = asyncio.Event()

    async def read(self, stream: fanout.FanOut) -> None:
        self.stream = stream
        try:
            async for batch in stream:
                self.batches.append(batch)
                columns = ("topic", "partition", "offset", "value")
                rows = zip(
                    *(batch.records.column(name).to_pylist() for name in columns), strict=True
                )
                for topic, partition, offset, value in rows:
                    self.topics[topic][partition].append((offset, value))
                await stream.acknowledge(batch)
                self._changed.set()
            self._ended = True
        except fanout.FanOutError as error:
            self.failure = error
        self._changed.set()

    def tell(self, _split: object, cause: Exception, _delay: float) -> None:
        self.causes.append(cause)
        self._changed.set()

    @property
    def log(self) -> defaultdict[int, list[tuple[int, bytes | None]]]:
        assert len(self.topics) <= 1
        return next(iter(self.topics.values()), defaultdict(list))

    @property
    def offsets(self) -> list[int]:
        """The offsets that were delivered of partition 0, in order."""
        return [offset for offset, _ in self.log[0]]

    @property
    def count(self) -> int:
        return sum(len(rows) for partitions in self.topics.values() for rows in partitions.values())

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something is true; raise the failure of the stream if it fails before."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                if self.failure is not None:
                    raise self.failure
                self._changed.clear()
                await self._changed.wait()

    async def has(self, count: int) -> None:
        await self.until(lambda: self.count >= count)

    async def ended(self) -> None:
        """Wait for the end of a bounded stream."""
        await self.until(lambda: self._ended)

    async def failed(self) -> fanout.FanOutError:
        """Wait for the failure of the stream, and return it."""
        await self.until(lambda: self.failure)
        assert self.failure is not None
        return self.failure


async def new_topic(broker: KafkaBroker, **options: Any) -> Topic:
    """Create a topic where a loop runs."""
    return await asyncio.to_thread(Topic, broker, **options)


def producer(broker: KafkaBroker, **options: Any) -> Producer:
    """Make a producer; the options are named with underscores instead of dots."""
    named = {name.replace("_", "."): value for name, value in options.items()}
    quiet = {"log_level": 0, "error_cb": lambda _: None}
    return Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 1} | quiet | named)


def transactional(broker: KafkaBroker, name: str) -> Producer:
    """Make a producer that can begin a transaction."""
    made = producer(broker, transactional_id=name)
    made.init_transactions(PATIENCE)
    return made


def committed(topic: Topic, group: str, partitions: int = 2) -> dict[int, int]:
    """Ask another client what a group has committed of the first partitions."""
    consumer = Consumer(
        {"bootstrap.servers": topic.broker.bootstrap_servers, "group.id": group, "log_level": 0}
    )
    asked = [TopicPartition(topic.name, number) for number in range(partitions)]
    deadline = time.monotonic() + PATIENCE
    try:
        while True:
            try:
                found = consumer.committed(asked, timeout=PATIENCE)
                return {one.partition: one.offset for one in found if one.offset >= 0}
            except KafkaException:
                # The first group of a broker waits until there is a topic for groups.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
    finally:
        consumer.close()


async def eventually(condition: Callable[[], object]) -> None:
    """Wait for a condition by polling it."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)


PLAINTEXT = Security(protocol="PLAINTEXT")


def seeded() -> Random:
    """Build a source of randomness that is the same in each run."""
    return Random(7)
