"""A cluster that follows a script: logs, leaders, and answers as a broker would give them."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from aiokafka.errors import (
    NotLeaderForPartitionError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)

from fanout.kafka import KafkaSource, Security
from fanout.kafka.cluster import Cluster
from fanout.kafka.partitions import Partition
from fanout.kafka.reading.kafka_source import open_kafka_connection
from fanout.kafka.reading.transport import (
    Fetched,
    FetchRefused,
    OffsetSpec,
    Throttled,
    TopicReplacedError,
    is_replaced,
)
from tests.support.kafka.record_batches import batch, marker, rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from fanout.core.positions import Cursor
    from fanout.kafka.reading.kafka_source import KafkaConnection
    from fanout.kafka.reading.transport import AbortedTransaction, FetchAnswer, PartitionFetch

__all__ = ("Log", "Request", "ScriptedCluster", "ScriptedSource")


@dataclass(slots=True)
class Log:
    """One partition's log.

    `end` is its high watermark; records at and after `open_from` are of an open transaction.
    """

    start: int = 0
    end: int = 0
    open_from: int | None = None
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    aborted: list[AbortedTransaction] = field(default_factory=list)
    times: dict[int, int] = field(default_factory=dict)

    @property
    def stable(self) -> int:
        return self.end if self.open_from is None else self.open_from

    def append(self, count: int, *, value: bytes | None = None, **how: object) -> None:
        """Append a batch of so many records."""
        records = rows(count)
        if value is not None:
            records = [row._replace(value=value) for row in records]
        self._append(batch(records, self.end, **how), count)  # type: ignore[arg-type]

    def end_transaction(self, kind: int, producer: int) -> None:
        """Append the marker of a transaction's end: COMMIT or ABORT."""
        self._append(marker(kind, self.end, producer), 1)

    def compact(self, until: int) -> None:
        """Leave a hole up to an offset, where all records were compacted."""
        self.end = until

    def expire(self, start: int) -> None:
        """Delete what comes before an offset."""
        self.start = start
        self.batches = [entry for entry in self.batches if entry[1] > start]

    def _append(self, data: bytes, count: int) -> None:
        self.batches.append((self.end, self.end + count, data))
        self.end += count

    def read(self, offset: int, end: int, limit: int, *, whole: bool) -> bytes:
        """Return the batches before an end, up to a limit; the first where it must come whole."""
        data = b""
        for base, after, raw in self.batches:
            if after <= offset or base >= end:
                continue
            if len(data) + len(raw) > limit and (data or not whole):
                break
            data += raw
        return data


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a broker, as it was sent."""

    at: float
    broker: int
    wanted: Mapping[Partition, PartitionFetch]
    max_wait: float


class ScriptedCluster:
    """Answer as brokers would, and note what was asked.

    Args:
        partitions: How many partitions the topic `t` has.
        fetch_max_bytes: The most bytes in one answer.
        latency: How long a broker takes at the least, in seconds.
        read_committed: Whether records of open transactions are kept back.
    """

    cluster_id = "scripted"
    throttled = 0

    def __init__(
        self,
        partitions: int = 1,
        *,
        fetch_max_bytes: int = 50 << 20,
        latency: float = 0.0,
        read_committed: bool = True,
    ) -> None:
        self.partitions = [Partition("t", number) for number in range(partitions)]
        self.logs = {partition: Log() for partition in self.partitions}
        self.leaders: dict[Partition, int | None] = dict.fromkeys(self.partitions, 1)
        """The leader of the partition."""
        self.known: dict[Partition, int | None] = dict(self.leaders)
        """Whom to ask, as the client knows."""
        self.replicas: dict[Partition, set[int]] = {}
        """The replicas that can be read from."""
        self.ids: dict[str, str] = {}
        """The ids of topics; brokers before Kafka 2.8 have none."""
        self.fetches: list[Request] = []
        self.looks: list[tuple[float, Sequence[str]]] = []
        self.looked_up: list[Mapping[Partition, OffsetSpec | int]] = []
        self.fetch_faults: deque[Exception | Callable[[], None]] = deque()
        self.throttles: deque[float] = deque()
        """For how many seconds the next answers throttle; they have no topics (KIP-219)."""
        self.answer_faults: dict[Partition, deque[Exception]] = {}
        self.look_faults: deque[Exception] = deque()
        self.offset_faults: deque[Exception] = deque()
        self.after_offsets: deque[Callable[[], None]] = deque()
        """What happens after each look-up of offsets, before the next one."""
        self._fetch_max_bytes = fetch_max_bytes
        self._latency = latency
        self._read_committed = read_committed
        self._changed = asyncio.Event()

    def log(self, number: int = 0) -> Log:
        return self.logs[Partition("t", number)]

    def changed(self) -> None:
        """Wake the requests that wait for data."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def topics(self) -> Mapping[str, Sequence[int]]:
        self.known = dict(self.leaders)
        return {"t": [partition.number for partition in self.logs]}

    async def describe(self, topics: Sequence[str]) -> Mapping[str, Sequence[int] | Exception]:
        self.looks.append((asyncio.get_running_loop().time(), topics))
        await asyncio.sleep(self._latency)
        if self.look_faults:
            raise self.look_faults.popleft()
        self.known = dict(self.leaders)
        numbers = [partition.number for partition in self.logs]
        return {topic: numbers or UnknownTopicOrPartitionError() for topic in topics}

    def leader(self, partition: Partition) -> int | None:
        return self.known.get(partition)

    def topic_id(self, topic: str) -> str:
        return self.ids.get(topic, "")

    async def offsets(
        self, wanted: Mapping[Partition, OffsetSpec | int]
    ) -> Mapping[Partition, int | None]:
        self.looked_up.append(wanted)
        await asyncio.sleep(self._latency)
        if self.offset_faults:
            raise self.offset_faults.popleft()
        found = {partition: self._offset(partition, what) for partition, what in wanted.items()}
        if self.after_offsets:
            self.after_offsets.popleft()()
        return found

    async def has_members(self, group_id: str) -> bool:
        del group_id
        return False

    async def committed(
        self, group_id: str, partitions: Sequence[Partition]
    ) -> Mapping[Partition, Cursor | None]:
        raise NotImplementedError

    async def commit(
        self, group_id: str, positions: Mapping[Partition, Cursor]
    ) -> Mapping[Partition, Exception]:
        raise NotImplementedError

    async def fetch(
        self, broker: int, wanted: Mapping[Partition, PartitionFetch], *, max_wait: float
    ) -> Mapping[Partition, FetchAnswer]:
        loop = asyncio.get_running_loop()
        self.fetches.append(Request(loop.time(), broker, wanted, max_wait))
        if self.fetch_faults:
            match self.fetch_faults.popleft():
                case Exception() as error:
                    raise error
                case fault:
                    fault()
        until = loop.time() + max(max_wait, self._latency)
        await asyncio.sleep(self._latency)
        if self.throttles:
            self.throttled += 1
            return dict.fromkeys(wanted, Throttled(self.throttles.popleft()))
        while True:
            changed, answers = self._changed, self._answers(broker, wanted)
            if loop.time() >= until or any(
                not isinstance(answer, Fetched) or answer.batches for answer in answers.values()
            ):
                return answers
            try:
                async with asyncio.timeout_at(until):
                    await changed.wait()
            except TimeoutError:
                return self._answers(broker, wanted)

    def _answers(
        self, broker: int, wanted: Mapping[Partition, PartitionFetch]
    ) -> dict[Partition, FetchAnswer]:
        """Fill an answer in the order of the request, until it is full (KIP-74)."""
        left, first, answers = self._fetch_max_bytes, True, dict[Partition, "FetchAnswer"]()
        for partition, want in wanted.items():
            error = self._error(broker, partition, want.offset)
            if is_replaced(self, partition, want.topic_id):
                error = TopicReplacedError()
            if error is not None:
                answers[partition] = FetchRefused(error)
                continue
            log = self.logs[partition]
            limit = min(want.max_bytes, max(left, 0))
            end = log.stable if self._read_committed else log.end
            data = log.read(want.offset, end, limit, whole=first)
            left -= len(data)
            first = first and not data
            answers[partition] = Fetched(log.end, log.stable, log.start, tuple(log.aborted), data)
        return answers

    def _error(self, broker: int, partition: Partition, offset: int) -> Exception | None:
        if faults := self.answer_faults.get(partition):
            return faults.popleft()
        error: Exception | None = None
        if partition not in self.logs:
            error = UnknownTopicOrPartitionError()
        elif broker not in {self.leaders[partition], *self.replicas.get(partition, ())}:
            error = NotLeaderForPartitionError()
        elif not self.logs[partition].start <= offset <= self.logs[partition].end:
            error = OffsetOutOfRangeError()
        return error

    def _offset(self, partition: Partition, what: OffsetSpec | int) -> int | None:
        log = self.logs[partition]
        match what:
            case OffsetSpec.EARLIEST:
                return log.start
            case OffsetSpec.LATEST:
                return log.stable if self._read_committed else log.end
            case _:
                late = (offset for offset, millis in sorted(log.times.items()) if millis >= what)
                return next(late, None)


class ScriptedSource:
    """A Kafka source that is connected to a scripted cluster.

    Args:
        cluster: The cluster.
        options: Those of a KafkaSource.
    """

    def __init__(self, cluster: ScriptedCluster, **options: Any) -> None:
        self._cluster = cluster
        self.source = KafkaSource(
            cluster=Cluster("localhost", security=Security(protocol="PLAINTEXT")),
            topics="t",
            **options,
        )
        self.schema, self.event_time = self.source.schema, self.source.event_time
        self.cursor, self.arrival = self.source.cursor, self.source.arrival

    def __repr__(self) -> str:
        return repr(self.source)

    @asynccontextmanager
    async def connect(self, *, available_now: bool = False) -> AsyncIterator[KafkaConnection]:
        opening = open_kafka_connection(
            self.source, self._cluster, Random(7), available_now=available_now
        )
        async with opening as connection:
            yield connection
