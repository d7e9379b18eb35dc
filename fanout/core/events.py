"""Splits and their events: batches, gaps, ends and failures.

Resharding replaces a split by its children. A record of a key that was written before the reshard
is in the parent, one written after it is in a child. A child may only be read once all its parents
have been read to their end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, final

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    import pyarrow as pa

    from fanout.core.positions import Position, Range
    from fanout.errors import SplitFailedError


@final
@dataclass(frozen=True, slots=True)
class Split:
    """One independently ordered piece of a source: a Kinesis shard or a Kafka partition.

    Args:
        id: The service's own name of the piece, unique within its source.
        parents: The ids of the splits that this one replaced, none for an original split.
    """

    id: str
    parents: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.id


def startable(
    splits: Mapping[str, Split], finished: Container[str], listed: Container[str]
) -> Iterator[Split]:
    """Yield the splits that are not finished and whose parents are all finished or expired.

    A parent has expired when it is unknown although the service's latest listing names the child. A
    child that is known only from its parent's end must be listed first, because its other parent
    may be a split that is not known yet.
    """
    for split in splits.values():
        if split.id in finished:
            continue
        if all(
            parent in finished or (parent not in splits and split.id in listed)
            for parent in split.parents
        ):
            yield split


@final
@dataclass(frozen=True, slots=True)
class Gap:
    """Records of a split that are lost.

    Args:
        after: Where the reader stood before them.
        until: Where it continues; None at the end of the split.
        reason: Why they are lost, a clause without a full stop.
    """

    after: Position
    until: Position | None
    reason: str


UNCOUNTED: Final = -1
"""Let a batch count its bytes."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Records of one split, in order, and the range that they cover.

    A batch without records is idle progress: the service reports that everything up to
    `range.until` has been sent.

    Args:
        split: The split that the records belong to.
        records: The records, one row each, in the source's schema.
        range: The piece of the split that this batch covers.
        lag: Seconds that the batch is behind the newest record of its split; 0 at the tip, None
            where the service does not report it. In a bounded stream 0 means that the batch reaches
            the split's stop, and nothing else does.
        gaps: Records that were lost before this batch; none, unless an option allows losses.
        behind: Records from the end of the batch to the end of its split; None where the service
            does not report it.
        watermark: The split's watermark after this batch, in milliseconds since the Unix epoch: no
            event that is as old is expected any more. None where the source has no event time, or
            no record had one yet.
        nbytes: The bytes that the records take in memory; counted if they are left out.
        bad_records: How many records were left out because `decode` failed for them.
        event_times: The event time of each record, in its order; None where the source has no
            `event_time`, or the records carry watermarks instead.
    """

    split: Split
    records: pa.RecordBatch
    range: Range
    lag: float | None = None
    gaps: tuple[Gap, ...] = ()
    behind: int | None = None
    watermark: int | None = None
    nbytes: int = UNCOUNTED
    bad_records: int = 0
    event_times: pa.Array | None = None

    def __post_init__(self) -> None:
        # Arrow takes longer to count the bytes than all other counting of a batch together.
        if self.nbytes == UNCOUNTED:
            nbytes = self.records.nbytes if self.records.num_rows else 0
            object.__setattr__(self, "nbytes", nbytes)

    @property
    def num_records(self) -> int:
        """The number of records."""
        return int(self.records.num_rows)

    def __repr__(self) -> str:
        return f"<Batch {self.split} {self.num_records} records until={self.range.until}>"


@final
@dataclass(frozen=True, slots=True, eq=False)
class BadRecords:
    """Records that `decode` fails for, of one batch, in order.

    Args:
        split: Their shard or partition.
        records: The records as `decode` got them, with the columns that locate them.
        errors: What `decode` raised for each.
    """

    split: Split
    records: pa.RecordBatch
    errors: tuple[BaseException, ...]

    def __repr__(self) -> str:
        return f"<BadRecords {self.split} {len(self.errors)} records>"


@final
@dataclass(frozen=True, slots=True)
class End:
    """A split is finished: every record of it has been sent, or is lost."""

    split: Split
    children: tuple[Split, ...] = ()  # the splits that replace it, with all their parents
    gaps: tuple[Gap, ...] = ()  # what was lost before the end; none, unless an option allows losses


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """A split cannot be read further: the poison pill."""

    split: Split
    error: SplitFailedError  # its `__cause__` is the service's own error


Event: TypeAlias = Batch | End | Failure
