"""What the events of a shard say, however they came: batches in a chain, and the end."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final, final

import pyarrow.compute as pc

from fanout.core.events import Batch, End, Gap, Split
from fanout.core.positions import WHOLE_RECORD, Cursor, Range, reaches
from fanout.errors import DamagedFrameError, MalformedEventError, UnconfirmedEndError
from fanout.kinesis.reading.decode import all_decimal, is_decimal

if TYPE_CHECKING:
    import pyarrow as pa

    from fanout.core.positions import Position
    from fanout.kinesis.reading.deaggregation import Deaggregator, SubRecords
    from fanout.kinesis.reading.decode import ShardEvent

__all__ = ("ShardReader",)

log = logging.getLogger(__name__)

# As many as a stored position may have; the service uses 56 today.
_MAX_DIGITS: Final = 128


@final
class ShardReader:
    """Follow a shard: each event has to fit behind the one before.

    After `read`, `ended` says whether the shard has ended. `doubt` is to be raised once the batches
    are handed on: the event has one sign of the end without the other, and one sign alone could be
    a fault whose belief would lose the rest of the shard.

    Args:
        split: The shard.
        position: Where the reader stands at first.
        deaggregator: What takes the stream's aggregated records apart; it is told the hash keys
            of the shard's children.
        droppable: How many frames may be dropped before the first event.
    """

    def __init__(
        self,
        split: Split,
        position: Position,
        deaggregator: Deaggregator,
        *,
        droppable: int = 0,
    ) -> None:
        self.ended = False
        self.doubt: UnconfirmedEndError | None = None
        self.position = position
        self._split = split
        self._deaggregator = deaggregator
        self._droppable = droppable
        self._dropped = ""

    def read(self, event: ShardEvent) -> deque[Batch | End]:
        """Return what an event says, and stand behind it.

        Raises:
            MalformedEventError: If it says what cannot be true.
        """
        said: deque[Batch | End] = deque()
        behind, lost = self._behind_dropped(event)
        batch = _batch(event, self._split, behind, self._deaggregator)
        if lost:
            covered = Range(self.position, batch.range.until)
            batch = replace(batch, range=covered, gaps=lost + batch.gaps)
        self.position = batch.range.until
        self.doubt = _doubt(event, self._split)
        self.ended = event.ended and self.doubt is None
        # A loss up to an end that is in doubt is none yet: whoever asks again comes to it again.
        if batch.num_records or not event.ended or (batch.gaps and self.ended):
            said.append(batch)
        if self.ended:
            for child in event.children:
                self._deaggregator.set_hash_range(child.shard_id, child.hash_range)
            children = (Split(child.shard_id, child.parents) for child in event.children)
            said.append(End(self._split, tuple(children)))
        return said

    def drop(self, error: DamagedFrameError) -> None:
        """Leave out a damaged frame; the next batch tells what is lost.

        Raises:
            DamagedFrameError: If no more frames may be dropped here.
        """
        if not self._droppable:
            raise error
        self._droppable -= 1
        self._dropped = str(error)

    def close(self) -> None:
        """Declare the end of what a subscription sends.

        Raises:
            MalformedEventError: If a frame was dropped and nothing came behind it.
        """
        if self._dropped:
            raise MalformedEventError(
                f"{self._split} sent nothing behind a damaged frame, which may have been its end: "
                f"{self._dropped}"
            )

    def _behind_dropped(self, event: ShardEvent) -> tuple[Position, tuple[Gap, ...]]:
        """Return where the reader stands before an event, and what is lost before it."""
        reason, self._dropped, self._droppable = self._dropped, "", 0
        after = self.position
        if not reason:
            return after, ()
        until, inside = _start_of(event), _inside_record(after)
        if inside is not None and until == Cursor(inside.sequence - 1):
            return after, ()
        log.error("records of %s are lost in a damaged frame: %s", self._split, reason)
        # The rest of a record in which the reader stood was in that frame.
        behind = after if inside is None else Cursor(inside.sequence)
        return behind, (Gap(after, until, reason),)


def _start_of(event: ShardEvent) -> Cursor | None:
    """Return a position right before what an event says; None before the end of the shard."""
    numbers = event.records.column("sequenceNumber")
    _check_sequence_numbers(numbers)
    if len(numbers):
        return Cursor(int(numbers[0].as_py()) - 1)
    if event.continuation is None:
        return None
    return _cursor(event.continuation)


def _doubt(event: ShardEvent, split: Split) -> UnconfirmedEndError | None:
    if event.ended and not event.children:
        text = f"{split} sent no continuation, but no child shards either"
        return UnconfirmedEndError(text, exhausted=True)
    if not event.ended and event.children:
        text = f"{split} sent child shards, but a continuation as well"
        return UnconfirmedEndError(text, exhausted=False)
    return None


def _batch(
    event: ShardEvent, split: Split, position: Position, deaggregator: Deaggregator
) -> Batch:
    numbers = event.records.column("sequenceNumber")
    _check_sequence_numbers(numbers)
    inside = _inside_record(position)
    if inside is not None and not len(numbers):
        return _nothing_yet(event, split, inside)
    first, last = position, position
    if len(numbers):
        first, last = (Cursor(int(numbers[row].as_py())) for row in (0, -1))
        if reaches(position, first):
            raise MalformedEventError(f"{split} sent a record that is not after its position")
    until = last
    if event.continuation is not None:
        until = _cursor(event.continuation)
    if not (reaches(until, last) and reaches(until, position)):
        raise MalformedEventError(
            f"{split} sent a continuation that is before its position or its last record"
        )
    parts = deaggregator.deaggregate(event.records, split)
    gaps = _gaps(numbers, parts, position)
    if gaps:
        log.error("records of %s are lost, the first of %d: %s", split, len(gaps), gaps[0].reason)
    read = 0 if inside is None else _rows_read(parts, split, inside, gaps)
    lag = None if event.millis_behind is None else event.millis_behind / 1000
    return Batch(split, parts.after(read), Range(position, until), lag, gaps)


def _gaps(numbers: pa.Array, parts: SubRecords, position: Position) -> tuple[Gap, ...]:
    """Return a gap around exactly each record that is lost."""
    cursors = (Cursor(int(number)) for number in numbers.to_pylist())
    places = list(pairwise(chain([position], cursors))) if parts.lost else []
    return tuple(Gap(*places[row], reason) for row, reason in parts.lost)


def _inside_record(position: Position) -> Cursor | None:
    match position:
        case Cursor(_, sub) if sub != WHOLE_RECORD:
            return position
        case _:
            return None


def _nothing_yet(event: ShardEvent, split: Split, position: Cursor) -> Batch:
    """Stay inside a record, whatever the continuation: to follow it would skip the record's rest.

    The lag is left open, as a rest that is still to come is not caught up with.
    """
    if event.ended:
        raise MalformedEventError(f"{split} ended before the rest of an aggregated record")
    return Batch(split, event.records, Range(position, position), lag=None)


def _rows_read(parts: SubRecords, split: Split, position: Cursor, gaps: tuple[Gap, ...]) -> int:
    """Return the number of sub-records that were handed on before, all of which must be there."""
    if gaps and gaps[0].until == Cursor(position.sequence):
        return 0  # the rest of that record is lost
    read = parts.records.slice(0, position.sub + 1)
    numbers = pc.unique(read.column("sequenceNumber")).to_pylist()
    if read.num_rows <= position.sub or [int(number) for number in numbers] != [position.sequence]:
        raise MalformedEventError(
            f"{split} did not begin with sub-record {position.sub} and those before it of the "
            f"record {position.sequence}, where its reader stands"
        )
    return position.sub + 1


def _check_sequence_numbers(numbers: pa.StringArray) -> None:
    """Check every number, as a batch may be cut behind any of them."""
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
