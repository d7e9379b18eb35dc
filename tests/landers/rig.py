"""A coordinator and landers in one process, over channels in memory."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from fanout.core.opening import open_lineage
from fanout.landers.assignment import Assignment
from fanout.landers.channel import ChannelClosedError
from fanout.landers.coordinator import Coordinator
from fanout.landers.lander import Lander
from fanout.landers.messages import Hello, Welcome, encode, from_coordinator
from fanout.landing.segments.segments import LandedBatch, SegmentLog
from fanout.landing.storage.local_storage import LocalStorage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from fanout.core.source import Source
    from fanout.core.statistics import OnResubscribe


class MemoryChannel:
    """One end of a connection; what is sent at one end is received at the other.

    Attributes:
        cut: Whether what is sent gets lost, as in a network that is cut.
    """

    def __init__(self) -> None:
        self.cut = False
        self.other = self
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._closed = False

    @classmethod
    def pair(cls) -> tuple[MemoryChannel, MemoryChannel]:
        """Return both ends of a connection."""
        one, other = cls(), cls()
        one.other, other.other = other, one
        return one, other

    async def send(self, message: bytes) -> None:
        if self._closed:
            raise ChannelClosedError("the channel is closed")
        if not self.cut:
            self.other._messages.put_nowait(message)

    async def receive(self) -> bytes:
        message = await self._messages.get()
        if message is None:
            self._messages.put_nowait(None)
            raise ChannelClosedError("the channel is closed")
        return message

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._messages.put_nowait(None)
            if not self.cut:
                self.other._messages.put_nowait(None)
                self.other._closed = True


class Rig:
    """Landers that read a source for a coordinator.

    Args:
        source: The source.
        directory: Where segments are.
        bounded: Whether what is there now is read alone.
        max_records: The most records in a segment.
        min_records: The records for which a batch waits.
        max_wait: Seconds from the first record of a segment until it is landed.
        on_resubscribe: Called with each resubscription.
    """

    def __init__(
        self,
        source: Source,
        directory: Path,
        *,
        bounded: bool = False,
        max_records: int = 100,
        min_records: int = 1,
        max_wait: float = 0.05,
        on_resubscribe: OnResubscribe | None = None,
    ) -> None:
        self.source = source
        self._directory = directory
        self.max_records = max_records
        self._min_records = min_records
        self._max_wait = max_wait
        self.channels: dict[int, MemoryChannel] = {}
        self.landers: dict[int, Lander] = {}
        self._bounded = bounded
        self._on_resubscribe = on_resubscribe
        self._landers: dict[int, asyncio.Task[bool]] = {}
        self._attempts = 0

    @asynccontextmanager
    async def running(self, *landers: int) -> AsyncIterator[Rig]:
        """Run a coordinator and landers."""
        self.storage = await asyncio.to_thread(LocalStorage, self._directory)
        opening = open_lineage(self.source, available_now=self._bounded, random=Random(1))
        async with opening as opened:
            self.connection, self.progress = opened.connection, opened.progress
            self.coordinator = Coordinator(
                opened.connection,
                opened.progress,
                opened.lineage,
                Assignment(max(1, len(landers))),
                bounded=self._bounded,
                min_records=self._min_records,
                lifecycle=opened.lifecycle,
                on_resubscribe=self._on_resubscribe,
            )
            async with asyncio.TaskGroup() as self._tasks:
                running = self._tasks.create_task(self.coordinator.run())
                for lander in landers:
                    self.start(lander)
                try:
                    yield self
                finally:
                    running.cancel()
                    for task in self._landers.values():
                        task.cancel()
                    for channel in self.channels.values():
                        await channel.close()

    def start(self, lander: int) -> None:
        """Start a lander, or its next attempt."""
        self._attempts += 1
        ours, theirs = MemoryChannel.pair()
        self._tasks.create_task(self.coordinator.serve(theirs))
        self.channels[lander] = ours
        self._landers[lander] = self._tasks.create_task(self._land(lander, ours, self._attempts))

    async def kill(self, lander: int, error: Exception | None = None) -> None:
        """End a lander at once, as SIGKILL does: it says nothing more, and Spark notices."""
        self.channels[lander].cut = True
        await self._end(lander)
        self.coordinator.task_ended(lander, error)

    async def break_off(self, lander: int) -> None:
        """End a lander at once; its connection breaks, and Spark has not noticed yet."""
        await self._end(lander)
        await self.channels[lander].close()

    async def _end(self, lander: int) -> None:
        task = self._landers.pop(lander)
        task.cancel()
        await asyncio.wait([task])

    async def _land(self, lander: int, channel: MemoryChannel, attempt: int) -> bool:
        async with self.source.connect(available_now=self._bounded) as connection:
            await channel.send(encode(Hello(lander, attempt, "here", 1)))
            welcome = from_coordinator(await channel.receive())
            assert isinstance(welcome, Welcome)
            segments = SegmentLog(
                await asyncio.to_thread(self.storage.scratch),
                1,
                self.source.schema,
                session=welcome.epoch,
                max_records=self.max_records,
                max_bytes=1 << 20,
            )
            self.landers[lander] = Lander(
                channel,
                self.source,
                connection,
                self.storage,
                segments,
                max_wait=self._max_wait,
                bounded=self._bounded,
            )
            return await self.landers[lander].run()

    async def batch(self, idle: float = 20.0) -> LandedBatch:
        """Take the next batch."""
        batch = await self.coordinator.next(idle)
        assert isinstance(batch, LandedBatch), batch
        return batch

    async def rows(self, batch: LandedBatch) -> list[tuple[str, int]]:
        """Return the splits and sequence numbers of a batch."""
        rows: list[tuple[str, int]] = []
        for file in batch.segments:
            table = await asyncio.to_thread(pq.read_table, self.storage.root / file.name)
            rows += zip(table["shard"].to_pylist(), table["sequence"].to_pylist(), strict=True)
        return rows

    async def read(self, count: int) -> list[tuple[str, int]]:
        """Take batches until there are so many records."""
        rows: list[tuple[str, int]] = []
        while len(rows) < count:
            rows += await self.rows(await self.batch())
        return rows


async def until(condition: Callable[[], object]) -> None:
    """Wait for what other tasks bring about."""
    while not condition():  # noqa: ASYNC110 - nothing signals what tasks of others do
        await asyncio.sleep(0.001)
