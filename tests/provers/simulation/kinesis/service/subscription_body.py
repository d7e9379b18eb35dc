"""The body of one SubscribeToShard response, as the simulated service writes it."""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, final

import aiohttp

from fanout.errors import (
    DamagedFrameError,
    MalformedEventError,
    RemoteError,
    SubscriptionEndedError,
)
from fanout.testing.kinesis.frames import encode_event, encode_exception
from fanout.testing.virtual_time.loop import running_loop
from tests.provers.simulation.kinesis.faults import KinesisFaultKind, KinesisFaultSite
from tests.provers.simulation.kinesis.service.event_faults import EventFaults, damaged, pieces_of
from tests.provers.simulation.kinesis.service.pages import event_of
from tests.provers.simulation.kinesis.service.window import ConnectionWindow
from tests.provers.simulation.randomness import happens
from tests.provers.simulation.service_clock import EPOCH_MILLIS, millis

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator

    from tests.provers.simulation.armed_faults import ArmedFaults
    from tests.provers.simulation.job.process_life import ProcessLife
    from tests.provers.simulation.kinesis.faults import KinesisFault
    from tests.provers.simulation.kinesis.oracle.subscribe_attempts import SubscribeAttempt
    from tests.provers.simulation.kinesis.service.pages import ShardPage
    from tests.provers.simulation.kinesis.service.service import KinesisSimService
    from tests.provers.simulation.kinesis.service.stream_log import SourceShard

__all__ = ("SubscriptionBody",)

_OVERHEAD: Final = len(encode_event("SubscribeToShardEvent", b""))


