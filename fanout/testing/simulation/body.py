"""The body of one SubscribeToShard response, as the simulated service writes it."""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections import deque
from typing import TYPE_CHECKING, Final, final

import aiohttp

from fanout.errors import (
    DamagedFrameError,
    MalformedEventError,
    RemoteError,
    SubscriptionEndedError,
    UnconfirmedEndError,
)
from fanout.testing.frames import encode_event, encode_exception
from fanout.testing.simulation.faults import Kind, Site
from fanout.testing.simulation.log import EPOCH_MILLIS
from fanout.testing.simulation.service import Page
from fanout.testing.simulation.wire import OVERHEAD, event_frame, half_an_end

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from fanout.testing.simulation.armed import Armed
    from fanout.testing.simulation.attempts import Attempt
    from fanout.testing.simulation.faults import Fault
    from fanout.testing.simulation.life import Life
    from fanout.testing.simulation.log import SourceShard
    from fanout.testing.simulation.service import SimService

__all__ = ("SubscriptionBody",)

_MAX_PIECES: Final = 20
_OVERSIZE: Final = 1 << 31
_FOLLOWED: Final = {Kind.STALL, Kind.DRIP, Kind.EMPTY_EVENTS, Kind.DAMAGED}
_DAMAGE: Final = {Kind.DAMAGED: DamagedFrameError, Kind.HALF_AN_END: UnconfirmedEndError}


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
        service: SimService,
        armed: Armed,
        life: Life,
        *,
        attempt: Attempt,
        shard: SourceShard,
        cursor: int,
    ) -> None:
        self.life = life
        self.shard = shard
        self.cursor = cursor
        self._service = service
        self._armed = armed
        self._attempt = attempt
        self._random = service.random
        self._expires = service.now + service.rules.subscription_life
        self._ended_at = float("inf")
        self._refusal = ""
        self._wake: asyncio.Future[None] | None = None
        self._window = self._random.choice((1 << 10, 1 << 16, 1 << 20))
        self._whole_frames = self._random.random() < 0.5  # noqa: PLR2004 - as often as not
        self._dropped = False
        self._written = 0
        self._taken: deque[tuple[int, float]] = deque()

    def end(self, code: str) -> None:
        """End it with an error, behind what is written already."""
        self._ended_at, self._refusal = self._service.now, code
        self._wake_up()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives.

        Raises:
            ClientPayloadError: The connection is reset.
        """
        yield encode_event("initial-response", b"{}")
        at = self._service.now
        while True:
            at = max(self._due(at), self._room_at())
            await self._wait(at)
            if at >= self._ended_at or self._ended_at <= self._service.now == at:
                self._ends(RemoteError, self._refusal)
                yield encode_exception(self._refusal, "simulated")
                return
            if at >= self._expires:
                self._ends(SubscriptionEndedError)
                return
            fault = self._armed.strike(Site.EVENT, self._service.now, shard=self.shard.shard_id)
            if fault is None:
                page = self._page(at)
                frame = self._sent(event_frame(self.shard, page, self._service.log))
                for chunk in self._cut(frame):
                    yield chunk
                self._advance(page)
                if page.continuation is None:
                    return
                if page.records:
                    size = len(frame) - OVERHEAD
                    self.life.hands.take(self.shard.shard_id, page.records, size)
                continue
            async for chunk in self._spoilt(fault, at):
                yield chunk
            if fault.kind not in _FOLLOWED:
                return
            at = max(at, self._service.now)

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

    def _room_at(self) -> float:
        """Return when the connection had room again."""
        while len(self._taken) > 1 and self._taken[1][0] <= self._written - self._window:
            self._taken.popleft()
        if self._taken and self._taken[0][0] <= self._written - self._window:
            return self._taken[0][1]
        return 0.0

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

    def _page(self, at: float) -> Page:
        rules = self._service.rules
        return self._service.page(
            self.shard, self.cursor, at, rules.max_event_records, rules.max_event_bytes
        )

    def _advance(self, page: Page) -> None:
        if page.continuation is not None:
            self.cursor = page.continuation
        self.life.settled = True
        self._hears(page)

    def _hears(self, page: Page) -> None:
        self._dropped = False
        now, blocked = self._service.now, self.life.blocked
        self._attempt.hears(self.cursor, now, blocked, records=bool(page.records))

    def _ends(self, kind: type[Exception], code: str = "") -> None:
        if self._dropped and kind is SubscriptionEndedError:
            kind = MalformedEventError  # what was dropped may have been the end of the shard
        self.life.attempts.end(self._attempt, (kind, code), self._service.now)

    def _sent(self, frame: bytes) -> bytes:
        self._written += len(frame)
        self._taken.append((self._written, self._service.now))
        return frame

    def _cut(self, frame: bytes) -> Iterator[bytes]:
        """Cut a frame as a network might."""
        if self._whole_frames:
            yield frame
            return
        cuts = sorted(self._random.randrange(len(frame)) for _ in range(self._random.randrange(3)))
        for start, stop in zip([0, *cuts], [*cuts, len(frame)], strict=True):
            if stop > start:
                yield frame[start:stop]

    async def _spoilt(self, fault: Fault, at: float) -> AsyncGenerator[bytes, None]:
        """Yield what comes in place of an event."""
        page = self._page(at)
        frame = event_frame(self.shard, page, self._service.log)
        match fault.kind:
            case Kind.STALL:
                await asyncio.sleep(fault.seconds)
            case Kind.DRIP:
                async for piece in self._drip(frame, fault.seconds):
                    yield piece
                self._go_on_behind(page)
            case Kind.EMPTY_EVENTS:
                for _ in range(self._random.randint(1, 9)):
                    nothing = Page((), self.cursor, 1000)
                    yield event_frame(self.shard, nothing, self._service.log)
                    self._hears(nothing)
            case Kind.RESET:
                yield frame[: len(frame) // 2]
                error = aiohttp.ClientPayloadError("Response payload is not completed")
                self.life.attempts.end(self._attempt, error, self._service.now)
                raise error
            case Kind.ENDED_EARLY:
                self._ends(SubscriptionEndedError)
                return
            case Kind.RAISED:
                self._ends(RemoteError, fault.code)
                yield encode_exception(fault.code, "simulated")
            case _:
                yield self._damaged(fault.kind, frame, page)
                if fault.kind is Kind.DAMAGED:
                    self._drop(page)

    def _go_on_behind(self, page: Page) -> None:
        self._advance(page)
        if page.continuation is None:
            self.end("InternalFailureException")  # nothing comes behind the end

    def _drop(self, page: Page) -> None:
        """Go on behind a damaged frame that the reader has dropped, which moves it nowhere."""
        self._attempt.ending, self._dropped = None, True
        if page.continuation is None:
            self.end("InternalFailureException")
        else:
            self.cursor = page.continuation

    async def _drip(self, frame: bytes, seconds: float) -> AsyncGenerator[bytes, None]:
        size = -(-len(frame) // _MAX_PIECES)
        for start in range(0, len(frame), size):
            await asyncio.sleep(seconds)
            yield frame[start : start + size]

    def _damaged(self, kind: Kind, frame: bytes, page: Page) -> bytes:
        """Return bytes that no reader may believe."""
        self._ends(_DAMAGE.get(kind, MalformedEventError))
        match kind:
            case Kind.HALF_CLOSED:
                return frame[: len(frame) // 2]
            case Kind.DAMAGED:
                return frame[:-1] + bytes([frame[-1] ^ 1])
            case Kind.OVERSIZE:
                prelude = struct.pack("!II", _OVERSIZE, 0)
                return prelude + struct.pack("!I", zlib.crc32(prelude)) + frame
            case Kind.GARBAGE:
                return self._random.randbytes(64)
            case Kind.HALF_AN_END:
                return self._half_an_end(page)
            case _:
                raise AssertionError(f"{kind} does not damage an event")

    def _half_an_end(self, page: Page) -> bytes:
        exhausted = self._random.random() < 0.5  # noqa: PLR2004 - as often as not
        if page.continuation is not None and not exhausted:
            self.cursor = page.continuation
        elif page.records:
            self.cursor = page.records[-1].sequence
        if page.records or not exhausted:
            self._hears(page)
        until = None if exhausted else self.cursor
        return half_an_end(self.shard, page, self._service.log, until)
