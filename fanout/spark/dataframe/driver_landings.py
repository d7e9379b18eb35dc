"""Land sources with landers on Spark's executors, in the driver, for the planners of queries."""

from __future__ import annotations

import asyncio
import logging
import secrets
import tempfile
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, final
from uuid import uuid4

import msgspec
from py4j.protocol import Py4JError

from fanout.core.cancellation import in_thread
from fanout.core.error_text import text_of
from fanout.core.remote_error import ErrorWire
from fanout.landers.channel import ChannelClosedError
from fanout.landers.control_handshake import SECRET_BYTES
from fanout.landers.control_server import ControlServer
from fanout.landers.messages import Failed, MessageError
from fanout.landing.lander import open_landing
from fanout.landing.log.reading import BatchLimits
from fanout.spark.dataframe.landing_call import (
    Begin,
    DriverEndpoint,
    Ended,
    Entry,
    LandingOpened,
    from_planner,
)
from fanout.spark.dataframe.options import COMPRESSION
from fanout.spark.landers.jobs import is_stopped
from fanout.spark.landers.stream import LandersStream
from fanout.spark.workers.loop_thread import LoopThread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from pyspark.sql import SparkSession

    from fanout.core.checkpoint import Checkpoint
    from fanout.core.source import Source
    from fanout.core.statistics import Statistics
    from fanout.landers.channel import Channel
    from fanout.landing.lander import Landing
    from fanout.landing.log.reading import LandingPlace, Reading
    from fanout.landing.segments.segment_filler import NoRecords, Stopped
    from fanout.landing.segments.segments import LandedBatch
    from fanout.spark.dataframe.landing_thread import LandingOptions
    from fanout.spark.landers.stream import OnExecutors

log = logging.getLogger(__name__)

# As in a landing of one process.
_MAX_RECORDS: Final = 5_000_000
_MAX_BYTES: Final = 128 << 20
# What landers land in this time is one entry: an entry has the positions of all splits.
_ENTRY_SECONDS: Final = 0.25


@final
@dataclass(frozen=True, slots=True)
class RemoteLanding:
    """A source that landers land on the executors of a session, and where."""

    spark: SparkSession
    source: Source
    options: LandingOptions
    _: KW_ONLY
    landers: OnExecutors

    def open(
        self, loop: LoopThread, *, available_now: bool
    ) -> AbstractAsyncContextManager[Landing]:
        """Land while the block runs in the loop thread; `available_now` ends with what is there.

        Raises:
            FanOutError: As `fanout.land` and `LandersStream` do.
        """
        return open_landing(
            self.source,
            self.options.location,
            partial(self._read, loop, bounded=available_now),
            keep=self.options.keep,
            storage_options=self.options.storage or None,
            spark_log=False,
            new_columns=self.options.new_columns,
        )

    def has_ended(self) -> bool:
        """Say whether the session was stopped, or its JVM has ended, so that no query can land."""
        try:
            return is_stopped(self.spark.sparkContext)
        except (Py4JError, OSError):
            return True

    @asynccontextmanager
    async def _read(
        self, loop: LoopThread, place: LandingPlace, source: Source, *, bounded: bool
    ) -> AsyncIterator[Reading]:
        max_wait = self.options.max_wait
        pause = min(_ENTRY_SECONDS, max_wait / 2)

        def start() -> _Landers:
            stream = LandersStream(
                self.spark,
                loop,
                source,
                place,
                self.landers,
                limits=BatchLimits(_MAX_RECORDS, _MAX_BYTES, max_wait - pause),
                bounded=bounded,
                eager=bounded,
                compression=COMPRESSION,
            )
            resources.callback(stream.close)
            return _Landers(stream, pause)

        with ExitStack() as resources:
            try:
                landers = await in_thread(start)
                yield landers, landers
            finally:
                await in_thread(resources.close)


