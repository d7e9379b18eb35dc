"""The frames of one subscription, and where its reader stands behind each."""

from __future__ import annotations

import asyncio
import math
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
from tests.provers.simulation.kinesis.faults import KinesisFaultKind
from tests.provers.simulation.kinesis.service.pages import damaged, event_of, pieces_of
from tests.provers.simulation.randomness import happens
from tests.provers.simulation.service_clock import millis

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.provers.simulation.job.process_run import ProcessRun
    from tests.provers.simulation.kinesis.oracle.subscribe_attempts import SubscribeAttempt
    from tests.provers.simulation.kinesis.service.pages import ShardPage
    from tests.provers.simulation.kinesis.service.service import KinesisSimService
    from tests.provers.simulation.kinesis.service.stream_log import SourceShard

__all__ = ("SubscriptionFrames",)

_OVERHEAD: Final = len(encode_event("SubscribeToShardEvent", b""))


@final
class SubscriptionFrames:
    """Write the frames of a subscription, and note what its reader has to make of each.

    `ended_at` is when something else than its time ends it; `expires` when its time is over; `over`
    whether it has written its last frame.

    Args:
        service: The service.
        run: The process that has the subscription.
        attempt: The call that has opened it.
        shard: The shard.
        cursor: The number after which it begins.
    """

    def __init__(
        self,
        service: KinesisSimService,
        run: ProcessRun,
        *,
        attempt: SubscribeAttempt,
        shard: SourceShard,
        cursor: int,
    ) -> None:
        self.run = run
        self.shard = shard
        self.cursor = cursor
        self.over = False
        self.random = service.random
        self.ended_at = math.inf
        self.expires = service.now + service.rules.subscription_life
        self._service = service
        self._attempt = attempt
        self._refusal: str | None = None
        self._stale = False
        self._last: tuple[ShardPage, bytes] | None = None
        self._dropped = False
        self._wake: asyncio.Future[None] | None = None
        self._whole_frames = happens(self.random, 0.5)

    def end(self, code: str | None, *, stale: bool = False) -> None:
        """End it behind what is written already; what ended it first counts.

        Args:
            code: With which error; None to cut the connection.
            stale: Whether it repeats its last event before.
        """
        if self.ended_at < float("inf"):
            return
        self.ended_at, self._refusal, self._stale = self._service.now, code, stale
        self._wake_up()

    async def wait(self, at: float) -> None:
        """Wait until a moment, or until it is ended."""
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
        """The lag of its reader, roughly."""
        arrived = self.shard.arrived(millis(self._service.now))
        return 1000 if self.shard.after(self.cursor) < arrived else 0

    def damage_next(self) -> None:
        """Damage for good what comes next."""
        self._service.damage.begin(self.shard, self.cursor, self.random)

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
        self._service.sends(self.run, self._attempt, self.shard, page)
        self._last = page, frame
        yield frame
        self.advance(page)
        if page.continuation is not None and page.records:
            self.run.held.take(shard_id, page.records, len(frame) - _OVERHEAD)

    def damaged_frames(self, page: ShardPage, kind: KinesisFaultKind) -> Iterator[bytes]:
        """Yield the frame of a page with a wrong checksum, and go on behind it.

        Args:
            page: What was to be sent.
            kind: How it is damaged.
        """
        self.ends(DamagedFrameError)
        if kind is KinesisFaultKind.STAYS_DAMAGED:
            self._service.sends_damage(self.run, self._attempt, kind)
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
        self.run.settled = True
        self.received(page)

    def received(self, page: ShardPage) -> None:
        """Record that its reader has a page, and waits for the next."""
        self._dropped = False
        now, blocked = self._service.now, running_loop().blocked
        self._attempt.receive(self.cursor, now, blocked, records=bool(page.records))

    def ends(self, kind: type[Exception], code: str = "") -> None:
        """Record the error that its reader has to make of what comes now.

        Args:
            kind: The type of the error that its reader has to make of it.
            code: Its code, where it has one.
        """
        if self._dropped and kind is SubscriptionEndedError:
            kind = MalformedEventError  # what was dropped may have been the end of the shard
        self.run.attempts.end(self._attempt, (kind, code), self._service.now)

    def reset(self) -> Exception:
        """Record that its connection is reset; return the error."""
        error = aiohttp.ClientPayloadError("Response payload is not completed")
        self.run.attempts.end(self._attempt, error, self._service.now)
        return error

    def cut(self, frame: bytes) -> Iterator[bytes]:
        """Cut a frame as a network might."""
        return self.shown([frame] if self._whole_frames else pieces_of(frame, self.random))

    def shown(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the pieces of a frame, of which only the last one shows what it is worth."""
        *before, last = pieces
        if before:
            self._attempt.whole_at = math.inf
            yield from before
            self._attempt.whole_at = self._service.now
        yield last

    def last_frames(self) -> Iterator[bytes]:
        """Yield the last frames of a connection that something else ends."""
        if self._refusal is None:
            raise self.reset()
        if self._stale and self._last is not None:
            page, frame = self._last
            if page.records:
                self.ends(MalformedEventError)  # they come again
            yield frame
            self.received(page)
        self.ends(RemoteError, self._refusal)
        yield encode_exception(self._refusal, "simulated")
