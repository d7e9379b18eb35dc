"""The seam that every service implements.

A `Source` is what a user writes down: frozen, picklable, without secrets in its repr. A
`Connection` is one running stream's hold on the service: it alone has sockets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol, final

from fanout.core.backoff import BackoffOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    import pyarrow as pa

    from fanout.core.events import Batch, End
    from fanout.core.lineage import Split
    from fanout.core.positions import Cursor, Position

__all__ = ("Action", "Connection", "Pacing", "Phase", "Reserve", "Source", "Verdict")


@final
class Phase(Enum):
    """What a subscriber or the discovery was doing when an error came."""

    DISCOVER = "discover"
    SUBSCRIBE = "subscribe"
    """The first subscription of a split in this stream: nothing has worked yet."""
    RESUBSCRIBE = "resubscribe"
    STREAM = "stream"


@final
class Action(Enum):
    """What to do about an error."""

    RETRY = "retry"
    """Wait with full jitter, then ask again."""
    RETRY_AT_FLOOR = "retry at floor"
    """Wait the service's minimum, then ask again."""
    FATAL = "fatal"
    """Give up: asking again cannot help."""


@final
@dataclass(frozen=True, slots=True)
class Verdict:
    """What an error means.

    Args:
        action: What to do.
        hint: What a person can do about it, a clause without a full stop; empty where the error
            says it all.
        limit: How often the same error may repeat at one position before it is fatal; None for
            any number.
    """

    action: Action
    hint: str = ""
    limit: int | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """How a service wants to be asked, and how long its silence may last. All in seconds.

    Args:
        floor: The least time between two subscribe calls of one split.
        spacing: The least time from a successful subscribe call to the next call of that split.
        subscribe_timeout: How long a subscribe call may take.
        silence_timeout: How long a live subscription may send nothing.
        discovery_interval: The time between two listings of the splits.
        backoff: How waits grow.
        max_retries: Failures in a row without progress before a split fails; None for no limit.
        max_bytes_in_flight: Bytes of all splits together that may wait for the consumer.
    """

    floor: float
    spacing: float
    subscribe_timeout: float
    silence_timeout: float
    discovery_interval: float
    backoff: BackoffOptions = field(default_factory=BackoffOptions)
    max_retries: int | None = None
    max_bytes_in_flight: int = 256 * 1024 * 1024


class Reserve(Protocol):
    """Reserve memory for an event before assembling it."""

    async def __call__(self, nbytes: int) -> None:
        """Wait until `nbytes` may be held; the silence watchdog stands still meanwhile."""


class Connection(Protocol):
    """One running stream's hold on a service."""

    @property
    def identity(self) -> str:
        """Name the source for ever, the same in each run; positions of another are refused."""

    @property
    def pacing(self) -> Pacing:
        """Say how this service wants to be asked."""

    async def splits(self) -> Sequence[Split]:
        """List the splits that exist now, closed ones included, with their parents."""

    async def resolve(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Turn the source's start into a concrete position for each split."""

    def subscribe(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AbstractAsyncContextManager[AsyncIterator[Batch | End]]:
        """Open one subscription that delivers what comes after `position`.

        The iterator stops where the service ends the subscription although the split goes on; a
        split that is finished ends with `End`. It calls `reserve` before it assembles an event.
        """

    def verdict(self, error: Exception, phase: Phase) -> Verdict:
        """Say what an error means; every exception gets a verdict."""

    async def acknowledge(self, positions: Mapping[str, Position]) -> None:
        """Tell the service that everything up to these positions is durable."""


class Source(Protocol):
    """What a user reads from, as a value."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the records in a batch."""

    def connect(self) -> AbstractAsyncContextManager[Connection]:
        """Open the connection: check that the source exists and that we may read it."""

    def cursor(self, records: pa.RecordBatch, row: int) -> Cursor:
        """Return the position after one row, so that a batch can be cut behind it."""
