"""Read the splits that a coordinator assigns, and land their records in segments."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, final

from fanout.core.backoff import FullJitter
from fanout.core.cancellation import in_thread
from fanout.core.checkpoint import from_wire, to_wire
from fanout.core.error_text import name_or_other, text_of
from fanout.core.event_time import EventTime, Watermarks
from fanout.core.events import Split
from fanout.core.fan_out import FanOut
from fanout.core.lifecycle_log import LifecycleLog
from fanout.core.progress import Progress
from fanout.core.remote_error import ErrorWire, sendable
from fanout.core.subscribers import Subscribers
from fanout.landers.channel import ChannelClosedError
from fanout.landers.messages import (
    Assign,
    Assigned,
    Beat,
    Credit,
    Failed,
    Landed,
    MessageError,
    Piece,
    Release,
    Released,
    Report,
    Resubscription,
    SplitReport,
    SplitWire,
    Stop,
    Wanted,
    encode,
    from_coordinator,
)
from fanout.landing.segments.bad_records import stage_bad_records
from fanout.landing.segments.partitions import publish_segment
from fanout.landing.segments.segment_filler import NoRecords, SegmentFiller
from fanout.landing.segments.segments import Filled

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from fanout.core.checkpoint import Checkpoint, SplitPosition
    from fanout.core.events import End
    from fanout.core.source import Connection, Source
    from fanout.core.statistics import SplitStatistics
    from fanout.landers.channel import Channel
    from fanout.landers.messages import FromCoordinator, FromLander
    from fanout.landing.segments.bad_records import StagedFile
    from fanout.landing.segments.partitions import PartitionField
    from fanout.landing.segments.segments import (
        OpenSegment,
        SegmentFile,
        SegmentLog,
        SplitPart,
    )
    from fanout.landing.storage.storage import Storage

log = logging.getLogger(__name__)

LEASE: Final = 5.0
"""Seconds without a message of the coordinator after which a lander reads no longer."""

_REPORT_SECONDS: Final = 1.0
# How soon splits that have ended or moved on without records are told to the coordinator.
_IDLE_SECONDS: Final = 0.5
# How often positions of splits without records are told, where nothing else is to be told.
_POSITIONS_SECONDS: Final = 60.0
# So many resubscriptions are told of in a report, with so many characters of their causes.
_MAX_RESUBSCRIBED: Final = 1000
_MAX_CAUSE: Final = 500


@final
class Lander:
    """One session of a lander: from the coordinator's welcome to the end of their connection.

    Its segments have names that no other session uses. A segment is landed `max_wait` seconds after
    its first record, where it may be. In a bounded stream splits are read to their newest records
    alone; then nothing waits for more.
    """

    def __init__(
        self,
        channel: Channel,
        source: Source,
        connection: Connection,
        storage: Storage,
        segments: SegmentLog,
        *,
        max_wait: float,
        bounded: bool = False,
        partitions: tuple[PartitionField, ...] = (),
        random: Random | None = None,
    ) -> None:
        self._channel = channel
        self._storage = storage
        event_time = source.event_time if isinstance(source.event_time, EventTime) else None
        # The watermark is the coordinator's. Which splits are idle is known where they are read.
        idleness = None if event_time is None else event_time.idleness
        self._watermarks = (
            None if idleness is None else Watermarks(idleness=idleness, bounded=False)
        )
        self._progress = Progress(connection.identity, source.arrival, watermarks=self._watermarks)
        self._lifecycle = LifecycleLog(connection.identity, connection.capabilities)
        self._progress.on_gap_measured = self._lifecycle.measured
        self._subscribers = Subscribers(
            connection,
            jitter=FullJitter(connection.pacing.backoff, random or Random()),  # noqa: S311 - jitter
            on_resubscribe=self._resubscribes,
            lifecycle=self._lifecycle,
            event_time=event_time,
        )
        self._stream = FanOut(source, connection, self._progress, self._subscribers)
        self._filler = SegmentFiller(
            self._stream, segments, max_wait=max_wait, bounded=False, eager=False
        )
        self._bounded = bounded
        self._partitions = partitions
        self._landed: dict[str, Piece] = {}  # what was told of each split last
        self._landed_at = 0.0
        self._seq = 0
        self._children: dict[str, tuple[Split, ...]] = {}
        self._releasing: set[str] = set()
        self._credit = 0
        self._credited = asyncio.Event()
        self._reported: dict[str, SplitStatistics] = {}
        self._throttled = 0
        self._cause = connection.capabilities.terms.cause
        self._resubscribed: deque[Resubscription] = deque(maxlen=_MAX_RESUBSCRIBED)

    async def run(self) -> bool:
        """Read and land until the coordinator says stop, or is lost; return whether it said stop.

        Cancellation: all subscriptions are closed; records that were not landed come again.
        """
        # What is being published may take long: the subscriptions are closed before.
        async with asyncio.TaskGroup() as tasks, self._subscribers.running(self._has_ended):
            work = (self._fill(), self._land(), self._report())
            working = [tasks.create_task(one) for one in work]
            try:
                stopped = await self._listen()
            finally:
                for task in working:
                    task.cancel()
                self._lifecycle.close()
        return stopped

    async def _listen(self) -> bool:
        """Do what the coordinator says; return whether it has said stop."""
        try:
            while True:
                async with asyncio.timeout(LEASE):
                    message = from_coordinator(await self._channel.receive())
                if isinstance(message, Stop):
                    return True
                self._obey(message)
        except TimeoutError:
            log.warning("the coordinator was silent for %g s; reading stops", LEASE)
        except (ChannelClosedError, MessageError) as error:
            log.info("the session has ended: %s", text_of(error))
        return False

    def _obey(self, message: FromCoordinator) -> None:
        match message:
            case Assign(splits):
                self._assign(splits)
            case Release(split_ids):
                for split_id in split_ids:
                    self._filler.between_drains(partial(self._release, split_id))
            case Wanted():
                self._filler.hurry()
            case Credit(segments):
                self._credit += segments
                self._credited.set()
            case Beat():
                pass
            case _:
                raise MessageError("the coordinator sent a message at the wrong time")

    def _assign(self, splits: Iterable[Assigned]) -> None:
        for one in splits:
            split, position = Split(one.split, one.parents), from_wire(one.position)
            self._progress.add(split, position, newest=one.newest, watermark=one.watermark)
            self._landed[split.id] = Piece(
                split.id, after=one.position, until=one.position, watermark=one.watermark
            )
            self._subscribers.start(split, position)

    async def _release(self, split_id: str) -> None:
        """Close the subscription of a split; no drain is under way."""
        if split_id in self._subscribers.by_split:
            await self._send_report()  # with the subscription its counters go
            await self._subscribers.stop(split_id)
            if split_id in self._landed:  # its end may have been told meanwhile
                self._releasing.add(split_id)
                self._filler.hurry()

    def _has_ended(self, end: End) -> None:
        self._children[end.split.id] = end.children
        self._filler.hurry()  # its children wait for what is before the end

    async def _fill(self) -> None:
        # The next call of the filler raises what has ended it.
        with suppress(Exception):
            await self._filler.run()

    async def _land(self) -> None:
        """Publish segments and tell the coordinator, as far as it gives credit."""
        try:
            while True:
                await self._until_credited()
                match await self._filler.next(_IDLE_SECONDS):
                    case Filled(segment, positions):
                        # Before the filler drains more.
                        moved = self._moved_with(segment.parts, positions)
                        files, bad = await in_thread(partial(self._publish, segment))
                        self._credit -= 1
                        await self._tell(files, moved, bad)
                    case NoRecords():
                        await self._tell_without_records()
                    case _:
                        return
                await self._tell_released()
        except ChannelClosedError:
            pass
        except Exception as error:  # noqa: BLE001 - the query gets any error
            log.warning("landing ends: %s", text_of(error))
            with suppress(ChannelClosedError):
                await self._send(Failed(ErrorWire.with_cause(error)))

    def _publish(self, segment: OpenSegment) -> tuple[tuple[SegmentFile, ...], StagedFile | None]:
        bad = stage_bad_records(self._storage, segment)
        return publish_segment(self._storage, segment, self._partitions), bad

    async def _until_credited(self) -> None:
        """Wait for credit, and tell meanwhile of splits of which no records wait for it."""
        while self._credit < 1:
            self._credited.clear()
            await self._tell_without_records()
            await self._tell_released()
            with suppress(TimeoutError):
                async with asyncio.timeout(_IDLE_SECONDS):
                    await self._credited.wait()

    def _moved_with(
        self, parts: Mapping[str, SplitPart], positions: Checkpoint
    ) -> tuple[Piece, ...]:
        """Return the splits that move on with a segment.

        `positions` are where they are after it. Where the other splits are may have been told
        since.
        """
        splits = {split_id: positions.splits[split_id] for split_id in parts}
        return (*self._moved(splits, parts), *self._moved_without_records(parts))

    def _moved_without_records(self, others: Collection[str] = ()) -> tuple[Piece, ...]:
        """Return the splits that have moved on and of which no records wait, without others."""
        waiting = {*self._filler.waiting, *others}
        delivered = self._stream.delivered.splits
        return self._moved({id_: at for id_, at in delivered.items() if id_ not in waiting}, {})

    def _moved(
        self, splits: Mapping[str, SplitPosition], parts: Mapping[str, SplitPart]
    ) -> tuple[Piece, ...]:
        # Positions may be from before a split was released, and perhaps assigned once more.
        pieces = (
            self._piece(stored, parts.get(split_id))
            for split_id, stored in splits.items()
            if split_id in self._landed and stored.split is self._progress[split_id].split
        )
        return tuple(
            piece for piece in pieces if _place(piece) != _place(self._landed[piece.split])
        )

    def _piece(self, stored: SplitPosition, part: SplitPart | None) -> Piece:
        split_id = stored.split.id
        now = self._progress[split_id]
        until, last = to_wire(stored.position), self._landed[split_id]
        # Records behind the positions may be in the next segment.
        exact = to_wire(now.delivered) == until
        landed = last.watermark if part is None else part.watermark
        return Piece(
            split_id,
            after=last.until,
            until=until,
            ended=stored.ended,
            children=tuple(SplitWire(c.id, c.parents) for c in self._children.get(split_id, ())),
            caught_up=last.caught_up or (exact and now.caught_up),
            newest=stored.newest,
            watermark=now.watermark if exact else landed,
            records=0 if part is None else part.records,
            idle=exact and self._is_idle(split_id),
        )

    def _is_idle(self, split_id: str) -> bool:
        now = asyncio.get_running_loop().time()
        return self._watermarks is not None and self._watermarks.is_idle(split_id, now)

    def _is_due(self, moved: Iterable[Piece]) -> bool:
        """Return whether progress without records is to be told now."""
        if any(
            piece.ended
            or piece.caught_up != self._landed[piece.split].caught_up
            or piece.idle != self._landed[piece.split].idle
            or piece.split in self._releasing
            for piece in moved
        ):
            return True
        return asyncio.get_running_loop().time() - self._landed_at >= _POSITIONS_SECONDS

    async def _tell_without_records(self) -> None:
        moved = self._moved_without_records()
        if moved and self._is_due(moved):
            await self._tell((), moved)

    async def _tell(
        self,
        files: tuple[SegmentFile, ...],
        moved: tuple[Piece, ...],
        bad: StagedFile | None = None,
    ) -> None:
        if any(piece.ended for piece in moved):
            await self._send_report()  # the coordinator hears no more of them
        await self._send(Landed(self._seq, files, moved, bad))
        self._seq += 1
        self._landed_at = asyncio.get_running_loop().time()
        for piece in moved:
            self._landed[piece.split] = piece
            if piece.ended:
                self._forget(piece.split)

    async def _tell_released(self) -> None:
        """Tell of splits that are read no longer, once all that was read of them has landed."""
        done = [
            split_id
            for split_id in sorted(self._releasing)
            if to_wire(self._progress[split_id].delivered) == self._landed[split_id].until
        ]
        if done:
            for split_id in done:
                self._forget(split_id)
            await self._send(Released(tuple(done)))

    def _forget(self, split_id: str) -> None:
        self._progress.remove(split_id)
        self._subscribers.forget(split_id)
        self._releasing.discard(split_id)
        del self._landed[split_id]
        self._children.pop(split_id, None)
        self._reported.pop(split_id, None)

    def _resubscribes(self, split: Split, cause: Exception, delay: float) -> None:
        code = name_or_other(self._cause(cause))
        told = ErrorWire.of(cause, most=_MAX_CAUSE)
        self._resubscribed.append(Resubscription(split.id, told, code, delay))

    async def _report(self) -> None:
        """Tell the coordinator once a second that this lander is there, and what has changed."""
        told = False
        with suppress(ChannelClosedError):
            while True:
                await self._send_report()
                if self._bounded and self._stream.caught_up and self._filler.held:
                    self._filler.hurry()
                if self._stream.failure is not None and not told:
                    await self._send(
                        Failed(ErrorWire.with_cause(self._stream.failure), landed=False)
                    )
                    told = True
                await asyncio.sleep(_REPORT_SECONDS)

    async def _send_report(self) -> None:
        statistics = self._stream.statistics()
        splits = tuple(self._changed(statistics.splits.items()))
        resubscribed = tuple(self._resubscribed)
        self._resubscribed.clear()
        throttled = statistics.totals.throttled - self._throttled
        self._throttled += throttled
        await self._send(
            Report(splits, statistics.bytes_in_flight, self._filler.held, resubscribed, throttled)
        )

    def _changed(self, splits: Iterable[tuple[str, SplitStatistics]]) -> Iterator[SplitReport]:
        for split_id, now in splits:
            if split_id not in self._releasing and now != self._reported.get(split_id):
                self._reported[split_id] = now
                yield SplitReport(
                    split_id,
                    now.state,
                    now.bytes,
                    now.subscriptions,
                    now.resubscriptions,
                    "" if now.last_cause is None else _cause(now.last_cause),
                    now.lag,
                    now.behind,
                    now.gaps,
                    now.gap_seconds,
                    now.waiting,
                    now.bad_records,
                )

    async def _send(self, message: FromLander) -> None:
        await self._channel.send(encode(message))


def _cause(error: Exception) -> str:
    return sendable(f"{type(error).__name__}: {text_of(error)}")


def _place(piece: Piece) -> tuple[object, bool, bool, bool]:
    return piece.until, piece.ended, piece.caught_up, piece.idle
