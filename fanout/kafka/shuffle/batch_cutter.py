"""Cut batches of a shuffle's topic after control frames, and apply these to the producers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import pyarrow as pa
import pyarrow.compute as pc

from fanout.core.events import Batch, Gap
from fanout.core.positions import Cursor, Range
from fanout.core.sentence import Suggestion
from fanout.errors import BadFrameError
from fanout.kafka.shuffle.frame_columns import CONTROL, SCHEMA
from fanout.kafka.shuffle.frames import decode_control

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fanout.core.events import Split
    from fanout.core.positions import Position
    from fanout.kafka.shuffle.frames import ControlFrame
    from fanout.kafka.shuffle.producers import Producers

_NO_RECORDS: Final = pa.RecordBatch.from_pylist([], schema=SCHEMA)


@final
class BatchCutter:
    """Cut the batches of one partition into pieces: records, then control frames.

    A control frame after a record is not known yet at that record. So the state of the producers
    changes at the end of a piece only, and a piece can be cut anywhere. The producers are kept up
    to
    date, and `on_frame` gets each control frame of the newest generation. With `skip_bad_frames` a
    record that is no frame is left out, as a gap.
    """

    def __init__(
        self,
        split: Split,
        position: Position,
        producers: Producers,
        *,
        skip_bad_frames: bool,
        on_frame: Callable[[ControlFrame], None],
    ) -> None:
        self._split = split
        self._position = position
        self._producers = producers
        self._skip_bad_frames = skip_bad_frames
        self._on_frame = on_frame

    def cut(self, batch: Batch) -> Iterator[Batch]:
        """Yield the pieces of a batch with the columns of `FRAMED`; the last ends with the batch.

        Raises:
            BadFrameError: If a record is no frame or contradicts others, and is not to be skipped.
                The piece before it is yielded first.
        """
        piece = _Piece(batch, 0)
        for row, value in _control_rows(batch.records):
            if row > piece.end and piece.has_control:
                yield self._batch(piece, piece.last_offset)
                piece = _Piece(batch, piece.end)
            try:
                frame = decode_control(value)
                if self._producers.apply(frame):
                    self._on_frame(frame)
            except BadFrameError as error:
                if self._skip_bad_frames:
                    piece.lose(row, f"no frame of the shuffle: {error}")
                    continue
                offset = batch.records["offset"][row].as_py()
                piece.end = row
                yield self._batch(piece, offset - 1)
                raise _bad_frame_error(batch, offset, error) from None
            piece.end, piece.has_control = row + 1, True
        if piece.has_control and piece.end < batch.num_records:
            yield self._batch(piece, piece.last_offset)
            piece = _Piece(batch, piece.end)
        piece.end = batch.num_records
        assert isinstance(batch.range.until, Cursor), "batches of Kafka end at an offset"
        yield self._batch(piece, batch.range.until.sequence, whole=batch)

    def without_records(self) -> Batch:
        """Return a piece without records at the same position, after producers were left out."""
        assert isinstance(self._position, Cursor), "a piece was yielded before"
        span = self._move(self._position.sequence)
        return Batch(self._split, _NO_RECORDS, span, watermark=self._producers.watermark)

    def _batch(self, piece: _Piece, last_offset: int, *, whole: Batch | None = None) -> Batch:
        lag, behind = (None, None) if whole is None else (whole.lag, whole.behind)
        if behind == 0 and self._producers.ended:
            lag = None  # lag 0 would mean a stop, but the end of the partition comes next
        return Batch(
            self._split,
            piece.records(),
            self._move(last_offset),
            lag,
            tuple(piece.gaps),
            behind,
            self._producers.watermark,
        )

    def _move(self, last_offset: int) -> Range:
        after, state = self._position, self._producers.to_state()
        self._position = Cursor(last_offset, state=state)
        return Range(after, self._position)


@final
class _Piece:
    """Rows of a batch: records, then control frames.

    `end` is the row behind the piece so far; `has_control` tells whether it has a control frame.
    """

    def __init__(self, batch: Batch, first: int) -> None:
        self.batch = batch
        self.end = self._first = first
        self.has_control = False
        self.gaps: list[Gap] = []
        self._lost_row = -1

    @property
    def last_offset(self) -> int:
        return int(self.batch.records["offset"][self.end - 1].as_py())

    def lose(self, row: int, reason: str) -> None:
        """Leave a row out, as a gap; neighbouring rows are one gap."""
        offset = self.batch.records["offset"][row].as_py()
        if self.gaps and self._lost_row == row - 1:
            last = self.gaps.pop()
            self.gaps.append(Gap(last.after, Cursor(offset), last.reason))
        else:
            self.gaps.append(Gap(Cursor(offset - 1), Cursor(offset), reason))
        self._lost_row = row
        self.end = row + 1

    def records(self) -> pa.RecordBatch:
        rows = self.batch.records.slice(self._first, self.end - self._first)
        control = rows[CONTROL]
        count = control.null_count
        if count < len(control):
            # Mostly the control frames come last, so that nothing has to be copied.
            leads = control.slice(0, count).null_count == count
            rows = rows.slice(0, count) if leads else rows.filter(control.is_null())
        return rows.select(SCHEMA.names) if rows.num_rows else _NO_RECORDS


def _control_rows(records: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
    """Yield the rows that are no records, with the beginnings of their values."""
    control = records[CONTROL]
    if control.null_count == len(control):
        return
    rows = pc.indices_nonzero(control.is_valid()).to_pylist()
    yield from zip(rows, control.drop_null().to_pylist(), strict=True)


def _bad_frame_error(batch: Batch, offset: int, error: BadFrameError) -> BadFrameError:
    return BadFrameError(
        f"the record of {batch.split} at offset {offset} is no frame of the shuffle: {error}; is "
        "the topic written to by another program?",
        Suggestion.of(" {on_bad_frame='gap'} leaves such records out"),
    )
