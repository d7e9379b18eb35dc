"""The seam of services that lend records: what a member, a poll and the names of records are.

A *piece* names one record or several neighbours: of Kafka offsets of a partition, of a queue the id
of a record.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from fanout.core.user_decode import UserDecode

    Rows = NDArray[np.int64]

P = TypeVar("P")
"""The type of a piece."""


@final
class Settlement(Enum):
    """What a stream tells the service about a record."""

    ACCEPT = auto()
    RELEASE = auto()
    REJECT = auto()


class PieceSet(Protocol[P]):
    """A set of records; any thread may call `len`."""

    def __iter__(self) -> Iterator[P]:
        """Iterate over pieces that cover the records."""

    def __len__(self) -> int:
        """Return the number of records."""

    def add(self, piece: P) -> None:
        """Add records; some of them may be in the set already."""

    def remove(self, piece: P) -> None:
        """Remove those of some records that are in the set."""

    def overlaps(self, piece: P) -> list[P]:
        """Return the parts of a piece that are in the set."""


class Lent(Protocol[P]):
    """The names and the locks of the records of one poll; a row is the index of a record in it."""

    def pieces(self, rows: Rows) -> list[P]:
        """Name rows."""

    def rows_of(self, piece: P) -> Rows:
        """Return the rows of a piece."""

    def groups(self, rows: Rows) -> Sequence[tuple[object, Rows]]:
        """Group rows, in their order, as the user's `decode` gets them, each with its name."""

    def lock_deadline(self, lock_seconds: float) -> float:
        """Return when the first lock may expire, by the loop's clock; it may move later."""


class Polled(Protocol[P]):
    """What one poll of a member brought, at least one record."""

    @property
    def records(self) -> pa.RecordBatch:
        """The records."""

    @property
    def delivery_counts(self) -> NDArray[np.int32]:
        """How often each record was delivered, this time included."""

    @property
    def unreadable(self) -> Rows:
        """The rows that the client cannot read."""

    @property
    def lent(self) -> Lent[P]:
        """The names and the locks of the records."""


class LendingMember(Protocol[P]):
    """One client of the service."""

    @property
    def fetching(self) -> bool:
        """Whether a fetch may be under way, so that records may be locked without a poll."""

    @property
    def polls_ahead(self) -> bool:
        """Whether to poll although the service has not answered all acknowledgements."""

    async def poll(self) -> Polled[P] | None:
        """Poll for a moment; return None if no records came."""

    def acknowledge(
        self, pieces: Sequence[P], kind: Settlement, /
    ) -> asyncio.Future[Mapping[Any, Exception]]:
        """Settle records; the result is why the service did not confirm it, by owner.

        It is sent whether or not the result is awaited.
        """


class DeadLetterWriter(Protocol):
    """Where rejected records are kept."""

    async def write(self, records: pa.RecordBatch, reasons: Sequence[str]) -> None:
        """Write records, each with its reason, and wait until they are durable."""


class LendingOptions(Protocol):
    """The user's options about each record."""

    @property
    def user_decode(self) -> UserDecode | None:
        """The user's `decode`; None if there is none."""

    @property
    def on_bad_record(self) -> str:
        """`"fail"` or `"dead_letter"`."""

    @property
    def max_deliveries(self) -> int | None:
        """How often a record may be delivered before it is bad."""
