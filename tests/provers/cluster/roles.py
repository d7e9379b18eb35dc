"""What of ours reads and writes while nodes fail: a source, a writer, a share group, a shuffle."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections import Counter
from typing import Final, final

import pyarrow as pa

import fanout
from fanout.errors import FanOutError
from fanout.kafka import (
    Cluster,
    KafkaShareSource,
    KafkaSource,
    Security,
    ShuffleSource,
    ShuffleWriterOptions,
    open_shuffle_writer,
    open_writer,
)
from tests.provers.cluster.records import PARTITIONS, Progress, Seen

__all__ = ("Role", "ShareRole", "ShuffleRole", "SourceRole", "WriterRole", "cluster_of")

_AGAIN: Final = 0.5
_KEYS: Final = 6


def cluster_of(servers: str) -> Cluster:
    """Return the cluster as users name it."""
    return Cluster(servers, security=Security(protocol="PLAINTEXT"))


class Role(ABC):
    """Something that runs until it is cancelled, and is begun again when it fails."""

    name: str

    def __init__(self, servers: str) -> None:
        self.kafka = cluster_of(servers)
        self.progress = Progress()
        self.failures: Counter[str] = Counter()

    async def run(self) -> None:
        """Run, and begin again after an error."""
        while True:
            try:
                await self.work()
            except FanOutError as error:
                self.failures[f"{type(error).__name__}: {error}"] += 1
                await asyncio.sleep(_AGAIN)

    @abstractmethod
    async def work(self) -> None:
        """Read or write for ever."""


@final
class SourceRole(Role):
    """Read a topic; it goes on where it was after an error."""

    name = "source"

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(servers)
        self.seen = Seen()
        self.progress = Progress(f"{topic}-{number}" for number in range(PARTITIONS))
        self._source = KafkaSource(
            cluster=self.kafka, topics=topic, start="earliest", group_id="ours"
        )

    async def work(self) -> None:
        """Read and acknowledge."""
        async with fanout.open(self._source) as stream:
            async for batch in stream:
                if batch.num_records:
                    self.seen.add(batch.records.column("value").to_pylist())
                    self.progress.mark(batch.split.id)
                await stream.acknowledge(batch)


@final
class WriterRole(Role):
    """Copy a topic exactly once."""

    name = "writer"

    def __init__(self, servers: str, topic: str, target: str) -> None:
        super().__init__(servers)
        self._source = KafkaSource(cluster=self.kafka, topics=topic, start="earliest")
        self._target = target

    async def work(self) -> None:
        """Copy in transactions that hold the positions as well."""
        async with open_writer(self.kafka, self._target, transactional_id="copy") as writer:
            resume = await writer.positions(self._source)
            async with fanout.open(self._source, resume=resume) as stream:
                while True:
                    drained = await stream.drain(max_wait=0.2, first_wait=1.0)
                    for batch in drained.batches:
                        await writer.write(batch.records.select(["key", "value"]))
                    await writer.commit(drained)
                    if drained.num_records:
                        self.progress.mark()


@final
class ShareRole(Role):
    """Read a topic as a share group, which may deliver a record again."""

    name = "share"

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(servers)
        self.seen = Seen()
        self._last = 0
        self._source = KafkaShareSource(
            cluster=self.kafka,
            topics=topic,
            group_id="ours-share",
            group_settings={"share.auto.offset.reset": "earliest"},
        )

    async def work(self) -> None:
        """Read and acknowledge."""
        async with fanout.open(self._source) as stream:
            try:
                await self._read(stream)
            finally:
                self._last += stream.lending.statistics.last_deliveries

    async def _read(self, stream: fanout.FanOut) -> None:
        """Read on while acknowledgements are stored, as librdkafka does by itself."""
        async with asyncio.TaskGroup() as tasks:
            async for batch in stream:
                if batch.num_records:
                    self.seen.add(batch.records.column("value").to_pylist())
                    self.progress.mark()
                tasks.create_task(self._acknowledge(stream, batch))

    async def _acknowledge(self, stream: fanout.FanOut, batch: fanout.Batch) -> None:
        try:
            await stream.acknowledge(batch)
        except fanout.AcknowledgementError:
            self.failures["acknowledgement refused"] += 1

    def compare(self, put: Seen) -> dict[str, int]:
        """Return how many records there are, how often some came again, and what never came."""
        seen = self.seen.times
        return {
            "records": len(seen),
            "delivered again": (seen - put.times).total(),
            "for the last time": self._last,
            "lost": len(put.times.keys() - seen.keys()),
        }


@final
class ShuffleRole(Role):
    """Write a shuffle exactly once, and read it."""

    name = "shuffle"

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(servers)
        self.seen = Seen()
        self.counts: dict[str, int] = {}
        self._topic = topic
        self._runs = 0
        self._source = ShuffleSource(
            KafkaSource(cluster=self.kafka, topics=topic, start="earliest")
        )

    async def read(self) -> None:
        """Read for ever; it goes on where it was after an error."""
        async with fanout.open(self._source) as stream:
            async for batch in stream:
                if batch.num_records:
                    self.seen.add(batch.records.column("value").to_pylist())
                    self.progress.mark()

    async def work(self) -> None:
        """Write keys of this run: after an error nobody knows how far the last one has come."""
        self._runs += 1
        keys = [f"{self._runs}-{key}" for key in range(_KEYS)]
        options = ShuffleWriterOptions(cluster=self.kafka, topic=self._topic)
        async with open_shuffle_writer(options) as out:
            number = 0
            while True:
                values = [json.dumps({"key": key, "number": number}).encode() for key in keys]
                columns = [pa.array(key.encode() for key in keys), pa.array(values)]
                await out.write(pa.record_batch(columns, names=["key", "value"]))
                await out.commit()
                number += 1
                self.counts |= dict.fromkeys(keys, number)
                await asyncio.sleep(0.2)
