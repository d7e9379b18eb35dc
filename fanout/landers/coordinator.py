"""Have landers read the splits of a source, and hand what they land to batches."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, final

from fanout.core.checkpoint import from_wire, to_wire
from fanout.core.error_text import Causes, text_of
from fanout.core.events import End, Split
from fanout.core.lifecycle_log import LanderName
from fanout.core.statistics import CommitStatistics, Statistics, StreamTotals
from fanout.core.subscriber import split_failure
from fanout.core.user_functions import call_listener, check_on_resubscribe
from fanout.errors import FanOutError, SetupError, StreamStateError
from fanout.landers.assignment import HandoverDelays
from fanout.landers.channel import ChannelClosedError
from fanout.landers.counters import Counters
from fanout.landers.messages import (
    Assign,
    Assigned,
    Credit,
    Failed,
    Hello,
    Landed,
    MessageError,
    Release,
    Released,
    Report,
    Stop,
    Superseded,
    Wanted,
    Welcome,
    encode,
    from_lander,
)
from fanout.landers.session import (
    SILENCE,
    BatchMinimum,
    LanderSession,
    OrphanSweeper,
    TakenIn,
)
from fanout.landing.segments.segment_filler import NoRecords, Stopped
from fanout.landing.segments.segments import LandedBatch

if TYPE_CHECKING:
    from fanout.core.lifecycle_log import LifecycleLog
    from fanout.core.lineage import Lineage
    from fanout.core.progress import Progress
    from fanout.core.source import Connection
    from fanout.core.statistics import OnResubscribe
    from fanout.landers.assignment import Assignment
    from fanout.landers.channel import Channel
    from fanout.landers.messages import FromCoordinator, Piece, Resubscription

log = logging.getLogger(__name__)

_CLOSE_SECONDS: Final = 2.0
# How often splits that wait, or should move, are looked at.
_ASSIGN_SECONDS: Final = 1.0
# After how many such looks the rates of splits are measured.
_MEASURE_EVERY: Final = 10
# A lander that fails so often in a row, and lands nothing, ends the query.
_FAILURES: Final = 4
# One that was connected for so long was well, although it may have had nothing to land.
_WELL_SECONDS: Final = 60.0


@final
class Coordinator:
    """Assign splits to landers, take in what they land, and hand it to one batch after the other.

    A range of a split counts once: a message counts in a living session alone, in the order of its
    number, and where each of its ranges begins at the split's position. A `bounded` stream finishes
    when every split has once reached its newest record. With `eager` landers land what they have as
    soon as a batch waits for it; otherwise they fill their segments for as long as they may.
    `on_resubscribe` is called for each recoverable end of a subscription that a lander tells of;
    what it raises ends the stream.
    """

    def __init__(
        self,
        connection: Connection,
        progress: Progress,
        lineage: Lineage,
        assignment: Assignment,
        *,
        bounded: bool = False,
        eager: bool = True,
        min_records: int = 1,
        lifecycle: LifecycleLog,
        on_resubscribe: OnResubscribe | None = None,
    ) -> None:
        check_on_resubscribe(on_resubscribe)
        self.failure: FanOutError | None = None
        self._connection = connection
        self._progress = progress
        self._lineage = lineage
        self._assignment = assignment
        self._bounded = bounded
        self._eager = eager and min_records == 1
        self._minimum = BatchMinimum(min_records) if min_records > 1 else None
        self._lifecycle = lifecycle
        self._on_resubscribe = on_resubscribe
        self._sessions: dict[int, LanderSession] = {}
        self._owners: dict[str, LanderSession] = {}
        self._delays = HandoverDelays(connection.pacing)
        self._failures: dict[int, int] = {}  # of each lander, in a row
        self._begun: set[int] = set()  # landers that have read in this run
        self._time = asyncio.get_running_loop().time
        self._epochs = 0
        self._landed: deque[TakenIn] = deque()
        self._landed_since = 0.0
        self.orphans = OrphanSweeper()
        self._counters = Counters()
        self._causes = Causes()
        self._changed = asyncio.Event()
        self._failed = False
        self._stopping = False
        self._finishing = False
        self._closed = False

    async def run(self) -> None:
        """Discover and assign until cancelled, or until the splits cannot be listed any more.

        Cancellation: nothing is assigned any more; sessions go on until their connections end.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._discover())
                tasks.create_task(self._keep_assigning())
        finally:
            self._closed = True
            self._changed.set()

    async def serve(self, channel: Channel) -> None:
        """Serve the connection of a lander that has proved who it is until it is over.

        Cancellation: the session is over, and the channel is closed.
        """
        try:
            session = await self._welcome(channel)
            if session is not None:
                await self._attend(session)
        finally:
            await channel.close()

    def task_ended(self, lander: int, error: BaseException | None) -> None:
        """Take in that Spark's job of a lander has ended, and why; its splits are free at once.

        A lander that fails again and again, and lands nothing meanwhile, ends the stream.
        """
        session = self._sessions.get(lander)
        if session is not None:
            self._end(session, "its task has ended" if error is None else text_of(error))
        self._delays.release(lander, self._time())
        if error is not None:
            self._count_failure(lander, error)
        self._assign()

    async def next(self, idle: float) -> LandedBatch | NoRecords | Stopped:
        """Wait for records, and return all that have landed; one caller at a time.

        The answer is `NoRecords` where none comes for `idle` seconds. The failure of the stream is
        raised after its last records were handed over. Cancellation: nothing is handed over.
        """
        if self._eager and not self._landed:
            self._tell_all(Wanted())
        await self._wait_for_records(idle)
        if self._stopping:
            return Stopped()
        if self._landed:
            return self._take()
        if self._failed and self.failure is not None:
            raise self.failure
        if self._closed:
            raise StreamStateError("reading has stopped")
        return NoRecords(self._progress.delivered(), finished=self._finished)

    async def close(self) -> None:
        """Tell the landers to stop, and wait until they have; for 2 s at most.

        Cancellation: the landers end when their connections do.
        """
        self._closed = True
        self._tell_all(Stop())
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                while self._sessions:
                    self._changed.clear()
                    await self._changed.wait()

    def stop(self) -> None:
        """Let the present and every later call of `next` return `Stopped` at once."""
        self._stopping = True
        self._changed.set()

    def finish(self) -> None:
        """Read no more: the stream is finished when all that was read has landed."""
        self._finishing = True
        for session in self._sessions.values():
            if asked := session.splits - session.releasing:
                session.releasing |= asked
                session.tell(Release(tuple(sorted(asked))))
        self._changed.set()

    def statistics(self) -> Statistics:
        """Return the counters of the stream, its splits and its landers; in any thread."""
        sessions = sorted(self._sessions.values(), key=lambda session: session.lander)
        watermarks = self._progress.watermarks
        offered = self._connection.capabilities.commits
        commits = CommitStatistics() if offered is None else offered.statistics
        splits = {
            state.split.id: self._counters.statistics(state, commits.positions.get(state.split.id))
            for state in self._progress
        }
        return Statistics(
            MappingProxyType(splits),
            bytes_in_flight=sum(session.bytes_in_flight for session in sessions),
            commits_succeeded=commits.succeeded,
            commits_failed=commits.failed,
            landers=tuple(
                session.statistics(self._counters.bytes_per_second) for session in sessions
            ),
            lander_sessions=self._epochs,
            origin=self._connection.capabilities.origin,
            totals=StreamTotals(
                self._progress.records,
                self._progress.bytes,
                self._causes.counts,
                self._counters.gaps,
                self._counters.gap_seconds,
                self._counters.bad_records,
                throttled=self._counters.throttled,
            ),
            max_bytes_in_flight=self._connection.pacing.max_bytes_in_flight * len(sessions),
            watermark=None if watermarks is None else watermarks.stream,
            held=self._time() - self._landed_since if self._landed else None,
        )

    # Batches.

    async def _wait_for_records(self, idle: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(idle):
                while not (self._has_enough() or self._over):
                    self._changed.clear()
                    await self._changed.wait()

    def _has_enough(self) -> bool:
        """Return whether a batch takes what has landed; ask landers for more where it would."""
        if self._minimum is None:
            return bool(self._landed)
        for session in self._minimum.to_ask(self._sessions.values(), self._landed):
            session.tell(Wanted())
        return self._minimum.is_met(self._landed)

    @property
    def _over(self) -> bool:
        return self._stopping or self._closed or self._failed or self._finished

    @property
    def _finished(self) -> bool:
        """Whether a run has read what it wanted to."""
        released = self._finishing and not self._owners
        return released or (self._bounded and self._progress.caught_up)

    def _take(self) -> LandedBatch:
        taken = tuple(self._landed)
        self._landed.clear()
        if self._minimum is not None:
            self._minimum.taken()
        for landed, _ in taken:
            if (session := self._sessions.get(landed.lander)) is not None:
                session.tell(Credit(1))
        watermarks = self._progress.watermarks
        return LandedBatch(
            tuple(file for _, message in taken for file in message.files),
            self._progress.delivered(),
            None if watermarks is None else watermarks.stream,
            tuple(message.bad.name for _, message in taken if message.bad is not None),
        )

    # Assignment.

    async def _discover(self) -> None:
        try:
            await self._lineage.discover(self._listed)
        except FanOutError as error:
            self.fail(error)

    def _listed(self) -> None:
        self._counters.forget_others({state.split.id for state in self._progress})
        self._assign()

    async def _keep_assigning(self) -> None:
        while True:
            for _ in range(_MEASURE_EVERY):
                self._assign()
                await asyncio.sleep(_ASSIGN_SECONDS)
            self._counters.measure(self._time())

    def _assign(self) -> None:
        """Give every split that may be read to a lander; move some where that is unfair."""
        if self._failed or self._closed or self._finishing:
            return
        now = self._time()
        waiting = [
            split.id
            for split in self._lineage.startable()
            if split.id not in self._owners
            and self._delays.is_over(split.id, now)
            and not self._is_read(split)
        ]
        owners = {split_id: session.lander for split_id, session in self._owners.items()}
        plan = self._assignment.plan(
            self._sessions, owners, waiting, self._counters.bytes_per_second, now
        )
        for lander, split_ids in plan.assigned.items():
            self._give(self._sessions[lander], split_ids)
        for split_id in plan.moved:
            session = self._owners[split_id]
            if split_id not in session.releasing:
                session.releasing.add(split_id)
                session.tell(Release((split_id,)))

    def _is_read(self, split: Split) -> bool:
        """Return whether a split of a bounded stream was read to its stop."""
        return self._connection.capabilities.bounded and self._progress[split.id].caught_up

    def _give(self, session: LanderSession, split_ids: tuple[str, ...]) -> None:
        assigned = []
        for split_id in split_ids:
            state = self._progress[split_id]
            self._owners[split_id] = session
            self._delays.given(split_id)
            session.splits.add(split_id)
            assigned.append(
                Assigned(
                    split_id,
                    state.split.parents,
                    to_wire(state.delivered),
                    state.newest,
                    state.watermark,
                )
            )
        session.tell(Assign(tuple(assigned)))

    # Sessions.

    async def _welcome(self, channel: Channel) -> LanderSession | None:
        """Begin a session, unless the lander has a newer one."""
        try:
            async with asyncio.timeout(SILENCE):
                hello = from_lander(await channel.receive())
        except (TimeoutError, ChannelClosedError, MessageError) as error:
            log.info("a lander did not begin its session: %s", text_of(error))
            return None
        if not isinstance(hello, Hello) or self._closed:
            return None
        if (former := self._sessions.get(hello.lander)) is not None:
            if former.attempt > hello.attempt:
                self._lifecycle.lander_refused(LanderName(hello.lander, hello.host, hello.pid))
                with suppress(ChannelClosedError):
                    await channel.send(encode(Superseded()))
                return None
            self._end(former, "a newer one has connected")
        self._delays.release(hello.lander, self._time())
        self._epochs += 1
        session = self._sessions[hello.lander] = LanderSession(hello, self._epochs, channel)
        session.tell(Welcome(session.epoch))
        # A segment of an earlier session is one that no batch has taken.
        if all(landed.lander != hello.lander for landed, _ in self._landed):
            session.tell(Credit(1))
        self._lifecycle.lander_connected(session.name)
        self._assign()
        return session

    async def _attend(self, session: LanderSession) -> None:
        """Send and receive until the session is over."""
        reason = await session.attend(self._take_in)
        if reason is not None:
            self._end(session, reason)

    def _take_in(self, session: LanderSession, message: object) -> None:
        match message:
            case Landed():
                self._take_landed(session, message)
            case Released(split_ids):
                for split_id in split_ids:
                    if self._owners.get(split_id) is session:
                        self._free(session, split_id)
                        self._delays.moved(split_id, self._time())
                self._assign()
                self._changed.set()
            case Report():
                self._take_report(session, message)
            case Failed():
                failure = message.failure()
                self._lifecycle.lander_failed(session.name, failure)
                if not message.begun and session.lander in self._begun:
                    session.tell(Stop())  # its next attempt may be on another machine
                    self._count_failure(session.lander, failure)
                    return
                session.failure = failure
                self.failure = self.failure or session.failure
                if message.landed:
                    self.fail(session.failure)
            case _:
                raise MessageError(f"{session} sent a message at the wrong time")

    def _take_report(self, session: LanderSession, report: Report) -> None:
        self._begun.add(session.lander)
        session.bytes_in_flight = report.bytes_in_flight
        session.held = report.held
        own = [one for one in report.splits if self._owners.get(one.split) is session]
        self._counters.take_in(own, self._time())
        self._counters.throttled += report.throttled
        for resubscribed in report.resubscribed:
            self._resubscribes(resubscribed)
        if self._minimum is not None:
            self._changed.set()

    def _resubscribes(self, told: Resubscription) -> None:
        self._causes.count(told.code)
        cause = told.cause.as_cause()
        if self._on_resubscribe is None or self._failed or told.split not in self._progress:
            return
        split = self._progress[told.split].split
        try:
            call_listener("on_resubscribe", self._on_resubscribe, split, cause, told.delay)
        except Exception as error:  # noqa: BLE001 - it is the user's function
            self.fail(split_failure(split, error))

    def _take_landed(self, session: LanderSession, message: Landed) -> None:
        """Accept all of a message, or raise MessageError and nothing has happened."""
        if message.seq != session.seq:
            raise MessageError(f"{session} sent message {message.seq} instead of {session.seq}")
        for piece in message.pieces:
            if self._owners.get(piece.split) is not session:
                raise MessageError(f"{session} has landed {piece.split}, which is not its split")
            if to_wire(self._progress[piece.split].delivered) != piece.after:
                raise MessageError(f"{session} has landed {piece.split} from another position")
        if sum(piece.records for piece in message.pieces) != message.rows:
            raise MessageError(
                f"{session} has not said which splits its {message.rows} records are of"
            )
        session.seq += 1
        self._failures.pop(session.lander, None)
        if message.last_file:
            self._keep(session, message)
        for piece in message.pieces:
            self._advance(session, piece)
        if any(piece.ended for piece in message.pieces):
            self._assign()
        self._changed.set()

    def _keep(self, session: LanderSession, message: Landed) -> None:
        """Keep the files of a segment for the next batch."""
        if not self._landed:
            self._landed_since = self._time()
        self._landed.append((session, message))
        session.segments += 1
        session.held = max(0, session.held - message.rows)
        if self._minimum is not None:
            self._minimum.answered(session)
        session.last_segment = message.last_file
        self._progress.count(message.rows, sum(file.size for file in message.files))

    def _advance(self, session: LanderSession, piece: Piece) -> None:
        if piece.ended:
            # Its children hold the watermark back before it does no longer.
            children = tuple(Split(child.id, child.parents) for child in piece.children)
            self._lineage.finish(End(self._progress[piece.split].split, children))
        self._progress.advance(piece.split, from_wire(piece.until), piece)
        if piece.ended:
            self._free(session, piece.split)
            self._counters.ended(piece.split)

    def _free(self, session: LanderSession, split_id: str) -> None:
        session.splits.discard(split_id)
        session.releasing.discard(split_id)
        del self._owners[split_id]
        self._counters.released(split_id)

    def _end(self, session: LanderSession, reason: str) -> None:
        """End a session: nothing of it counts any more, and its splits are free after its lease."""
        if self._sessions.get(session.lander) is session:
            del self._sessions[session.lander]
            if self._minimum is not None:
                self._minimum.answered(session)
            self._changed.set()
            self.orphans.ended(session.epoch, session.last_segment)
            session.hang_up()
            if not self._closed:
                self._lifecycle.lander_gone(session.name, reason)
        now = self._time()
        for split_id in sorted(session.splits):
            subscribed = self._counters.subscribed(split_id, now)
            self._free(session, split_id)
            self._delays.lost(split_id, session.lander, subscribed, now)
        if session.connected >= _WELL_SECONDS:
            self._failures.pop(session.lander, None)
        if session.failure is not None:
            self.fail(session.failure)  # what it has not landed comes again in the next run
        self._assign()

    def _count_failure(self, lander: int, error: BaseException) -> None:
        failures = self._failures[lander] = self._failures.get(lander, 0) + 1
        if failures >= _FAILURES:
            failure = SetupError(
                f"lander {lander} has failed {failures} times in a row and has landed nothing: "
                f"{text_of(error)}; mend that where it ran, where the log says more, and start "
                f"again at the same place"
            )
            failure.__cause__ = error
            self.fail(failure)

    def fail(self, error: FanOutError) -> None:
        """End the stream with an error, after what has landed; the first error counts."""
        self.failure = self.failure or error
        self._failed = True
        self._changed.set()
        self._tell_all(Stop())

    def _tell_all(self, message: FromCoordinator) -> None:
        for session in self._sessions.values():
            session.tell(message)
