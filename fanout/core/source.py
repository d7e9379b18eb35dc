"""The seam that every service implements.

A `Source` is what a user writes down: frozen, picklable, without secrets in its repr. A
`Connection` is one running stream's hold on the service: it alone has sockets. What only some
services offer is in its `Capabilities`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias, final

from fanout.core.statistics import Origin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    import pyarrow as pa

    from fanout.core.backoff import Pacing
    from fanout.core.checkpoint import Checkpoint
    from fanout.core.event_time import CarriedWatermarks, EventTime
    from fanout.core.events import Batch, End, Split
    from fanout.core.policy import Phase, Verdict
    from fanout.core.positions import Cursor, Position, Range
    from fanout.core.statistics import CommitStatistics, LendingStatistics


class Reserve(Protocol):
    """Reserve memory for an event before assembling it."""

    async def __call__(self, nbytes: int) -> None:
        """Wait until `nbytes` may be held; the silence watchdog stands still meanwhile."""


class Commits(Protocol):
    """A service that stores which positions are acknowledged, for people to see."""

    async def acknowledge(self, positions: Mapping[str, Position]) -> None:
        """Have positions stored soon, up to which all is durable; do not wait for the service."""

    @property
    def statistics(self) -> CommitStatistics:
        """Return what the service has stored so far; from any thread."""


class RecordLocks(Protocol):
    """A service that locks records for this stream, and delivers them again if not acknowledged.

    A stream delivers a record once, however often it comes. A record whose lock expires before the
    consumer has it, or while the consumer has it, is not delivered a second time: the second
    delivery is settled as the first one is. Records that are to be made durable here before a batch
    takes them are named by `unconfirmed`.
    """

    @property
    def seconds(self) -> float:
        """Within how many seconds what was delivered has to be acknowledged."""

    @property
    def statistics(self) -> LendingStatistics:
        """Count the acquired records by what became of them; from any thread."""

    def keeps(self, batch: Batch, /) -> bool:
        """Return whether a batch can be handed out; one that waited for too long comes again."""

    def begin_wait(self) -> None:
        """Note that the consumer waits for records."""

    def end_wait(self) -> None:
        """Note that the consumer waits no longer."""

    async def acknowledge(self, positions: Mapping[str, Position]) -> None:
        """Accept everything that was delivered up to these positions; wait for the answer.

        Raises:
            AcknowledgementError: If the service did not take the acknowledgement of some of the
                records; the others are acknowledged.
        """

    async def release(self, split_id: str, piece: Range) -> None:
        """Give a piece of a split back at once, for any consumer, instead of acknowledging it."""

    async def reject(self, split_id: str, piece: Range, rows: Sequence[int], reason: str) -> None:
        """Refuse rows of a piece for good, instead of acknowledging them.

        Raises:
            AcknowledgementError: If the service did not take the refusal of some of them.
        """

    def pause(self) -> None:
        """Request no more records; what was requested before may still come, however late."""

    def resume(self) -> None:
        """Request records again."""

    def unconfirmed(self, positions: Mapping[str, Position]) -> str:
        """Name the records up to these positions that the service may deliver again.

        Those are the ones whose acknowledgement it has not confirmed, also of earlier runs. The
        caller has them in a safe place, or puts them there together with what is returned, and
        acknowledges after that: from this call on they are dropped when they come again. They are
        acknowledged once more then, but not before `acknowledge` was called for them: until then
        they are nowhere else, should the process end.

        The result is JSON with a version that only the source reads. So many that something must be
        wrong are a ServiceError.
        """

    def remember(self, unconfirmed: str) -> None:
        """Take in what `unconfirmed` returned in an earlier run; before the first subscription.

        It is empty where nothing is stored. From this call on a record is not delivered again while
        it was delivered and is not confirmed: the caller makes each one safe, or ends the stream. A
        damaged text, or one of another version, is a PositionError.
        """


class Polling(Protocol):
    """A service that is polled for records, where new ones can gather between two polls."""

    def poll_every(self, seconds: float) -> None:
        """Set how far apart polls begin while all readers have read to the end."""

    def poll_now(self) -> bool:
        """Poll at once where a poll waits; return whether one did."""


Adopt: TypeAlias = "Callable[[Checkpoint, Sequence[Split]], Awaitable[Checkpoint | None]]"
"""Fits stored positions to what a connection reads now; see `Capabilities.adopt`."""


def _every(split: Split) -> bool:  # noqa: ARG001 - it is called as `Capabilities.reads`
    return True


def _type_name(error: Exception) -> str:
    return type(error).__name__


@final
@dataclass(frozen=True, slots=True)
class Terms:
    """What a service calls a split, a position and an error, for the log and for metrics."""

    split: str = "split"  # an "s" makes the plural
    # Where one is, such as "at offset 7"; it may be empty.
    position: Callable[[Position], str] = str
    # The code of the service, or else the error's type.
    cause: Callable[[Exception], str] = _type_name


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a connection offers beyond reading; by default nothing."""

    # Whether there is a stop in each split: a stream that has reached all of them ends. A
    # subscription says with a batch whose lag is 0 that it has reached the stop, at once where it
    # begins there, and nothing else has that lag; it is closed then. The split itself has not
    # ended: a later stream may go on after the stop.
    bounded: bool = False
    # Says whether a split of stored positions is one that the user still wants to be read. The
    # positions of others are kept as they are, so that they can be read on later.
    reads: Callable[[Split], bool] = _every
    commits: Commits | None = None  # stores acknowledged positions for people to see
    lending: RecordLocks | None = None  # locks records until they are acknowledged
    # Fits stored positions to what is read now, given the splits that are listed; returns None for
    # those of another source. None where only the same source continues them.
    adopt: Adopt | None = None
    terms: Terms = Terms()
    origin: Origin = field(default_factory=Origin)
    # Sets how often the service is polled; None where it sends records.
    polling: Polling | None = None
    # Decodes the records of each batch, those of an empty one too, before it is delivered.
    decode: Callable[[Batch], Awaitable[Batch]] | None = None
    # Counts the answers by which the service slowed this connection down.
    throttled: Callable[[], int] = int


