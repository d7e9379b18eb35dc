"""The columns of records from a queue, their names, and how those are stored."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final, Literal, final

import msgspec
import numpy as np
import pyarrow as pa

from fanout.core.stored_json import StoredFormat
from fanout.core.user_decode import PlaceColumns, no_records
from fanout.errors import PositionError, ServiceError
from fanout.kinesis.reading.decode import ARRIVAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fanout.core.lending.dedup import Dedup
    from fanout.core.lending.seam import Rows

SCHEMA: Final = pa.schema(
    [
        pa.field("partitionKey", pa.string()),
        pa.field("data", pa.binary()),
        pa.field("stream", pa.string()),
        pa.field("queue", pa.string()),
        pa.field("recordId", pa.string()),
        pa.field("approximateArrivalTimestamp", ARRIVAL),
        pa.field("receiveCount", pa.int32()),
    ]
)
NO_RECORDS: Final = no_records(SCHEMA)
PLACES: Final = PlaceColumns(
    names=("stream", "queue", "recordId"), numbers=("recordId",), word="record"
)
"""The columns that `decode` has to keep."""

MAX_UNCONFIRMED: Final = 1024 * 1024
"""Characters of the stored list; a checkpoint takes as many."""


class QueueRecord(msgspec.Struct, frozen=True, rename="pascal"):
    """A record as a queue delivers it; times are in seconds since the epoch."""

    receipt_handle: str
    record_id: str
    data: bytes
    approximate_arrival_timestamp: float
    receive_count: int
    partition_key: str | None = None
    first_receive_timestamp: float = 0.0


@final
@dataclass(slots=True, eq=False)
class HeldRecord:
    """A record that a member has received and not settled; times are of the loop's clock."""

    record: QueueRecord
    receipt: str
    deadline: float  # until then nobody else gets it
    received_at: float
    settled: bool = False


@final
@dataclass(frozen=True, slots=True, eq=False)
class LentIds:
    """The ids of the records of one poll; see `Lent` of `fanout.core.lending.seam`."""

    queue: str
    ids: Sequence[str]
    held: Sequence[HeldRecord]
    _rows: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rows", {id_: row for row, id_ in enumerate(self.ids)})

    def pieces(self, rows: Rows) -> list[str]:
        """Return the ids of rows."""
        return [self.ids[row] for row in rows.tolist()]

    def rows_of(self, piece: str) -> Rows:
        """Return the row of an id."""
        return np.array([self._rows[piece]], np.int64)

    def groups(self, rows: Rows) -> list[tuple[object, Rows]]:
        """Return all rows, as those of the queue."""
        return [(self.queue, rows)]

    def lock_deadline(self, lock_seconds: float) -> float:
        """Return when the first record that is not settled may become visible to others."""
        del lock_seconds
        return min((each.deadline for each in self.held if not each.settled), default=math.inf)


@final
@dataclass(frozen=True, slots=True, eq=False)
class PolledQueueRecords:
    """What one poll of a member brought; see `Polled` of `fanout.core.lending.seam`."""

    records: pa.RecordBatch
    delivery_counts: np.ndarray[tuple[int], np.dtype[np.int32]]
    unreadable: Rows
    lent: LentIds


def to_columns(held: Sequence[HeldRecord], stream: str, queue: str) -> PolledQueueRecords:
    """Turn records, at least one, into columns."""
    records = [each.record for each in held]
    ids = [each.record_id for each in records]
    counts = np.array([each.receive_count for each in records], np.int32)
    arrivals = [round(each.approximate_arrival_timestamp * 1000) * 1000 for each in records]
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([each.partition_key for each in records], pa.string()),
            pa.array([each.data for each in records], pa.binary()),
            pa.array([stream] * len(records), pa.string()),
            pa.array([queue] * len(records), pa.string()),
            pa.array(ids, pa.string()),
            pa.array(arrivals, pa.int64()).cast(ARRIVAL),
            pa.array(counts),
        ],
        schema=SCHEMA,
    )
    return PolledQueueRecords(batch, counts, np.empty(0, np.int64), LentIds(queue, ids, held))


@final
class IdSet(dict[str, None]):
    """A set of records by their ids, in the order in which they were added."""

    def add(self, piece: str) -> None:
        """Add a record, which may be in the set already."""
        self[piece] = None

    def remove(self, piece: str) -> None:
        """Remove a record if it is in the set."""
        self.pop(piece, None)

    def overlaps(self, piece: str) -> list[str]:
        """Return the record if it is in the set."""
        return [piece] if piece in self else []


class _UnconfirmedIdsWire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    source: Annotated[str, msgspec.Meta(min_length=1, max_length=2100)]
    ids: list[Annotated[str, msgspec.Meta(min_length=1, max_length=64)]]


_WHAT: Final = "the stored unconfirmed records"
_FORMAT: Final = StoredFormat(
    wire=_UnconfirmedIdsWire,
    max_size=MAX_UNCONFIRMED,
    error=PositionError,
    version=1,
    plural=True,
)


@final
class IdNaming:
    """Name the records of one queue; `source` is the identity of the source."""

    owners: Final = "records"
    row_column: Final = "recordId"
    unreadable: Final = "the record cannot be read"

    def __init__(self, source: str) -> None:
        self._source = source

    def new_set(self) -> IdSet:
        """Return an empty set."""
        return IdSet()

    def count(self, pieces: Iterable[str]) -> int:
        """Return the number of records."""
        return sum(1 for _ in pieces)

    def describe(self, pieces: Sequence[str]) -> tuple[str, ...]:
        """Return the records, for messages."""
        return tuple(f"record {piece}" for piece in pieces)

    def owner(self, piece: str) -> str:
        """Return the record: the service answers about each."""
        return piece

    def write(self, pieces: Iterable[str]) -> str:
        """Return ids as JSON."""
        text = msgspec.json.encode(_UnconfirmedIdsWire(1, self._source, list(pieces)))
        if len(text) > MAX_UNCONFIRMED:
            raise ServiceError(
                f"the list of records whose acknowledgement {self._source} has not confirmed has "
                f"{len(text)} bytes, more than {MAX_UNCONFIRMED}: the service takes no "
                f"acknowledgements in time"
            )
        return text.decode()

    def read(self, text: str) -> list[str]:
        """Read ids back, none from an empty text."""
        if not text:
            return []
        wire = _FORMAT.read(text, _WHAT)
        if wire.source != self._source:
            raise PositionError(f"{_WHAT} belong to {wire.source}, not to {self._source}")
        return wire.ids

    def forget_gone(self, dedup: Dedup[str]) -> None:
        """Forget nothing: the service does not tell which records cannot come again."""

    async def forget_replaced(self, dedup: Dedup[str]) -> None:
        """Forget nothing: an id is that of one record for ever."""
