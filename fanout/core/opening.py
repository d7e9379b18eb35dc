"""Open a source as a running stream: connect, resolve the start, subscribe."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Final, final

from fanout.core.backoff import FullJitter, Retries
from fanout.core.checkpoint import Checkpoint
from fanout.core.event_time import CarriedWatermarks, EventTime, Watermarks
from fanout.core.fan_out import FanOut
from fanout.core.lifecycle_log import LifecycleLog
from fanout.core.lineage import Lineage, delay_after_failure
from fanout.core.membership import SharedSplits, check_on_revoked
from fanout.core.option_checks import check_offers, check_source, wrong_type
from fanout.core.positions import Cursor
from fanout.core.progress import Progress
from fanout.core.record_decoder import reader_of, with_stored_reader
from fanout.core.subscribers import Subscribers
from fanout.core.user_functions import check_on_resubscribe
from fanout.errors import FanOutError, OptionError, PositionError, ServiceError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from fanout.core.checkpoint import SplitPosition
    from fanout.core.events import End, Split
    from fanout.core.membership import Group, OnRevoked
    from fanout.core.positions import Position
    from fanout.core.source import Connection, Source
    from fanout.core.statistics import OnResubscribe


@final
class Supervisor:
    """Have every split of the progress read whose parents are out of the way, in this process."""

    def __init__(
        self,
        connection: Connection,
        progress: Progress,
        lineage: Lineage,
        subscribers: Subscribers,
    ) -> None:
        self._connection = connection
        self._progress = progress
        self._lineage = lineage
        self._subscribers = subscribers

    @asynccontextmanager
    async def supervise(self) -> AsyncIterator[None]:
        """Run the subscribers and the discovery while the block runs; stop them all after it."""
        async with self._subscribers.running(self._finish, self._at_end):
            self._subscribers.spawn(self._discover(), "discovery")
            self._start()
            yield

    def _start(self) -> None:
        """Subscribe to every split whose parents are out of the way, while the stream runs."""
        for split in self._lineage.startable():
            self._subscribers.start(split, self._progress[split.id].delivered)

    def _finish(self, end: End) -> None:
        self._lineage.finish(end)
        self._start()

    def _at_end(self) -> bool:
        bounded = self._connection.capabilities.bounded
        return bounded and all(self._is_read(state.split) for state in self._progress)

    def _is_read(self, split: Split) -> bool:
        """Return whether a split of a bounded stream has been read to its stop, or to its end."""
        return self._lineage.is_finished(split.id) or self._subscribers.caught_up(split.id)

    async def _discover(self) -> None:
        try:
            await self._lineage.discover(self._listed)
        except ServiceError as error:
            self._subscribers.fail(error)

    def _listed(self) -> None:
        for split_id in [id_ for id_ in self._subscribers.by_split if id_ not in self._progress]:
            self._subscribers.forget(split_id)
        self._start()


# Seconds. A service that throttles, as many readers begin together, has room within them.
_LISTING_TIMEOUT: Final = 60.0

_WITHOUT_READER: Final = (
    "resume without the stored schema, by replace(Checkpoint.from_json(resume), "
    "reader='').to_json() of dataclasses"
)

log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a run begins to read."""

    # It continues after these; None begins at the source's start.
    positions: Checkpoint | None = None
    first: bool = False  # whether no run has read before


_START: Final = ResumePoint()


@asynccontextmanager
async def open_stream(
    source: Source,
    *,
    resume: str | None = None,
    group: Group | None = None,
    available_now: bool = False,
    on_resubscribe: OnResubscribe | None = None,
    on_revoked: OnRevoked | None = None,
    random: Random | None = None,
) -> AsyncIterator[FanOut]:
    """Open a source and subscribe to its splits for as long as the block runs.

    Args:
        source: What to read.
        resume: The `stream.positions` of an earlier run; the stream continues after them.
            None begins at the source's start.
        group: The group whose processes share the splits, such as
            `fanout.kafka.ConsumerGroup(group_id="orders-app")` or
            `fanout.kinesis.LeaseTable(name="orders-app")`; it stores what is acknowledged, and a
            process goes on from there. None reads all splits here.
        available_now: Read what is there when the stream is opened, and end; for services that
            report where their splits end now. Streams of other services do not end.
        on_resubscribe: Called with the split, the cause and the delay in seconds each time a
            subscription is to be opened again. It must not block; what it raises is fatal.
        on_revoked: An async function of a tuple of splits that the group takes back. No record of
            them is delivered any more; what it acknowledges counts. Another process gets them
            when it has returned and all that was delivered is acknowledged, or when the group's
            `handover_timeout` is over, which cancels it. What it raises is fatal.
        random: The source of randomness for backoff; pass a seeded one for a repeatable run.

    Raises:
        PositionError: If `resume` is damaged, of another version, or of another source.
        OptionError: If `group` comes with `resume` or `available_now`, or does not fit the source.
        SetupError: If credentials or libraries are missing.
        ServiceError: If the source does not exist, or we may not read it.

    Cancellation: every subscription is closed before the block is left; no task, socket or timer
    outlives it. With a group what is acknowledged is stored first, and the process leaves the
    group, within 5 seconds.
    """
    check_source(source)
    check_on_revoked(on_revoked, group)
    if resume is not None and not isinstance(resume, str):
        raise wrong_type("resume", resume, "the text of stream.positions, or None")
    if group is not None:
        check_offers("group", group, "join", "a group, such as ConsumerGroup(group_id='orders')")
        _check_alone(resume=resume, available_now=available_now)
        shared = open_shared(
            source, group, on_resubscribe=on_resubscribe, on_revoked=on_revoked, random=random
        )
        async with shared as stream:
            yield stream
        return
    stored = None if resume is None else Checkpoint.from_json(resume)
    if stored is not None:
        try:
            source = with_stored_reader(source, stored.reader, _WITHOUT_READER)
        except PositionError as error:
            what = f"the stored positions of {stored.source} cannot be resumed: "
            raise PositionError(what, error) from error
    opening = open_stored(
        source,
        ResumePoint(stored, first=stored is None),
        available_now=available_now,
        on_resubscribe=on_resubscribe,
        random=random,
        reader=reader_of(getattr(source, "decode", None)),
    )
    async with opening as stream:
        yield stream