@final
class _Landers:
    """The stream of landers, as a landing takes it; `pause` is the seconds between two entries."""

    def __init__(self, stream: LandersStream, pause: float) -> None:
        self._stream = stream
        self._pause = pause
        self._next_at = 0.0

    async def run(self) -> None:
        """Wait for the end, which is also that of another run that takes over."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._stream.stop()

    async def next(self, idle: float) -> LandedBatch | NoRecords | Stopped:
        time = asyncio.get_running_loop().time
        await asyncio.sleep(self._next_at - time())
        batch = await self._stream.next(idle)
        self._next_at = time() + self._pause
        return batch

    async def acknowledge(self, positions: Checkpoint) -> None:
        await self._stream.acknowledge_landed(positions)

    def stop(self) -> None:
        self._stream.stop()

    def statistics(self) -> Statistics:
        return self._stream.statistics()


@final
class DriverLandings:
    """Land for planners, which are processes of this machine, while they are connected.

    A planner lives as long as its query. So nothing is landed without a query, and nothing has to
    be told when one ends. Between queries a socket waits for planners of this machine.
    """

    def __init__(self) -> None:
        self._landings: dict[str, RemoteLanding] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        secret = secrets.token_bytes(SECRET_BYTES)
        with ExitStack() as resources:
            # Python makes the directory for this user alone, and removes it at its end.
            directory = tempfile.TemporaryDirectory(prefix="fanout-")
            self._secret_file = Path(resources.enter_context(directory), "secret")
            self._secret_file.write_bytes(secret)
            self._loop = resources.enter_context(LoopThread())
            control = partial(ControlServer, "127.0.0.1", 0, secret, self._serve)
            self._address = self._loop.hold("planners", control).address
            self._resources = resources.pop_all()

    def add(self, landing: RemoteLanding) -> DriverEndpoint:
        """Return how a planner has a source landed; the same for a landing that equals another.

        Those of sessions that were stopped are forgotten.
        """
        for name, known in [*self._landings.items()]:
            if known == landing:
                return self._endpoint(name)
            if known.has_ended():
                del self._landings[name]
        name = uuid4().hex
        self._landings[name] = landing
        return self._endpoint(name)

    def _endpoint(self, name: str) -> DriverEndpoint:
        return DriverEndpoint(self._address, str(self._secret_file), name)

    def close(self) -> None:
        """End all landings, and listen no longer."""
        self._resources.close()

    async def _serve(self, channel: Channel) -> None:
        """Land for one planner until it has gone."""
        try:
            begin = from_planner(await channel.receive())
        except MessageError as error:
            log.warning("a planner is not served: %s", text_of(error))
            return
        if not isinstance(begin, Begin) or begin.landing not in self._landings:
            return
        landing = self._landings[begin.landing]
        location = landing.options.location
        if (ending := self._ending.get(location)) is not None:
            await asyncio.wait([ending])  # the query was stopped just now
        wanted = asyncio.Semaphore(0)
        async with asyncio.TaskGroup() as tasks:
            landed = tasks.create_task(self._land(landing, begin, channel, wanted))
            try:
                with suppress(ChannelClosedError, MessageError):
                    while True:
                        from_planner(await channel.receive())
                        wanted.release()
            finally:
                self._ending[location] = landed
                landed.cancel()
        if self._ending.get(location) is landed:
            del self._ending[location]

    async def _land(
        self, landing: RemoteLanding, begin: Begin, channel: Channel, wanted: asyncio.Semaphore
    ) -> None:
        with suppress(ChannelClosedError):
            try:
                async with landing.open(self._loop, available_now=begin.available_now) as entries:
                    await channel.send(msgspec.json.encode(LandingOpened()))
                    await self._hand_over(entries, channel, wanted)
            except Exception as error:  # noqa: BLE001 - the query gets any error
                await self._tell(error, channel)

    async def _hand_over(
        self, entries: Landing, channel: Channel, wanted: asyncio.Semaphore
    ) -> None:
        """Land an entry whenever the planner wants one; the error of it is told at once."""
        try:
            await wanted.acquire()
            async for entry in entries:
                found = entries.statistics()
                told = Entry(entry.number, entry.bytes, found.totals.records, found.lag)
                await channel.send(msgspec.json.encode(told))
                await wanted.acquire()
            await channel.send(msgspec.json.encode(Ended()))
        except ChannelClosedError:
            raise
        except Exception as error:  # noqa: BLE001 - the query gets any error
            await self._tell(error, channel)

    async def _tell(self, error: Exception, channel: Channel) -> None:
        log.warning("landing on executors has ended: %s", text_of(error))
        await channel.send(msgspec.json.encode(Failed(ErrorWire.with_cause(error))))


@cache
def of_this_process() -> DriverLandings:
    """Return those of this process, which begin with the first call."""
    return DriverLandings()
