"""The demo on Apache Kafka: the topic grows, the broker is killed, transactions are aborted."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from fanout.demo.options import DemoFailedError
from fanout.demo.plan import Kind
from fanout.demo.records import SentRecord, digest, event_time
from fanout.demo.service import STREAM, ActionResult
from fanout.demo.sources import KafkaSettings, ShareSettings
from fanout.testing.kafka.broker import KafkaBroker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from fanout.demo.plan import Action
    from fanout.demo.records import Record

# The number of partitions that are added each time.
_GROWTH = 2
# A killed broker has restarted long before, even on a busy machine.
_REQUEST_TIMEOUT_MS = 60_000
# Event times begin two hours ago, and span at most an hour. They must not lie in the future, nor a
# day ago: a restarted broker has forgotten a producer whose records are a day old
# (producer.id.expiration.ms), and stores records that the producer repeats a second time.
_MILLIS_AGO = 2 * 3_600_000
# Seconds for records in flight when a run ends early.
_GRACE = 5.0

_DESCRIPTIONS = {
    Kind.RESTART: "kill the broker while the next records are in flight, and restart it",
    Kind.COMMIT: "send the next records in a transaction",
    Kind.ABORT: "send the next records twice, once in a transaction that is aborted",
}


@contextmanager
def start_kafka(partitions: int, *, share: bool = False) -> Iterator[KafkaService]:
    """Run a broker while the block lasts, with a topic that begins with some partitions.

    Args:
        partitions: The number of partitions.
        share: Whether a share group reads the topic.

    Raises:
        SetupError: If there is no Java, or Kafka cannot be downloaded or does not start.
    """
    with KafkaBroker() as broker:
        broker.create_topic(STREAM, partitions)
        yield KafkaService(broker, STREAM, partitions, share=share)


@final
class KafkaService:
    """A `DemoService` that is a broker of Apache Kafka.

    Args:
        broker: The running broker, with the topic created.
        topic: The topic's name.
        partitions: Its number of partitions.
        share: Whether a share group reads it.
    """

    def __init__(
        self, broker: KafkaBroker, topic: str, partitions: int, *, share: bool = False
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._partitions = partitions
        self._faults: Counter[str] = Counter()
        self.environment: Mapping[str, str] = {}
        settings = ShareSettings if share else KafkaSettings
        self.settings: KafkaSettings | ShareSettings = settings(topic, broker.bootstrap_servers)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[KafkaStream]:
        """Connect to the topic; see `DemoService.connect`."""
        async with (
            _producer(self._broker) as plain,
            _producer(self._broker, transactional_id="fanout-demo") as transactional,
        ):
            yield KafkaStream(
                self._broker,
                self._topic,
                self._partitions,
                plain=plain,
                transactional=transactional,
                faults=self._faults,
            )

    def faults(self) -> Mapping[str, int]:
        """Return the number of faults so far, by kind."""
        return self._faults


@final
class KafkaStream:
    """A `DemoStream` that is a topic of Kafka.

    Every action except growth affects the records that are sent next: a broker is killed while they
    are in flight, or they are part of a transaction.

    Args:
        broker: Carries out the actions.
        topic: The topic's name.
        partitions: Its number of partitions.
        plain: A started idempotent producer.
        transactional: A started producer of transactions.
        faults: Counts the faults so far.
    """

    def __init__(
        self,
        broker: KafkaBroker,
        topic: str,
        partitions: int,
        *,
        plain: AIOKafkaProducer,
        transactional: AIOKafkaProducer,
        faults: Counter[str],
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._partitions = partitions
        self._plain = plain
        self._transactional = transactional
        self._faults = faults
        self._first_event = round(datetime.now(UTC).timestamp() * 1000) - _MILLIS_AGO
        self._due: deque[Kind] = deque()
        # A topic cannot grow while the broker is down.
        self._changing = asyncio.Lock()

    async def put(self, records: Sequence[Record]) -> Sequence[SentRecord]:
        """Send records with the next action, if one is due; see `DemoStream.put`."""
        kind = self._due.popleft() if self._due else None
        try:
            match kind:
                case Kind.RESTART:
                    return await self._put_across_a_restart(records)
                case Kind.COMMIT:
                    return await self._put_in_a_transaction(records)
                case Kind.ABORT:
                    return await self._put_beside_aborted_copies(records)
                case _:
                    return await self._deliver(self._plain, records)
        except KafkaError as error:
            raise DemoFailedError(f"the broker has not accepted the records: {error}") from error

    async def perform(self, action: Action) -> ActionResult:
        """Add partitions, or schedule the action for the next records."""
        if action.kind is Kind.GROW:
            return await self._grow()
        self._due.append(action.kind)
        return ActionResult(_DESCRIPTIONS[action.kind])

    async def parents(self) -> Mapping[str, Sequence[str]]:
        """Return the partitions, none of which has a parent."""
        return {self._split(number): () for number in range(self._partitions)}

    async def _grow(self) -> ActionResult:
        before, self._partitions = self._partitions, self._partitions + _GROWTH
        async with self._changing:
            await asyncio.to_thread(self._broker.grow_topic, self._topic, self._partitions)
        for producer in (self._plain, self._transactional):
            while len(await producer.partitions_for(self._topic)) < self._partitions:
                await producer.client.force_metadata_update()
        born = tuple(self._split(number) for number in range(before, self._partitions))
        return ActionResult(f"add the partitions {' and '.join(born)}", born=born)

    async def _put_across_a_restart(self, records: Sequence[Record]) -> list[SentRecord]:
        """Send records, and kill the broker while they are in flight."""
        sent = await self._send(self._plain, records)
        async with self._changing:
            await asyncio.to_thread(self._broker.restart)
        self._faults["KillBroker"] += 1
        return await self._taken(sent)

    async def _put_in_a_transaction(self, records: Sequence[Record]) -> list[SentRecord]:
        await self._transactional.begin_transaction()
        taken = await self._deliver(self._transactional, records)
        await self._transactional.commit_transaction()
        return taken

    async def _put_beside_aborted_copies(self, records: Sequence[Record]) -> list[SentRecord]:
        """Send each half of the records after copies of it in a transaction that is aborted.

        A reader that delivered a copy would read its number twice.
        """
        middle = len(records) // 2
        taken = []
        await self._transactional.begin_transaction()
        for half in (records[:middle], records[middle:]):
            await self._deliver(self._transactional, half)
            taken += await self._deliver(self._plain, half)
        await self._transactional.abort_transaction()
        self._faults["AbortTransaction"] += 1
        return taken

    async def _deliver(
        self, producer: AIOKafkaProducer, records: Sequence[Record]
    ) -> list[SentRecord]:
        return await self._taken(await self._send(producer, records))

    async def _send(
        self, producer: AIOKafkaProducer, records: Sequence[Record]
    ) -> list[tuple[Record, asyncio.Future[Any]]]:
        topic = self._topic
        return [
            (
                record,
                await producer.send(
                    topic, record.data, record.key.encode(), None, self._event_time(record)
                ),
            )
            for record in records
        ]

    async def _taken(self, sent: Sequence[tuple[Record, asyncio.Future[Any]]]) -> list[SentRecord]:
        """Wait until the broker has accepted records, and return them with their offsets."""
        places = await asyncio.gather(*(future for _, future in sent))
        if any(place.offset < 0 for place in places):
            raise DemoFailedError("the broker has accepted records without reporting their offsets")
        return [
            SentRecord(
                number=record.number,
                key=record.key,
                split=self._split(place.partition),
                sequence=place.offset,
                digest=digest(record.data),
                time=self._event_time(record),
            )
            for (record, _), place in zip(sent, places, strict=True)
        ]

    def _event_time(self, record: Record) -> int:
        return event_time(record.number, self._first_event)

    def _split(self, number: int) -> str:
        return f"{self._topic}-{number}"


@asynccontextmanager
async def _producer(broker: KafkaBroker, **options: Any) -> AsyncIterator[AIOKafkaProducer]:
    """Run a producer that retries until the broker has stored each record exactly once."""
    producer = AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap_servers,
        enable_idempotence=True,
        request_timeout_ms=_REQUEST_TIMEOUT_MS,
        **options,
    )
    try:
        try:
            await producer.start()
        except KafkaError as error:
            raise DemoFailedError(f"the broker accepts no records: {error}") from error
        yield producer
    finally:
        try:
            async with asyncio.timeout(_GRACE):
                await producer.stop()
        except TimeoutError:  # the broker is down, and records in flight are dropped
            await producer.client.close()