@asynccontextmanager
async def open_stored(
    source: Source,
    resume: ResumePoint,
    *,
    available_now: bool = False,
    on_resubscribe: OnResubscribe | None = None,
    random: Random | None = None,
    reader: str = "",
) -> AsyncIterator[FanOut]:
    """Open a source as `open_stream` does, and know whether an earlier run has begun to read it.

    `reader` becomes a part of the stream's positions.
    """
    check_on_resubscribe(on_resubscribe)
    async with open_lineage(source, resume, available_now=available_now, random=random) as opened:
        connection, progress = opened.connection, opened.progress
        subscribers = _subscribers(
            source, connection, opened.jitter, on_resubscribe, opened.lifecycle
        )
        supervisor = Supervisor(connection, progress, opened.lineage, subscribers)
        try:
            async with supervisor.supervise():
                yield FanOut(
                    source,
                    connection,
                    progress,
                    subscribers,
                    resumed=opened.resumed,
                    reader=reader,
                )
        finally:
            opened.lifecycle.stopped(progress, subscribers.failure)


def _check_alone(*, resume: str | None, available_now: bool) -> None:
    """Refuse what a process decides alone, and those of a group together."""
    if resume is not None:
        raise OptionError(
            "resume and group cannot be used together: the group stores how far its processes came"
        )
    if available_now:
        raise OptionError(
            "available_now and group cannot be used together: no process of a group knows whether "
            "the others have read everything; read with fanout.open without a group"
        )


@asynccontextmanager
async def open_shared(
    source: Source,
    group: Group,
    *,
    on_resubscribe: OnResubscribe | None = None,
    on_revoked: OnRevoked | None = None,
    random: Random | None = None,
) -> AsyncIterator[FanOut]:
    """Open a source as one process of a group; see `open_stream`."""
    check_on_resubscribe(on_resubscribe)
    async with source.connect() as connection:
        if connection.capabilities.bounded:
            raise OptionError("a group reads without an end: leave stop out, or the group")
        if connection.capabilities.lending is not None:
            raise OptionError(
                "the service shares out the records of this source by itself, to as many processes "
                "as open it: leave group out"
            )
        jitter = FullJitter(connection.pacing.backoff, random or Random())  # noqa: S311 - jitter
        await _listed(connection, jitter)  # what is named has to exist
        progress = _progress(source, connection, connection.identity)
        lifecycle = LifecycleLog(connection.identity, connection.capabilities)
        progress.on_gap_measured = lifecycle.measured
        subscribers = _subscribers(source, connection, jitter, on_resubscribe, lifecycle)
        try:
            async with group.join(source, connection, jitter) as membership:
                lifecycle.shares(membership.group)
                shared = SharedSplits(membership, progress, subscribers, lifecycle, on_revoked)
                async with shared.supervise():
                    yield FanOut(source, connection, progress, subscribers, shared=shared)
        finally:
            lifecycle.stopped(progress, subscribers.failure)


def _subscribers(
    source: Source,
    connection: Connection,
    jitter: FullJitter,
    on_resubscribe: OnResubscribe | None,
    lifecycle: LifecycleLog,
) -> Subscribers:
    return Subscribers(
        connection,
        jitter=jitter,
        on_resubscribe=on_resubscribe or _ignore,
        lifecycle=lifecycle,
        event_time=source.event_time if isinstance(source.event_time, EventTime) else None,
    )


@final
@dataclass(frozen=True, slots=True)
class Opened:
    """A source whose splits are known, and from which nothing is read yet."""

    connection: Connection
    progress: Progress
    lineage: Lineage
    lifecycle: LifecycleLog  # it has logged the start
    jitter: FullJitter
    # The positions of the earlier run, as they were stored; None in the first run.
    resumed: Checkpoint | None