class Connection(Protocol):
    """One running stream's hold on a service."""

    @property
    def identity(self) -> str:
        """Name the source for ever, the same in each run; positions of another are refused."""

    @property
    def pacing(self) -> Pacing:
        """Return the service's limits on calls, and the timeouts."""

    @property
    def capabilities(self) -> Capabilities:
        """Return what the connection offers beyond reading; it never changes."""

    async def splits(self) -> Sequence[Split]:
        """List the splits that exist now, closed ones included, with their parents."""

    async def resolve(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Turn the source's start into a concrete position for each split."""

    def subscribe(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AbstractAsyncContextManager[AsyncIterator[Batch | End]]:
        """Open one subscription that delivers what comes after `position`.

        The iterator stops where the service ends the subscription although the split goes on; a
        split that is finished ends with `End`. `reserve` is called before an event is assembled,
        with the bytes that it takes.

        Cancellation: the subscription is closed; an event that was not returned comes again.
        """

    async def verdict(
        self,
        error: Exception,
        phase: Phase,
        split: Split | None = None,
        position: Position | None = None,
    ) -> Verdict:
        """Say what an error means; every exception gets a verdict, and nothing is raised.

        The connection may call the service, or repair what it can, before it answers. In a listing
        there is neither split nor position, and the verdict is to ask again or to give up.
        """


class Source(Protocol):
    """What a user reads from, as a value."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the records in a batch."""

    @property
    def event_time(self) -> EventTime | CarriedWatermarks | None:
        """Say what watermarks are taken from, as `parse_event_time` returned it; None for none."""

    def connect(self, *, available_now: bool = False) -> AbstractAsyncContextManager[Connection]:
        """Open the connection: check that the source exists and that we may read it.

        With `available_now` only what is there now is going to be read. A service that can tell
        where each split ends makes the connection bounded by that.
        """

    def cursor(self, batch: Batch, row: int) -> Cursor:
        """Return the position after one row of a batch, so that a batch can be cut behind it."""

    def arrival(self, records: pa.RecordBatch, row: int) -> int | None:
        """Return when one row arrived at the service, in milliseconds since the Unix epoch."""
