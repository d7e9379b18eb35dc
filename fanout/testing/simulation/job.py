"""A user's job as it might be written: read, process, acknowledge, store the positions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, final

from fanout.core.opening import open_stream, origin
from fanout.errors import PositionError
from fanout.kinesis.source import KinesisSource, open_connection
from fanout.testing.simulation.faults import Kind, Site
from fanout.testing.simulation.loop import SimLoop
from fanout.testing.simulation.plan import stream_of
from fanout.testing.simulation.service import STREAM
from fanout.testing.simulation.transport import SimTransport

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from random import Random

    import pyarrow as pa

    from fanout.core.consumer import FanOut
    from fanout.core.events import Batch
    from fanout.core.positions import Cursor
    from fanout.kinesis.connection import KinesisConnection
    from fanout.testing.simulation.armed import Armed
    from fanout.testing.simulation.life import Life
    from fanout.testing.simulation.oracle import Oracle
    from fanout.testing.simulation.plan import Plan
    from fanout.testing.simulation.service import SimService

__all__ = ("Job", "SimSource")

_ON_READING: Final = {Kind.SLOW, Kind.BLOCKED, Kind.CANCELLED}


@final
@dataclass(frozen=True, slots=True)
class SimSource:
    """A Kinesis source whose calls a simulated service answers.

    Args:
        kinesis: What the user wrote down.
        transport: The calls.
        random: The source of randomness for the wait until a consumer is ACTIVE.
    """

    kinesis: KinesisSource
    transport: SimTransport
    random: Random

    @property
    def schema(self) -> pa.Schema:
        """The columns of a record."""
        return self.kinesis.schema

    def connect(self) -> AbstractAsyncContextManager[KinesisConnection]:
        """Connect as the real source does, over the simulated transport."""
        return open_connection(self.kinesis, self.transport, self.random)

    def cursor(self, records: pa.RecordBatch, row: int) -> Cursor:
        """Return the position after one row."""
        return self.kinesis.cursor(records, row)

    def arrival(self, records: pa.RecordBatch, row: int) -> int | None:
        """Return when a row arrived at the service."""
        return self.kinesis.arrival(records, row)


@final
class _Store:
    """Keep the newest positions and those before: a write may be torn, but never both."""

    def __init__(self, armed: Armed) -> None:
        self._armed = armed
        self._versions: list[str] = []

    @property
    def versions(self) -> list[str]:
        """What a restart finds, the newest first."""
        return self._versions[::-1]

    async def save(self, positions: str, life: Life) -> None:
        """Store positions.

        Raises:
            OSError: The store refuses them.

        Cancellation: they may be stored or not.
        """
        fault = self._armed.strike(Site.STORE, asyncio.get_running_loop().time())
        kind = None if fault is None else fault.kind
        if kind is Kind.STORE_FAILS:
            raise OSError("simulated")
        if fault is not None and kind is Kind.STORE_SLOW:
            await asyncio.sleep(fault.seconds)
        if not life.dead:
            torn = positions[: len(positions) // 2]
            self._versions = [*self._versions[-1:], torn if kind is Kind.STORE_TORN else positions]
        if kind is Kind.STORE_TORN:
            raise OSError("simulated: the store broke in the middle of a write")


@final
class Job:
    """Read a stream as one process does, again and again.

    Args:
        plan: How it reads.
        service: What answers it.
        armed: What goes wrong.
        oracle: What looks at everything that it gets.
    """

    def __init__(self, plan: Plan, service: SimService, armed: Armed, oracle: Oracle) -> None:
        self.finishing = False
        self.slowest_close = 0.0
        self._plan = plan
        self._service = service
        self._armed = armed
        self._oracle = oracle
        self._store = _Store(armed)
        self._random = stream_of(plan.seed, "job")
        self._product = stream_of(plan.seed, "product")
        self._leave: asyncio.Timeout | None = None

    def leave(self) -> None:
        """Let the job close its stream and end."""
        if self._leave is not None:
            self._leave.reschedule(self._service.now)
            self._leave = None

    async def live(self, life: Life) -> None:
        """Run from the stored positions until everything is read, or until told to leave.

        Raises:
            FanOutError: The stream cannot be opened, or has failed.
        """
        source = self._source(life)
        positions = await self._begin(source, life)
        async with open_stream(source, resume=positions, random=self._product) as stream:
            life.opened = True
            try:
                async with asyncio.timeout(None) as leave:
                    self._leave = leave
                    await self._read(stream, life)
            except TimeoutError:
                if not leave.expired():
                    raise
            finally:
                self._leave = None
            closing = self._service.now
        self.slowest_close = max(self.slowest_close, self._service.now - closing)

    @property
    def done(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self.finishing and not self._oracle.missing(self._plan.broken)

    def _source(self, life: Life) -> SimSource:
        began = self._service.clock - timedelta(seconds=self._service.now)
        start = self._plan.start
        kinesis = KinesisSource(
            stream=STREAM,
            consumer="reader",
            mode=self._plan.mode,
            start=began if start == "AT_TIMESTAMP" else start,
            on_data_loss="earliest",
        )
        return SimSource(kinesis, SimTransport(self._service, self._armed, life), self._product)

    async def _begin(self, source: SimSource, life: Life) -> str:
        """Return where to go on; at the very first, resolve the start and store it."""
        for positions in self._store.versions:
            try:
                self._oracle.begin(positions)
            except PositionError:
                continue
            return positions
        positions = await origin(source)
        self._oracle.begin(positions)
        while True:
            try:
                await self._store.save(positions, life)
            except OSError:
                await asyncio.sleep(1)
            else:
                return positions

    async def _read(self, stream: FanOut, life: Life) -> None:
        reads = 0
        while not self.done:
            patience = await self._pause()
            try:
                async with asyncio.timeout(patience) as waiting:
                    batches = await self._next(stream)
            except TimeoutError:
                if not waiting.expired():
                    raise
                continue
            for batch in batches:
                if not life.dead:
                    self._oracle.deliver(batch)
            for batch in batches:
                await stream.acknowledge(batch)
            reads += 1
            if reads % self._plan.checkpoint_every == 0:
                await self._checkpoint(stream, life)

    async def _pause(self) -> float:
        """Let what happens to a job happen; return how long it waits for records."""
        fault = self._armed.strike(Site.JOB, self._service.now, kinds=_ON_READING)
        if fault is None:
            return self._random.uniform(1, 300)
        if fault.kind is Kind.SLOW:
            await asyncio.sleep(fault.seconds)
        if fault.kind is Kind.BLOCKED:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, SimLoop), "time is only virtual on a simulated loop"
            loop.block(fault.seconds)
        return fault.seconds

    async def _next(self, stream: FanOut) -> tuple[Batch, ...]:
        if self._plan.reading == "iterate":
            return (await anext(stream),)
        drained = await stream.drain(
            max_records=self._random.choice((1, 2, 7, 1000)),
            max_bytes=self._random.choice((1, 300, 1 << 20)),
            max_wait=self._random.choice((0.0, 0.01, 1.0, 20.0)),
        )
        return drained.batches

    async def _checkpoint(self, stream: FanOut, life: Life) -> None:
        positions = stream.positions
        if not life.dead:
            self._oracle.check_stored(positions)
        try:
            await self._store.save(positions, life)
        except OSError:
            return  # the next checkpoint stores these positions too
