"""The demo on Apache Kafka: the topic grows, nodes fail, transactions are aborted."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias, final

from aiokafka.errors import KafkaError

from fanout.demo.options import STREAM, DemoFailedError
from fanout.demo.plan import ActionResult, Kind
from fanout.demo.sources import OUT_OF_ORDERNESS
from fanout.demo.verification import SentRecord
from fanout.errors import OptionError
from fanout.testing.kafka.broker import KafkaBroker
from fanout.testing.kafka.cluster import KafkaCluster
from fanout.testing.kafka.producer import open_producer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from aiokafka import AIOKafkaProducer

    from fanout.demo.plan import Action
    from fanout.testing.trials.records import Record

# The event time of a record, and what the producer says of it.
_Sent: TypeAlias = "tuple[int, asyncio.Future[Any]]"

# The number of partitions that are added each time.
_GROWTH = 2
# Event times begin two hours ago, and span at most an hour. They must not lie in the future, nor a
# day ago: a restarted broker has forgotten a producer whose records are a day old
# (producer.id.expiration.ms), and stores records that the producer repeats a second time.
_MILLIS_AGO = 2 * 3_600_000
# An event every 4 ms; its record is late by less than the reader expects.
_EVERY = 4
_LATENESS = round(OUT_OF_ORDERNESS * 1_000)
# A node is missed after this many milliseconds, and hangs for more seconds than that.
_SESSION = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
_HANG = 6.0
# For so many seconds leaders cannot move, because a replica catches up.
_MOVING = 60.0
_LOOK = 0.5
# Has no divisor in common with the lateness, so that each one occurs.
_SCATTER = 7_919


@contextmanager
def start_kafka(partitions: int, nodes: int) -> Iterator[KafkaStream]:
    """Run brokers while the block lasts, with a topic that begins with some partitions."""
    with KafkaBroker() if nodes == 1 else KafkaCluster(nodes=nodes, settings=_SESSION) as cluster:
        cluster.create_topic(STREAM, partitions)
        yield KafkaStream(cluster, STREAM, partitions)


def event_time(number: int, first: int) -> int:
    """Return the event time of a record in milliseconds since the epoch, by that of the first."""
    return first + number * _EVERY - (number * _SCATTER) % _LATENESS


@final
class KafkaStream:
    """A topic of Kafka.

    Every action except growth affects the records that are sent next: a node fails while they are
    in flight, or they are part of a transaction.
    """

    _plain: AIOKafkaProducer
    _transactional: AIOKafkaProducer

    def __init__(self, cluster: KafkaCluster, topic: str, partitions: int) -> None:
        self.address = cluster.bootstrap_servers
        self.environment: Mapping[str, str] = {}
        self._cluster = cluster
        self._topic = topic
        self._partitions = partitions
        self._faults: Counter[str] = Counter()
        self._first_event = round(datetime.now(UTC).timestamp() * 1000) - _MILLIS_AGO
        self._due: deque[Kind] = deque()
        # A topic cannot grow while the broker is down.
        self._changing = asyncio.Lock()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[None]:
        """Let records be put while the block runs; cancelled, it drops those in flight."""
        named = {"transactional_id": "fanout-demo"}
        try:
            async with (
                open_producer(self.address) as self._plain,
                open_producer(self.address, **named) as self._transactional,
            ):
                yield
        except KafkaError as error:
            raise DemoFailedError(f"the broker accepts no records: {error}") from error

    def faults(self) -> Mapping[str, int]:
        """Return the number of faults so far, by kind."""
        return self._faults

    async def put(self, records: Sequence[Record]) -> Sequence[SentRecord]:
        """Send records with the next action, if one is due, and return their places in order."""
        kind = self._due.popleft() if self._due else None
        try:
            match kind:
                case Kind.RESTART:
                    return await self._put_across("KillBroker", self._restart, records)
                case Kind.MOVE:
                    return await self._put_across("MoveLeaders", self._move_leaders, records)
                case Kind.HANG:
                    return await self._put_across("HangBroker", self._hang, records)
                case Kind.COMMIT:
                    return await self._put_in_a_transaction(records)
                case Kind.ABORT:
                    return await self._put_beside_aborted_copies(records)
                case _:
                    return await self._taken(await self._send(self._plain, records))
        except KafkaError as error:
            raise DemoFailedError(f"the broker has not accepted the records: {error}") from error

    async def perform(self, action: Action) -> ActionResult:
        """Add partitions, or schedule the action for the next records."""
        if action.kind is Kind.GROW:
            return await self._grow()
        self._due.append(action.kind)
        return ActionResult(action.kind.value)

    async def _grow(self) -> ActionResult:
        before, self._partitions = self._partitions, self._partitions + _GROWTH
        async with self._changing:
            await asyncio.to_thread(self._cluster.grow_topic, self._topic, self._partitions)
        for producer in (self._plain, self._transactional):
            while len(await producer.partitions_for(self._topic)) < self._partitions:
                await producer.client.force_metadata_update()
        born = tuple(f"{self._topic}-{number}" for number in range(before, self._partitions))
        return ActionResult(f"add the partitions {' and '.join(born)}", born=born)

    async def _put_across(
        self, fault: str, strike: Callable[[], None], records: Sequence[Record]
    ) -> list[SentRecord]:
        """Send records, and let a fault strike while they are in flight."""
        sent = await self._send(self._plain, records)
        async with self._changing:
            await asyncio.to_thread(strike)
        self._faults[fault] += 1
        return await self._taken(sent)

    def _restart(self) -> None:
        node = self._leader()
        self._cluster.kill(node)
        self._cluster.start(node)

    def _hang(self) -> None:
        node = self._leader()
        self._cluster.pause(node)
        time.sleep(_HANG)  # so that its cluster misses it
        self._cluster.resume(node)

    def _move_leaders(self) -> None:
        deadline = time.monotonic() + _MOVING
        while True:
            try:
                self._cluster.move_leaders()
            except OptionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK)  # a replica does not report that it is in sync again
            else:
                return

    def _leader(self) -> int:
        """Return the node that leads the first partition."""
        return max(1, self._cluster.leaders(self._topic)[0])

    async def _put_in_a_transaction(self, records: Sequence[Record]) -> list[SentRecord]:
        await self._transactional.begin_transaction()
        taken = await self._taken(await self._send(self._transactional, records))
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
            await self._taken(await self._send(self._transactional, half))
            taken += await self._taken(await self._send(self._plain, half))
        await self._transactional.abort_transaction()
        self._faults["AbortTransaction"] += 1
        return taken

    async def _send(self, producer: AIOKafkaProducer, records: Sequence[Record]) -> list[_Sent]:
        sent = []
        for record in records:
            time = event_time(record.number, self._first_event)
            key = record.key.encode()
            sent.append((time, await producer.send(self._topic, record.value, key, None, time)))
        return sent

    async def _taken(self, sent: Sequence[_Sent]) -> list[SentRecord]:
        """Wait until the broker has accepted records, and return their places."""
        places = await asyncio.gather(*(future for _, future in sent))
        if any(place.offset < 0 for place in places):
            raise DemoFailedError("the broker has accepted records without reporting their offsets")
        return [
            SentRecord(f"{self._topic}-{place.partition}", str(place.offset), time)
            for (time, _), place in zip(sent, places, strict=True)
        ]
