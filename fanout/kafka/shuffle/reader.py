"""Read one partition of a shuffle: its records, its watermark and its end.

Batches are cut after control frames, which are applied to the producers.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final, final

import pyarrow as pa
import pyarrow.compute as pc

from fanout.core.events import Batch, End, Gap
from fanout.core.positions import Cursor, Range
from fanout.core.sentence import Suggestion
from fanout.core.user_decode import no_records
from fanout.errors import BadFrameError, SilentProducerError
from fanout.kafka.reading.offsets import cursor_before, topic_id_at
from fanout.kafka.reading.subscription import HEARTBEAT
from fanout.kafka.shuffle.frames import CONTROL, SCHEMA, decode_control
from fanout.kafka.shuffle.producers import Producers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator

    from fanout.core.events import Split
    from fanout.core.positions import Position
    from fanout.core.source import Reserve
    from fanout.kafka.shuffle.frames import ControlFrame
    from fanout.kafka.shuffle.producers import Liveness

_NO_RECORDS: Final = no_records(SCHEMA)

log = logging.getLogger(__name__)


@final
class BatchCutter:
    """Cut the batches of one partition into pieces: records, then control frames.

    A control frame after a record is not known yet at that record. So the state of the producers
    changes at the end of a piece only, and a piece can be cut anywhere. The producers are kept up
    to date, and `on_frame` gets each control frame of the newest generation. With `skip_bad_frames`
    a record that is no frame is left out, as a gap.
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
        self._topic_id = topic_id_at(position)
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
        self._topic_id = topic_id_at(batch.range.until)
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
        after = self._position
        self._position = with_producers(last_offset + 1, self._topic_id, self._producers)
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


def producers_at(position: Position) -> Producers:
    """Return the producers of a partition at a position.

    Args:
        position: A position of a shuffle, from statistics or a checkpoint.

    Raises:
        PositionError: If the state that is stored with the position is damaged.
    """
    state = position.state if isinstance(position, Cursor) else ""
    of_topic = cursor_before(0, topic_id=topic_id_at(position)).state
    return Producers.from_state(state.removeprefix(of_topic))


def with_producers(offset: int, topic_id: str, producers: Producers) -> Cursor:
    """Return the position from which `offset` is the next one, for `producers_at`."""
    at = cursor_before(offset, topic_id=topic_id)
    return replace(at, state=at.state + producers.to_state())


@final
class ShuffleReader:
    """Turn a subscription to a partition of Kafka into one to a partition of a shuffle.

    `liveness` lasts over all subscriptions to the partition. `check_partitions` gets the number of
    partitions that producers announce, and raises if the topic has another number. PositionError is
    raised if the state that is stored with the position is damaged.
    """

    def __init__(
        self,
        split: Split,
        position: Position,
        *,
        skip_bad_frames: bool,
        leave_out_silent: bool,
        liveness: Liveness,
        check_partitions: Callable[[int], Awaitable[None]],
    ) -> None:
        self._split = split
        self._leave_out_silent = leave_out_silent
        self._liveness = liveness
        self._check_partitions = check_partitions
        self._producers = producers_at(position)
        self._cutter = BatchCutter(
            split,
            position,
            self._producers,
            skip_bad_frames=skip_bad_frames,
            on_frame=self._on_frame,
        )

    async def read(
        self, batches: AsyncIterator[Batch | End], reserve: Reserve
    ) -> AsyncGenerator[Batch | End]:
        """Yield pieces, and `End` once every producer has ended and nothing follows.

        Raises:
            BadFrameError: If a record is no frame, and is not to be skipped.
            ServiceError: If the topic has another number of partitions than producers announce.
            SilentProducerError: If a producer is silent, and is not to be left out.
        """
        waits_at_end = False
        while True:
            began = asyncio.get_running_loop().time()
            batch = await anext(batches)
            waited = asyncio.get_running_loop().time() - began
            if waits_at_end:
                # The subscription reports an empty partition at this interval. A longer wait has
                # other causes than the producers: memory, the network, or other code in the loop.
                self._liveness.waited(min(waited, HEARTBEAT))
            assert not isinstance(batch, End), "a partition of Kafka has no end"
            waits_at_end = batch.behind == 0
            reserved = True  # the memory of the whole batch, which the first piece takes over
            for piece in self._cutter.cut(batch):
                if self._producers.partitions is not None:
                    await self._check_partitions(self._producers.partitions)
                if not reserved and piece.nbytes:
                    await reserve(piece.nbytes)
                yield piece
                reserved = False
            del batch, piece  # free the records before the next wait
            if waits_at_end and self._producers.ended:
                yield End(self._split)
                return
            if waits_at_end and self._leave_out():
                yield self._cutter.without_records()

    def _on_frame(self, frame: ControlFrame) -> None:
        self._liveness.note_frame(frame.generation, frame.producer)

    def _leave_out(self) -> bool:
        """Leave out silent producers; return whether there are any."""
        silent = self._liveness.timed_out(self._producers.awaited)
        if not silent:
            return False
        names = ", ".join(map(str, silent))
        message = (
            f"these producers of {self._split}, of generation {self._producers.generation}, have "
            f"written nothing for {self._liveness.timeout:g} s: {names}"
        )
        if not self._leave_out_silent:
            raise SilentProducerError(
                f"{message}; start them again",
                Suggestion.of(", or go on without them: {on_silent_producer='leave_out'}"),
            )
        log.warning("%s; the watermark goes on without them", message)
        self._producers.leave_out(silent)
        return True