@final
class SubscriptionBody:
    """Write events from a place of a shard on, until the subscription's time is over.

    The service writes as soon as there is something to say, but never more ahead of its reader
    than the connection holds: what is written into a full connection waits, and may be old when it
    is read.

    Args:
        service: The service.
        armed: What goes wrong.
        life: Whose subscription it is.
        attempt: The call that has opened it.
        shard: The shard.
        cursor: The number after which it begins.
    """

    def __init__(
        self,
        service: KinesisSimService,
        armed: ArmedFaults[KinesisFault],
        life: ProcessLife,
        *,
        attempt: SubscribeAttempt,
        shard: SourceShard,
        cursor: int,
    ) -> None:
        self.life = life
        self.shard = shard
        self.cursor = cursor
        self.over = False
        self._service = service
        self._armed = armed
        self._attempt = attempt
        self._random = service.random
        self._expires = service.now + service.rules.subscription_life
        self._ended_at = float("inf")
        self._refusal: str | None = None
        self._stale = False
        self._last: tuple[ShardPage, bytes] | None = None
        self._dropped = False
        self._wake: asyncio.Future[None] | None = None
        self._window = ConnectionWindow(self._random.choice((1 << 10, 1 << 16, 1 << 20)))
        self._whole_frames = happens(self._random, 0.5)

    def end(self, code: str | None, *, stale: bool = False) -> None:
        """End it behind what is written already; what ended it first counts.

        Args:
            code: With which error; None to cut the connection.
            stale: Whether it repeats its last event before.
        """
        if self._ended_at < float("inf"):
            return
        self._ended_at, self._refusal, self._stale = self._service.now, code, stale
        self._wake_up()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives.

        Raises:
            ClientPayloadError: The connection is reset.
        """
        await self._begin()
        yield encode_event("initial-response", b"{}")
        spoiler = EventFaults(self, self._random)
        at = self._service.now
        while True:
            at = max(self._due(at), self._window.free_at)
            await self._wait(at)
            if at >= self._ended_at or self._ended_at <= self._service.now == at:
                for frame in self._last_words():
                    yield frame
                return
            if at >= self._expires:
                self.ends(SubscriptionEndedError)
                return
            fault = self._armed.strike(
                KinesisFaultSite.EVENT, self._service.now, shard=self.shard.shard_id
            )
            if fault is None:
                for frame in self.frames(self.page(at)):
                    self._window.take(len(frame), self._service.now)
                    for chunk in self._cut(frame):
                        yield chunk
            else:
                async with aclosing(spoiler.chunks(fault, at)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                at = max(at, self._service.now)
            if self.over:
                return

    async def _begin(self) -> None:
        """Let the first frame come; it may be that none ever does."""
        kinds = {KinesisFaultKind.HEADERS_ONLY}
        now, shard_id = self._service.now, self.shard.shard_id
        if (
            self._armed.strike(KinesisFaultSite.SUBSCRIBE, now, shard=shard_id, kinds=kinds)
            is not None
        ):
            await asyncio.get_running_loop().create_future()

    def _last_words(self) -> Iterator[bytes]:
        """Yield what a connection says that is ended by somebody else."""
        if self._refusal is None:
            raise self.reset()
        if self._stale and self._last is not None:
            page, frame = self._last
            if page.records:
                self.ends(MalformedEventError)  # they come again
            yield frame
            self.hears(page)
        self.ends(RemoteError, self._refusal)
        yield encode_exception(self._refusal, "simulated")

    def _due(self, after: float) -> float:
        """Return when the service has something to write, not before a moment."""
        shard = self.shard
        place = shard.after(self.cursor)
        news = [after + self._service.rules.heartbeat, self._expires, self._ended_at]
        if place < len(shard.records):
            news.append(self._moment(shard.records[place].arrival + 1))
        elif shard.closed is not None:
            news.append(self._moment(shard.closed))
        return max(after, min(news))

    def _moment(self, arrival: int) -> float:
        return (arrival - EPOCH_MILLIS) / 1000 + 1e-6

    async def _wait(self, at: float) -> None:
        if at <= self._service.now:
            return
        loop = asyncio.get_running_loop()
        self._wake = loop.create_future()
        timer = loop.call_at(at, self._wake_up)
        try:
            await self._wake
        finally:
            timer.cancel()
            self._wake = None

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    @property
    def newest(self) -> int:
        """A number below those of every record that is still to come."""
        return self.shard.number_at(millis(self._service.now)) - 1

    @property
    def millis_behind(self) -> int:
        """How far its reader is behind, roughly."""
        arrived = self.shard.arrived(millis(self._service.now))
        return 1000 if self.shard.after(self.cursor) < arrived else 0

    def damage_next(self) -> None:
        """Damage for good what comes next."""
        self._service.damage.begin(self.shard, self.cursor, self._random)

    def page(self, at: float) -> ShardPage:
        """Return what it has to say at a moment."""
        rules = self._service.rules
        return self._service.page(
            self.shard, self.cursor, at, rules.max_event_records, rules.max_event_bytes
        )

    def frames(self, page: ShardPage) -> Iterator[bytes]:
        """Yield the frame of a page, and go on behind it once the reader has it."""
        frame, shard_id = self.frame_of(page), self.shard.shard_id
        if self._is_damaged(page):
            yield from self.damaged_frames(page, KinesisFaultKind.STAYS_DAMAGED)
            return
        if self.is_refused(page):
            self.ends(MalformedEventError)
        self._service.sends(self.life, self._attempt, self.shard, page)
        self._last = page, frame
        yield frame
        self.advance(page)
        if page.continuation is not None and page.records:
            self.life.held.take(shard_id, page.records, len(frame) - _OVERHEAD)

    def damaged_frames(self, page: ShardPage, kind: KinesisFaultKind) -> Iterator[bytes]:
        """Yield the frame of a page with a wrong checksum, and go on behind it.

        Args:
            page: What was to be sent.
            kind: How it is damaged.
        """
        self.ends(DamagedFrameError)
        if kind is KinesisFaultKind.STAYS_DAMAGED:
            self._service.sends_damage(self.life, self._attempt, kind)
        yield damaged(self.frame_of(page))
        # Its reader has dropped it, which moves it nowhere.
        self._attempt.ending, self._dropped = None, True
        self._service.damage.drop(self.shard.shard_id, page)
        if page.continuation is None:
            self.end("InternalFailureException")  # nothing comes behind the end
        else:
            self.cursor = page.continuation

    def is_sound(self, page: ShardPage) -> bool:
        """Say whether its reader can read a page."""
        return not self._is_damaged(page) and not self.is_refused(page)

    def _is_damaged(self, page: ShardPage) -> bool:
        damage, shard_id = self._service.damage, self.shard.shard_id
        return bool(page.records) and damage.covers(shard_id, page.records[0].sequence)

    def is_refused(self, page: ShardPage) -> bool:
        """Say whether its reader has to fail of a page."""
        return self._service.is_broken(self.shard, page) and self._service.fails_of_aggregates

    def frame_of(self, page: ShardPage) -> bytes:
        """Write a page."""
        return event_of(page, self._service.log.children(self.shard.shard_id))

    def advance(self, page: ShardPage) -> None:
        """Go on behind a page that its reader has."""
        if page.continuation is None:
            self.over = True
        else:
            self.cursor = page.continuation
        self.life.settled = True
        self.hears(page)

    def hears(self, page: ShardPage) -> None:
        """Take note that its reader has a page, and waits for the next."""
        self._dropped = False
        now, blocked = self._service.now, running_loop().blocked
        self._attempt.hears(self.cursor, now, blocked, records=bool(page.records))

    def ends(self, kind: type[Exception], code: str = "") -> None:
        """Take note of the error that its reader has to make of what comes now.

        Args:
            kind: The type of the error that its reader has to make of it.
            code: Its code, where it has one.
        """
        if self._dropped and kind is SubscriptionEndedError:
            kind = MalformedEventError  # what was dropped may have been the end of the shard
        self.life.attempts.end(self._attempt, (kind, code), self._service.now)

    def reset(self) -> Exception:
        """Take note that its connection is reset; return the error."""
        error = aiohttp.ClientPayloadError("Response payload is not completed")
        self.life.attempts.end(self._attempt, error, self._service.now)
        return error

    def _cut(self, frame: bytes) -> Iterator[bytes]:
        """Cut a frame as a network might."""
        return self.shown([frame] if self._whole_frames else pieces_of(frame, self._random))

    def shown(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the pieces of a frame, of which only the last one shows what it is worth."""
        *before, last = pieces
        if before:
            self._attempt.whole_at = math.inf
            yield from before
            self._attempt.whole_at = self._service.now
        yield last
