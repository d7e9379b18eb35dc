"""Topics of a real broker, read through share groups."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

import fanout
from fanout.core.backoff import Backoff
from fanout.kafka import KafkaShareSource
from fanout.kafka.cluster import Cluster
from tests.support.kafka.topics import PLAINTEXT, new_topic, seeded
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from fanout.core.source import RecordLocks
    from fanout.core.statistics import LendingStatistics
    from fanout.testing.kafka.broker import KafkaBroker
    from tests.support.kafka.topics import Topic

_NAMES = itertools.count(1)

# Far longer than any test takes, so that no record is delivered again by chance.
LONG = {"share.auto.offset.reset": "earliest", "share.record.lock.duration.ms": "30000"}
# Where locks expire; `Group.lengthen_locks` keeps those of later deliveries from it.
SHORT = LONG | {"share.record.lock.duration.ms": "3000"}
BRIEF = LONG | {"share.record.lock.duration.ms": "1000"}


class Group:
    """One share group that reads one topic; its records are identified by partition and offset."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.id = f"share{next(_NAMES)}"

    def source(self, **options: Any) -> KafkaShareSource:
        chosen: dict[str, Any] = {
            "cluster": Cluster(self.topic.broker.bootstrap_servers, security=PLAINTEXT),
            "topics": self.topic.name,
            "group_id": self.id,
            "group_settings": LONG,
            "consumer_options": {"fetch.max.wait.ms": 100},  # a client leaves no sooner
            "backoff": Backoff(base=0.01, cap=0.1),
        }
        return KafkaShareSource(**chosen | options)

    def open(self, **options: Any) -> AbstractAsyncContextManager[fanout.FanOut]:
        return fanout.open(self.source(**options), random=seeded())

    async def lengthen_locks(self, stream: fanout.FanOut) -> None:
        """Let the locks of later deliveries be LONG ones, so that a busy machine is in time."""
        async with self.source().connect():  # which sets the group up
            pass
        own: Any = locks(stream)
        own._shared.lock_seconds = 30.0

    async def put(self, count: int, *, partition: int = 0, **options: Any) -> None:
        await asyncio.to_thread(self.topic.put, count, partition=partition, **options)

    @property
    def written(self) -> set[tuple[int, int]]:
        """The partition and the offset of each written record that was not aborted."""
        return {
            (partition, offset)
            for partition, records in self.topic.log.items()
            for offset, _ in records
        }


async def new_group(broker: KafkaBroker, count: int = 0, **options: Any) -> Group:
    """Create a topic with some records, and a group for it."""
    group = Group(await new_topic(broker, **options))
    partitions = options.get("partitions", 1)
    for partition in range(partitions if count else 0):
        await group.put(count // partitions, partition=partition)
    return group


def where(batch: fanout.Batch) -> list[tuple[int, int]]:
    """Return the partition and the offset of each record."""
    columns = (batch.records.column(name).to_pylist() for name in ("partition", "offset"))
    return list(zip(*columns, strict=True))


def offsets(batch: fanout.Batch) -> list[int]:
    return [offset for _, offset in where(batch)]


def deliveries(batch: fanout.Batch) -> set[int]:
    return set(batch.records.column("deliveryCount").to_pylist())


async def take(stream: fanout.FanOut, count: int) -> Counter[tuple[int, int]]:
    """Read and acknowledge until so many different records were delivered."""
    seen: Counter[tuple[int, int]] = Counter()
    async with asyncio.timeout(PATIENCE):
        while len(seen) < count:
            batch = await anext(stream)
            seen.update(where(batch))
            await stream.acknowledge(batch)
    return seen


async def first(stream: fanout.FanOut) -> fanout.Batch:
    """Return the next batch."""
    async with asyncio.timeout(PATIENCE):
        return await anext(stream)


async def nothing_comes(stream: fanout.FanOut, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await anext(stream)
    except TimeoutError:
        return True
    return False


def locks(stream: fanout.FanOut) -> RecordLocks:
    assert stream.capabilities.lending is not None
    return stream.capabilities.lending


def lent(stream: fanout.FanOut) -> LendingStatistics:
    return stream.lending.statistics


async def until(stream: fanout.FanOut, condition: Callable[[LendingStatistics], object]) -> None:
    """Poll the statistics until a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition(lent(stream)):  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.01)
