"""The faults that strike an event of a subscription on its way to the reader."""

from __future__ import annotations

import asyncio
import json
import struct
import zlib
from typing import TYPE_CHECKING, Final, final

from fanout.errors import (
    MalformedEventError,
    RemoteError,
    SubscriptionEndedError,
    UnconfirmedEndError,
)
from fanout.testing.kinesis.frames import child_shard, encode_event, encode_exception, payload_of
from tests.provers.simulation.kinesis.faults import KinesisFaultKind
from tests.provers.simulation.kinesis.service.pages import ShardPage, pieces_of
from tests.provers.simulation.randomness import happens

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from random import Random

    from tests.provers.simulation.kinesis.faults import KinesisFault
    from tests.provers.simulation.kinesis.service.subscription_frames import SubscriptionFrames

__all__ = ("UNKNOWN_CHILD", "EventFaults")

_OVERSIZE: Final = 1 << 31
UNKNOWN_CHILD: Final = child_shard("shardId-999999999999", ["shardId-000000000000"], 0, 1)


@final
class EventFaults:
    """Write something else in place of an event.

    Args:
        frames: The frames of the subscription.
        random: Where chance comes from.
    """

    def __init__(self, frames: SubscriptionFrames, random: Random) -> None:
        self._frames = frames
        self._random = random

    async def chunks(self, fault: KinesisFault, at: float) -> AsyncGenerator[bytes, None]:
        """Yield what comes in place of the event that is due at a moment.

        Args:
            fault: What goes wrong.
            at: The moment, in virtual seconds.

        Raises:
            ClientPayloadError: The connection is reset.
        """
        frames, page = self._frames, self._frames.page(at)
        match fault.kind:
            case KinesisFaultKind.STALL:
                await asyncio.sleep(fault.seconds)
            case KinesisFaultKind.DRIP:
                seconds = fault.seconds if frames.is_sound(page) else 0.0
                for frame in frames.frames(page):
                    for number, piece in enumerate(frames.shown(pieces_of(frame, None))):
                        if number and seconds:
                            await asyncio.sleep(seconds)
                        yield piece
            case (
                KinesisFaultKind.EMPTY_EVENTS
                | KinesisFaultKind.IDLE_PROGRESS
                | KinesisFaultKind.STAYS_DAMAGED
                | KinesisFaultKind.DAMAGED
            ):
                for frame in self._passing(fault.kind, page):
                    yield frame
            case _:
                for frame in self._last(fault, page):
                    yield frame
                frames.over = True

    def _passing(self, kind: KinesisFaultKind, page: ShardPage) -> Iterator[bytes]:
        """Yield frames behind which the subscription goes on."""
        frames = self._frames
        match kind:
            case KinesisFaultKind.EMPTY_EVENTS:
                for _ in range(self._random.randint(1, 9)):
                    nothing = ShardPage((), frames.cursor, 1000)
                    yield frames.frame_of(nothing)
                    frames.received(nothing)
            case KinesisFaultKind.IDLE_PROGRESS:
                for idle in self._idle_pages():
                    yield from frames.frames(idle)
            case KinesisFaultKind.STAYS_DAMAGED:
                frames.damage_next()
            case _:
                yield from frames.damaged_frames(page, kind)

    def _last(self, fault: KinesisFault, page: ShardPage) -> Iterator[bytes]:
        """Yield the last frames of a subscription."""
        frames = self._frames
        match fault.kind:
            case KinesisFaultKind.REPEATED | KinesisFaultKind.ENDED_BEHIND:
                yield from frames.frames(page)
                if not frames.over:
                    yield from self._behind(fault.kind, page)
            case KinesisFaultKind.RESET:
                yield _half(frames.frame_of(page))
                raise frames.reset()
            case KinesisFaultKind.ENDED_EARLY:
                frames.ends(SubscriptionEndedError)
            case KinesisFaultKind.RAISED:
                frames.ends(RemoteError, fault.code)
                yield encode_exception(fault.code, "simulated")
            case KinesisFaultKind.HALF_AN_END:
                refused = frames.is_refused(page)
                frames.ends(MalformedEventError if refused else UnconfirmedEndError)
                yield self._half_an_end(page, believed=not refused)
            case kind:
                frames.ends(MalformedEventError)
                yield self._unbelievable(kind, frames.frame_of(page))

    def _behind(self, kind: KinesisFaultKind, page: ShardPage) -> Iterator[bytes]:
        if kind is KinesisFaultKind.REPEATED and page.records and self._frames.is_sound(page):
            self._frames.ends(MalformedEventError)
            yield self._frames.frame_of(page)
        else:
            self._frames.ends(SubscriptionEndedError)

    def _idle_pages(self) -> Iterator[ShardPage]:
        """Go on without records: closer and closer to the next one, and never behind it."""
        frames = self._frames
        place = frames.shard.after(frames.cursor)
        if place == len(frames.shard.records):
            return
        for _ in range(self._random.randint(1, 5)):
            before = (frames.cursor + frames.shard.numbers[place]) // 2
            yield ShardPage(
                (), max(frames.cursor, min(before, frames.newest)), frames.millis_behind
            )

    def _unbelievable(self, kind: KinesisFaultKind, frame: bytes) -> bytes:
        """Return bytes that no reader may believe."""
        match kind:
            case KinesisFaultKind.HALF_CLOSED:
                return _half(frame)
            case KinesisFaultKind.OVERSIZE:
                prelude = struct.pack("!II", _OVERSIZE, 0)
                return prelude + struct.pack("!I", zlib.crc32(prelude)) + frame
            case KinesisFaultKind.GARBAGE:
                return self._random.randbytes(64)
            case _:
                raise AssertionError(f"{kind} does not happen to an event")

    def _half_an_end(self, page: ShardPage, *, believed: bool) -> bytes:
        frames = self._frames
        document = json.loads(payload_of(frames.frame_of(page)))
        exhausted = happens(self._random, 0.5)
        until = page.continuation
        if until is None or exhausted:
            until = page.records[-1].sequence if page.records else frames.cursor
        # A gap is not reported before an unconfirmed end.
        reported = any(not row.foreign for record in page.records for row in record.rows)
        if believed and (reported or not exhausted):
            frames.cursor = until
            frames.received(page)
        if exhausted:
            document.pop("ContinuationSequenceNumber", None)
            document.pop("ChildShards", None)
        else:
            document.setdefault("ChildShards", [UNKNOWN_CHILD])
            document["ContinuationSequenceNumber"] = str(until)
        return encode_event("SubscribeToShardEvent", json.dumps(document).encode())


def _half(frame: bytes) -> bytes:
    return frame[: len(frame) // 2]
