"""The seam that every service implements.

A `Source` is what a user writes down: frozen, picklable, without secrets in its repr. A
`Connection` is one running stream's hold on the service: it alone has sockets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, final

from fanout.core.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    import pyarrow as pa

    from fanout.core.event_time import CarriedWatermarks, EventTime
    from fanout.core.events import Batch, End, Split
    from fanout.core.policy import Phase, Verdict
    from fanout.core.positions import Cursor, Position, Range
    from fanout.core.statistics import LendingStatistics

__all__ = ("MAX_DOUBTS", "Commits", "Connection", "Lending", "Pacing", "Reserve", "Source")

# Characters. Ranges of offsets take about 20 each, and only what is under way is in doubt.
MAX_DOUBTS: Final = 1024 * 1024


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """How a service wants to be asked, and how long its silence may last. All in seconds.

    Args:
        floor: The least time between two subscribe calls of one split.
        spacing: The least time from a successful subscribe call to the next call of that split.
        subscribe_timeout: How long a subscribe call may take.
        silence_timeout: How long a live subscription may send nothing.
        discovery_interval: The time between two listings of the splits; None lists them only when
            the stream is opened and when a split has ended, as is always done in a bounded stream.
        slow: The wait after an error that only a person can end.
        backoff: How waits grow.
        max_retries: Failures in a row without progress before a split fails; None for no limit.
        max_pending_subscribes: Subscribe calls of all splits together that may wait for an answer.
        max_bytes_in_flight: Bytes of all splits together that may wait for the consumer.
    """

    floor: float
    spacing: float
    subscribe_timeout: float
    silence_timeout: float
    discovery_interval: float | None
    slow: float = 60.0
    backoff: Backoff = field(default_factory=Backoff)
    max_retries: int | None = None
    max_pending_subscribes: int = 64
    max_bytes_in_flight: int = 256 * 1024 * 1024


class Reserve(Protocol):
    """Reserve memory for an event before assembling it."""

    async def __call__(self, nbytes: int) -> None:
        """Wait until `nbytes` may be held; the silence watchdog stands still meanwhile."""


@final
@dataclass(frozen=True, slots=True)
class Commits:
    """What a service was told of the positions that are acknowledged, for people to see.

    Args:
        positions: The position of each split, by id, that it was told last.
        succeeded: Requests that told it.
        failed: Requests that did not, or not of every split.
    """

    positions: Mapping[str, Position] = field(default_factory=dict)
    succeeded: int = 0
    failed: int = 0


class Lending(Protocol):
    """A hold on records that come again, to anybody, unless they are acknowledged in time.

    A stream delivers a record once, however often it comes: one whose lock has run out while it
    was on its way to the consumer, or lay with it, is not delivered a second time. It is settled
    as the first one is.
    """

    @property
    def seconds(self) -> float:
        """Within how many seconds what was delivered has to be acknowledged."""

    def pause(self) -> None:
        """Ask for no more records; what was asked for before may still come, however late."""

    def resume(self) -> None:
        """Ask for records again."""

    @property
    def statistics(self) -> LendingStatistics:
        """Say what became of the records that were lent so far."""

    async def release(self, split_id: str, piece: Range) -> None:
        """Give records back at once, for anybody, instead of acknowledging them.

        Args:
            split_id: The split that delivered them.
            piece: Which piece of it they are.
        """

    async def reject(self, split_id: str, piece: Range, rows: Sequence[int], reason: str) -> None:
        """Refuse records for good, instead of acknowledging them.

        Args:
            split_id: The split that delivered them.
            piece: Which piece of it the rows are of.
            rows: Which rows of the piece are refused.
            reason: Why, for people.

        Raises:
            AcknowledgementError: If the service did not take the refusal of some of them.
        """

    def doubts(self, positions: Mapping[str, Position]) -> str:
        """Name the records up to these positions that the service may deliver again.

        Those are the ones whose acknowledgement it has not confirmed, also of earlier runs. The
        caller has them in a safe place, or puts them there together with what is returned, and
        acknowledges after that: from this call on they are dropped when they come again. They are
        acknowledged once more then, but not before `Connection.acknowledge` was called for them:
        until then they are nowhere else, should the process end.

        Args:
            positions: The positions of what is safe, which is going to be acknowledged; what was
                delivered behind them is not named.

        Returns:
            JSON with a version, of at most `MAX_DOUBTS` characters, that only the source reads.

        Raises:
            ServiceError: If they are so many that something must be wrong.
        """

    def remember(self, doubts: str) -> None:
        """Take in what an earlier run has stored; before the first subscription.

        From this call on a record is not delivered again while it was delivered and is not
        confirmed: whoever calls this makes each one safe, or ends the stream.

        Args:
            doubts: What `doubts` returned last; empty where nothing is stored.

        Raises:
            PositionError: If it is damaged, or of another version.
        """


class Connection(Protocol):
    """One running stream's hold on a service."""

    @property
    def identity(self) -> str:
        """Name the source for ever, the same in each run; positions of another are refused."""

    @property
    def pacing(self) -> Pacing:
        """Say how this service wants to be asked."""

    @property
    def bounded(self) -> bool:
        """Say whether there is a stop in each split: a stream that has reached all of them ends.

        A subscription says with a batch whose lag is 0 that it has reached the stop, at once where
        it begins there, and nothing else has that lag; it is closed then. The split itself has not
        ended: a later stream may go on after the stop.
        """

    def reads(self, split: Split) -> bool:
        """Say whether a split of stored positions is one that the user still wants to be read.

        The positions of others are kept as they are, so that they can be read on later.
        """

    async def splits(self) -> Sequence[Split]:
        """List the splits that exist now, closed ones included, with their parents."""

    async def resolve(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Turn the source's start into a concrete position for each split."""

    def subscribe(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AbstractAsyncContextManager[AsyncIterator[Batch | End]]:
        """Open one subscription that delivers what comes after `position`.

        The iterator stops where the service ends the subscription although the split goes on; a
        split that is finished ends with `End`.

        Args:
            split: What to subscribe to.
            position: The last thing that is not wanted again.
            reserve: Called before an event is assembled, with the bytes that it takes.

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

        The connection may ask the service, or repair what it can, before it answers.

        Args:
            error: What went wrong.
            phase: What was being done.
            split: Of which split; None for a listing, where the verdict is to ask again or to give
                up.
            position: Where its reader stands; None for a listing.
        """

    @property
    def commits(self) -> Commits:
        """Say what the service was told of acknowledged positions; nothing where it keeps none."""

    async def acknowledge(self, positions: Mapping[str, Position]) -> None:
        """Tell the service that everything up to these positions is durable.

        Where the service lends its records, the call returns when it has answered.

        Raises:
            AcknowledgementError: If the service lends its records and did not take the
                acknowledgement of some of them; the others are acknowledged.
        """

    @property
    def lending(self) -> Lending | None:
        """Return the hold on records that have to be acknowledged in time; None where none do."""


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

        Args:
            available_now: Only what is there now is going to be read. A service that can tell where
                each split ends makes the connection bounded by that.
        """

    def cursor(self, batch: Batch, row: int) -> Cursor:
        """Return the position after one row of a batch, so that a batch can be cut behind it."""

    def arrival(self, records: pa.RecordBatch, row: int) -> int | None:
        """Return when one row arrived at the service, in milliseconds since the Unix epoch."""