@asynccontextmanager
async def open_lineage(
    source: Source,
    resume: ResumePoint = _START,
    *,
    available_now: bool = False,
    random: Random | None = None,
) -> AsyncIterator[Opened]:
    """Connect to a source and learn its splits, for as long as the block runs.

    It raises what `open_stream` does. Cancellation: the connection is closed.
    """
    checkpoint = resume.positions
    async with source.connect(available_now=available_now) as connection:
        jitter = FullJitter(connection.pacing.backoff, random or Random())  # noqa: S311 - jitter
        splits = await _listed(connection, jitter)
        if checkpoint is None:
            progress = await _resolved(source, connection, splits)
        else:
            adopted = await _adopted(connection, checkpoint, splits)
            progress = _resumed(source, connection, adopted)
        lifecycle = LifecycleLog(connection.identity, connection.capabilities)
        progress.on_gap_measured = lifecycle.measured
        lineage = Lineage(connection, progress, jitter=jitter, listed=splits, lifecycle=lifecycle)
        lifecycle.started(progress, stored=not (resume.first or checkpoint is None))
        yield Opened(connection, progress, lineage, lifecycle, jitter, checkpoint)


async def resolve_start(source: Source) -> str:
    """Resolve a source's start into concrete positions, without subscribing.

    Store them, then open the stream with `resume=`: however often the first run fails, "latest"
    stays the moment of this call, and no record after it is skipped.

    Args:
        source: What is going to be read.

    Returns:
        The positions as JSON, in the form of `stream.positions`.

    Raises:
        SetupError: If credentials or libraries are missing.
        ServiceError: If the source does not exist, or we may not read it.

    Cancellation: the connection is closed, and nothing is stored.
    """
    check_source(source)
    reader = reader_of(getattr(source, "decode", None))
    return replace(await resolved_start(source), reader=reader).to_json()


async def resolved_start(source: Source) -> Checkpoint:
    """Return the positions of `resolve_start`, without the schema to read with."""
    async with source.connect() as connection:
        jitter = FullJitter(connection.pacing.backoff, Random())  # noqa: S311 - jitter
        progress = await _resolved(source, connection, await _listed(connection, jitter))
        return progress.acknowledged()


async def _listed(connection: Connection, jitter: FullJitter) -> Sequence[Split]:
    """List the splits; while the service refuses for now, for a minute."""
    time = asyncio.get_running_loop().time
    deadline = time() + _LISTING_TIMEOUT
    retries = Retries(replace(connection.pacing, max_retries=None), jitter)
    while True:
        try:
            return await connection.splits()
        except FanOutError:
            raise
        except Exception as error:  # noqa: BLE001 - the connection judges it
            left = deadline - time()
            delay = await delay_after_failure(connection, error, retries, longest=left)
        await asyncio.sleep(delay)


async def _resolved(source: Source, connection: Connection, splits: Sequence[Split]) -> Progress:
    progress = _progress(source, connection, connection.identity)
    positions = await connection.resolve(splits)
    for split in splits:
        progress.add(split, positions[split.id])
    return progress


async def _adopted(
    connection: Connection, checkpoint: Checkpoint, splits: Sequence[Split]
) -> Checkpoint:
    """Return stored positions as positions of what the connection reads."""
    adopt = connection.capabilities.adopt
    if adopt is not None:
        adopted = await adopt(checkpoint, splits)
    else:
        adopted = checkpoint if checkpoint.source == connection.identity else None
    if adopted is None:
        raise PositionError(
            f"the stored positions belong to {checkpoint.source}, not to {connection.identity}; "
            f"resume them with the source that wrote them"
        )
    return adopted


def _resumed(source: Source, connection: Connection, checkpoint: Checkpoint) -> Progress:
    states = checkpoint.splits.values()
    kept = [state for state in states if not connection.capabilities.reads(state.split)]
    progress = _progress(source, connection, checkpoint.source, kept)
    for state in states:
        if state not in kept:
            progress.add(
                state.split,
                state.position,
                ended=state.ended,
                newest=state.newest,
                watermark=_stored_watermark(source, state.position),
            )
    if progress.watermarks is not None:
        progress.watermarks.restore()
    if kept:
        names = ", ".join(sorted(str(state.split) for state in kept))
        log.warning("these are no longer read, but their positions are kept: %s", names)
    return progress


def _progress(
    source: Source, connection: Connection, identity: str, kept: Iterable[SplitPosition] = ()
) -> Progress:
    watermarks = None
    match source.event_time:
        case EventTime(idleness=idleness):
            watermarks = Watermarks(idleness=idleness, bounded=connection.capabilities.bounded)
        case CarriedWatermarks():
            # A split stays at its stop: there a later run finds the watermark that it stored.
            watermarks = Watermarks(idleness=None, bounded=False)
        case None:
            pass
    return Progress(identity, source.arrival, kept, watermarks)


def _stored_watermark(source: Source, position: Position) -> int | None:
    match source.event_time, position:
        case CarriedWatermarks(stored), Cursor():
            return stored(position)
        case _:
            return None


def _ignore(split: Split, cause: Exception, delay: float) -> None:
    """Do nothing about a resubscription; the subscriber has logged it."""
