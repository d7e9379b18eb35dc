"""Turn the events of a shard, subscribed or polled, into a chain of batches and the end.

Each batch begins where the one before ended. The gaps of lost records are stamped here.
"""

from __future__ import annotations

from collections import deque
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final, final

import pyarrow.compute as pc

from fanout.core.events import UNCOUNTED, Batch, End, Gap, Split
from fanout.core.positions import WHOLE_RECORD, Cursor, Range, reaches
from fanout.errors import DamagedFrameError, MalformedEventError, UnconfirmedEndError
from fanout.kinesis.reading.decode import FEW_ROWS

if TYPE_CHECKING:
    import pyarrow as pa

    from fanout.core.positions import Position
    from fanout.kinesis.reading.deaggregation import Deaggregator, SubRecords
    from fanout.kinesis.reading.decode import ShardEvent

# The most digits that a stored position may have; the service uses 56 today.
_MAX_DIGITS: Final = 128


@final
class ShardReader:
    """Follow the position of a shard, and check that each event continues the one before.

    Pass each event to `read`, hand on the batches that it returns, and then call `at_end`. Up to
    `droppable` frames may be dropped before the first event. The deaggregator receives the hash
    keys of the shard's children.
    """

    def __init__(
        self,
        split: Split,
        position: Position,
        deaggregator: Deaggregator,
        *,
        droppable: int = 0,
    ) -> None:
        self.position = position
        self._split = split
        self._deaggregator = deaggregator
        self._droppable = droppable
        self._dropped = ""
        self._ended = False
        self._unconfirmed: UnconfirmedEndError | None = None

    def read(self, event: ShardEvent) -> deque[Batch | End]:
        """Return the batch and the end that an event holds, and advance behind it."""
        batches: deque[Batch | End] = deque()
        batch = self._batch(event)
        self.position = batch.range.until
        self._unconfirmed = _unconfirmed_end(event, self._split)
        self._ended = event.ended and self._unconfirmed is None
        # A loss up to an end that is not confirmed is not reported: the next subscription begins
        # before it again.
        if batch.num_records or not event.ended or (batch.gaps and self._ended):
            batches.append(batch)
        if self._ended:
            for child in event.children:
                self._deaggregator.set_hash_range(child.shard_id, child.hash_range)
            children = (Split(child.shard_id, child.parents) for child in event.children)
            batches.append(End(self._split, tuple(children)))
        return batches

    def at_end(self) -> bool:
        """Return whether the shard has ended; call it once the batches of an event are handed on.

        One of the two signs of the end alone is an UnconfirmedEndError: it could be a fault, and
        acting on it would lose the rest of the shard.
        """
        if self._unconfirmed is not None:
            raise self._unconfirmed
        return self._ended

    def drop(self, error: DamagedFrameError) -> None:
        """Leave out a damaged frame, if one more may be; the next batch gets a gap."""
        if not self._droppable:
            raise error
        self._droppable -= 1
        self._dropped = str(error)

    def close(self) -> None:
        """Declare that the subscription sent nothing more; an event must follow a dropped frame."""
        if self._dropped:
            raise MalformedEventError(
                f"{self._split} sent nothing after a damaged frame, which may have been its end: "
                f"{self._dropped}"
            )

    def _batch(self, event: ShardEvent) -> Batch:
        numbers = event.records.column("sequenceNumber")
        _check_sequence_numbers(numbers)
        position, dropped = self._after_dropped(event)
        inside = _inside_record(position)
        if inside is not None and not len(numbers):
            return _nothing_yet(event, self._split, inside)
        first, last = position, position
        if len(numbers):
            first, last = (Cursor(int(numbers[row].as_py())) for row in (0, -1))
            if reaches(position, first):
                raise MalformedEventError(
                    f"{self._split} sent a record that is not after its position"
                )
        until = last
        if event.continuation is not None:
            until = _cursor(event.continuation)
        if not (reaches(until, last) and reaches(until, position)):
            raise MalformedEventError(
                f"{self._split} sent a continuation that is before its position or its last record"
            )
        rows = self._deaggregator.deaggregate(event.records, self._split)
        lost = _gaps(numbers, rows, position)
        delivered = 0 if inside is None else _rows_read(rows, self._split, inside, lost)
        lag = None if event.millis_behind is None else event.millis_behind / 1000
        covered = Range(self.position, until)
        records = rows.after(delivered)
        # The bytes of whole buffers are counted much sooner than those of their parts.
        whole = rows.records is event.records and not delivered
        nbytes = records.get_total_buffer_size() if whole else UNCOUNTED
        gaps = (*dropped, *lost)
        return Batch(self._split, records, covered, lag, gaps, nbytes=nbytes)

    def _after_dropped(self, event: ShardEvent) -> tuple[Position, tuple[Gap, ...]]:
        """Return the position after dropped frames, and the gap that they leave before an event."""
        reason, self._dropped, self._droppable = self._dropped, "", 0
        if not reason:
            return self.position, ()
        until, inside = _start_of(event), _inside_record(self.position)
        if inside is not None and until == Cursor(inside.sequence - 1):
            return self.position, ()
        # If a record was read in part, its other sub-records were in that frame.
        position = self.position if inside is None else Cursor(inside.sequence)
        return position, (Gap(self.position, until, reason),)


