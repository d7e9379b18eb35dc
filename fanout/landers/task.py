"""The work of a lander's process: connect to the coordinator, and land until it says stop."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, final

from fanout.core.cancellation import in_thread
from fanout.core.error_text import text_of
from fanout.core.remote_error import ErrorWire
from fanout.errors import SetupError
from fanout.landers.channel import Channel, ChannelClosedError
from fanout.landers.control_client import connect
from fanout.landers.control_handshake import lander_tls
from fanout.landers.lander import LEASE, Lander
from fanout.landers.messages import (
    Failed,
    Hello,
    MessageError,
    Stop,
    Superseded,
    Welcome,
    encode,
    from_coordinator,
)
from fanout.landing.segments.segments import SegmentLog
from fanout.landing.storage.opening import open_storage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.core.source import Connection, Source
    from fanout.landing.log.reading import BatchLimits
    from fanout.landing.segments.partitions import PartitionField
    from fanout.landing.storage.storage import Storage

Serve: TypeAlias = Callable[[Channel, int], Awaitable[bool]]
"""Serves a session on its channel, with its epoch; returns whether the coordinator said stop."""

log = logging.getLogger(__name__)

# How long a lander without a coordinator tries to reach it; then its task fails.
_RECONNECT_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.5
# How often it asks whether a newer attempt is gone.
_STANDBY_SECONDS: Final = 5.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LanderTask:
    """What each lander of a query does, as a value that travels to its executor."""

    source: Source
    location: str  # the storage of segments, as an executor reaches it
    storage_options: Mapping[str, str] | None = field(repr=False)
    run: int  # the number of the query's run
    limits: BatchLimits  # how large a segment becomes, and how long its first record waits
    available_now: bool  # whether what is there at the start is read alone
    compression: str | None = None  # as Parquet names it; None for segments that are read once
    partitions: tuple[PartitionField, ...] = ()  # the directories into which files are put
    address: tuple[str, int]  # the host and port of the coordinator
    secret: bytes = field(repr=False)  # the query's
    certificate: str | None = None  # the query's, for a channel over TLS

    def __call__(self, lander: int, attempt: int) -> None:
        """Land until the coordinator says stop; it blocks. A later attempt has a higher number.

        A coordinator that cannot be reached for a minute is a SetupError; a connection that breaks
        again and again is a ChannelClosedError.
        """
        asyncio.run(self._run(lander, attempt))

    async def _run(self, lander: int, attempt: int) -> None:
        hello = Hello(lander, attempt, platform.node(), os.getpid())
        async with AsyncExitStack() as resources:
            try:
                storage = await self._open_storage(resources)
                opening = self.source.connect(available_now=self.available_now)
                connection = await resources.enter_async_context(opening)
            except Exception as error:  # noqa: BLE001 - the query gets any error
                await self._sessions(hello, partial(_give_up, error))
                return
            await self._sessions(hello, partial(self._land, connection, storage))

    async def _open_storage(self, resources: AsyncExitStack) -> Storage:
        storage = await in_thread(lambda: open_storage(self.location, self.storage_options))
        resources.push_async_callback(lambda: in_thread(storage.close))
        return storage

    async def _sessions(self, hello: Hello, serve: Serve) -> None:
        """Serve one session after the other, until the coordinator says stop."""
        loop = asyncio.get_running_loop()
        tls = None if self.certificate is None else lander_tls(self.certificate)
        lost_at = loop.time()
        while True:
            pause = _PAUSE_SECONDS
            try:
                async with connect(self.address, self.secret, tls=tls) as channel:
                    epoch = await _begin(channel, hello)
                    if epoch is None:
                        pause = _STANDBY_SECONDS
                    elif await serve(channel, epoch):
                        return
                lost_at = loop.time()
            except (SetupError, ChannelClosedError, MessageError, TimeoutError) as error:
                if loop.time() - lost_at >= _RECONNECT_SECONDS:
                    raise
                log.info("the coordinator is not there: %s", text_of(error))
            await asyncio.sleep(pause)

    async def _land(
        self, connection: Connection, storage: Storage, channel: Channel, epoch: int
    ) -> bool:
        segments = SegmentLog(
            await in_thread(storage.scratch),
            self.run,
            self.source.schema,
            session=epoch,
            max_records=self.limits.max_records,
            max_bytes=self.limits.max_bytes,
            compression=self.compression,
        )
        lander = Lander(
            channel,
            self.source,
            connection,
            storage,
            segments,
            max_wait=self.limits.max_wait,
            bounded=self.available_now,
            partitions=self.partitions,
        )
        return await lander.run()


async def _begin(channel: Channel, hello: Hello) -> int | None:
    """Begin a session; return its epoch, or None while a newer attempt has one.

    Spark takes the end of any attempt for the end of its task, and would end the newer one.
    """
    await channel.send(encode(hello))
    async with asyncio.timeout(LEASE):
        welcome = from_coordinator(await channel.receive())
    if isinstance(welcome, Superseded):
        return None
    if not isinstance(welcome, Welcome):
        raise MessageError("the coordinator began with another message than its welcome")
    return welcome.epoch


async def _give_up(error: Exception, channel: Channel, epoch: int) -> bool:
    """Tell why this lander cannot begin; that ends the query, unless the lander has read before."""
    del epoch
    refused = SetupError(f"a lander on {platform.node()} cannot begin: {text_of(error)}")
    refused.__cause__ = error
    await channel.send(encode(Failed(ErrorWire.with_cause(refused), begun=False)))
    async with asyncio.timeout(LEASE):
        while not isinstance(from_coordinator(await channel.receive()), Stop):
            pass
    return True
