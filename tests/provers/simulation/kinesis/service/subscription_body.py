"""The body of one SubscribeToShard response, as the simulated service writes it."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing
from typing import TYPE_CHECKING, final

from fanout.errors import (
    SubscriptionEndedError,
)
from fanout.testing.kinesis.frames import encode_event
from tests.provers.simulation.kinesis.faults import KinesisFaultKind, KinesisFaultSite
from tests.provers.simulation.kinesis.service.event_faults import EventFaults
from tests.provers.simulation.kinesis.service.subscription_frames import SubscriptionFrames
from tests.provers.simulation.service_clock import EPOCH_MILLIS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.provers.simulation.armed_faults import ArmedFaults
    from tests.provers.simulation.job.process_run import ProcessRun
    from tests.provers.simulation.kinesis.faults import KinesisFault
    from tests.provers.simulation.kinesis.oracle.subscribe_attempts import SubscribeAttempt
    from tests.provers.simulation.kinesis.service.service import KinesisSimService
    from tests.provers.simulation.kinesis.service.stream_log import SourceShard

__all__ = ("SubscriptionBody",)


@final
class SubscriptionBody:
    """Write events from a place of a shard on, until the subscription's time is over.

    The service writes as soon as there is something to say, but never more ahead of its reader
    than the connection holds: what is written into a full connection waits, and may be old when it
    is read.

    Args:
        service: The service.
        armed: What goes wrong.
        run: The process of the subscription.
        attempt: The call that has opened it.
        shard: The shard.
        cursor: The number after which it begins.
    """

    def __init__(
        self,
        service: KinesisSimService,
        armed: ArmedFaults[KinesisFault],
        run: ProcessRun,
        *,
        attempt: SubscribeAttempt,
        shard: SourceShard,
        cursor: int,
    ) -> None:
        self._service = service
        self._armed = armed
        self._random = service.random
        self._window = ConnectionWindow(self._random.choice((1 << 10, 1 << 16, 1 << 20)))
        self.frames = SubscriptionFrames(service, run, attempt=attempt, shard=shard, cursor=cursor)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives.

        Raises:
            ClientPayloadError: The connection is reset.
        """
        frames = self.frames
        await self._begin()
        yield encode_event("initial-response", b"{}")
        spoiler = EventFaults(self.frames, self._random)
        at = self._service.now
        while True:
            at = max(self._due(at), self._window.free_at)
            await frames.wait(at)
            if at >= frames.ended_at or frames.ended_at <= self._service.now == at:
                for frame in frames.last_frames():
                    yield frame
                return
            if at >= frames.expires:
                frames.ends(SubscriptionEndedError)
                return
            fault = self._armed.strike(
                KinesisFaultSite.EVENT, self._service.now, shard=frames.shard.shard_id
            )
            if fault is None:
                for frame in frames.frames(frames.page(at)):
                    self._window.take(len(frame), self._service.now)
                    for chunk in frames.cut(frame):
                        yield chunk
            else:
                async with aclosing(spoiler.chunks(fault, at)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                at = max(at, self._service.now)
            if frames.over:
                return

    async def _begin(self) -> None:
        """Let the first frame come; it may be that none ever does."""
        kinds = {KinesisFaultKind.HEADERS_ONLY}
        now, shard_id = self._service.now, self.frames.shard.shard_id
        if (
            self._armed.strike(KinesisFaultSite.SUBSCRIBE, now, shard=shard_id, kinds=kinds)
            is not None
        ):
            await asyncio.get_running_loop().create_future()

    def _due(self, after: float) -> float:
        """Return when the service has something to write, not before a moment."""
        frames, shard = self.frames, self.frames.shard
        place = shard.after(frames.cursor)
        news = [after + self._service.rules.heartbeat, frames.expires, frames.ended_at]
        if place < len(shard.records):
            news.append(self._moment(shard.records[place].arrival + 1))
        elif shard.closed is not None:
            news.append(self._moment(shard.closed))
        return max(after, min(news))

    def _moment(self, arrival: int) -> float:
        return (arrival - EPOCH_MILLIS) / 1000 + 1e-6


@final
class ConnectionWindow:
    """Remember when a reader took what was written, and so when its connection had room again.

    Args:
        size: The bytes that the connection holds.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._written = 0
        self._taken: deque[tuple[int, float]] = deque()

    @property
    def free_at(self) -> float:
        """The virtual second at which there was room again; 0 where there always was."""
        freed = self._written - self._size
        while len(self._taken) > 1 and self._taken[1][0] <= freed:
            self._taken.popleft()
        if self._taken and self._taken[0][0] <= freed:
            return self._taken[0][1]
        return 0.0

    def take(self, nbytes: int, now: float) -> None:
        """Record that the reader takes some more bytes.

        Args:
            nbytes: How many.
            now: The virtual seconds.
        """
        self._written += nbytes
        self._taken.append((self._written, now))