def _start_of(event: ShardEvent) -> Cursor | None:
    """Return the position right before an event; None for the shard's end without records."""
    numbers = event.records.column("sequenceNumber")
    if len(numbers):
        return Cursor(int(numbers[0].as_py()) - 1)
    if event.continuation is None:
        return None
    return _cursor(event.continuation)


def _unconfirmed_end(event: ShardEvent, split: Split) -> UnconfirmedEndError | None:
    if event.ended and not event.children:
        text = f"{split} sent no continuation, but no child shards either"
        return UnconfirmedEndError(text, exhausted=True)
    if not event.ended and event.children:
        text = f"{split} sent child shards, but a continuation as well"
        return UnconfirmedEndError(text, exhausted=False)
    return None


def _gaps(numbers: pa.Array, rows: SubRecords, position: Position) -> tuple[Gap, ...]:
    """Return a gap around exactly each aggregated record that is lost."""
    cursors = (Cursor(int(number)) for number in numbers.to_pylist())
    ranges = list(pairwise(chain([position], cursors))) if rows.lost else []
    return tuple(Gap(*ranges[row], reason) for row, reason in rows.lost)


def _inside_record(position: Position) -> Cursor | None:
    """Return a position between the sub-records of one record; None for any other."""
    match position:
        case Cursor(_, sub) if sub != WHOLE_RECORD:
            return position
        case _:
            return None


def _nothing_yet(event: ShardEvent, split: Split, position: Cursor) -> Batch:
    """Return an empty batch that stays inside a record."""
    # To follow the continuation would skip the record's other sub-records. The lag is None, as they
    # are still to come.
    if event.ended:
        raise MalformedEventError(f"{split} ended before the rest of an aggregated record")
    return Batch(split, event.records, Range(position, position), lag=None)


def _rows_read(rows: SubRecords, split: Split, position: Cursor, gaps: tuple[Gap, ...]) -> int:
    """Return how many sub-records were delivered before; all of them must be sent again."""
    if gaps and gaps[0].until == Cursor(position.sequence):
        return 0  # the rest of that record is lost
    read = rows.records.slice(0, position.sub + 1)
    numbers = pc.unique(read.column("sequenceNumber")).to_pylist()
    if read.num_rows <= position.sub or [int(number) for number in numbers] != [position.sequence]:
        raise MalformedEventError(
            f"{split} did not begin with the sub-records 0 to {position.sub} of the record "
            f"{position.sequence}, which its position is in"
        )
    return position.sub + 1


def _check_sequence_numbers(numbers: pa.StringArray) -> None:
    """Check every number, because a batch may be cut after any of them."""
    if not all_decimal(numbers, _MAX_DIGITS):
        raise _not_a_number()


def _cursor(number: str) -> Cursor:
    if not is_decimal(number, _MAX_DIGITS):
        raise _not_a_number()
    return Cursor(int(number))


def _not_a_number() -> MalformedEventError:
    return MalformedEventError(
        f"a sequence number is not a decimal number of up to {_MAX_DIGITS} digits"
    )


def is_decimal(text: str, max_digits: int) -> bool:
    """Return whether a text is 1 to `max_digits` of the digits 0 to 9, and nothing else."""
    return text.isascii() and text.isdecimal() and len(text) <= max_digits


def all_decimal(texts: pa.StringArray, max_digits: int) -> bool:
    """Return whether `is_decimal` is true for every text of a column."""
    if len(texts) <= FEW_ROWS:
        return all(is_decimal(text, max_digits) for text in texts.to_pylist())
    if pc.ascii_is_decimal(texts).false_count:
        return False
    longest: int = pc.max(pc.binary_length(texts)).as_py()
    return longest <= max_digits
