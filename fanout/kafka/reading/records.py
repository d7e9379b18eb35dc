"""The records of some batches of an answer, packed until all of them become columns at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
import pyarrow as pa

from fanout.errors import FanOutError, MalformedEventError
from fanout.kafka.reading.columns import KAFKA, Unpacked
from fanout.kafka.reading.record_batches import (
    BREAKS_FORMAT,
    RECORDS_AT,
    Aborts,
    damaged,
    nbytes,
    raw_batches,
    uncompressed,
)
from fanout.kafka.reading.unpacking import unpack, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.errors import DamagedFrameError
    from fanout.kafka.partitions import Partition
    from fanout.kafka.reading.columns import Layout
    from fanout.kafka.reading.record_batches import RawBatch
    from fanout.kafka.reading.transport import Fetched
    from fanout.kafka.reading.unpacking import Bytes, Fields, Numbers

__all__ = (
    "Damage",
    "Decoded",
    "PackedRecords",
    "decode",
)


@final
@dataclass(frozen=True, slots=True)
class Damage:
    """A record that cannot be read.

    Args:
        base_offset: The first offset of its batch.
        error: What there is to raise.
    """

    base_offset: int
    error: DamagedFrameError


@final
class PackedRecords:
    """Collect record batches: where each of their records begins, and what is needed beside it.

    Args:
        answer: What the batches are cut from. It is read in place, unless some were compressed.
        partition: Where it is from.
    """

    def __init__(self, answer: bytes | memoryview, partition: Partition) -> None:
        self._answer = answer
        self._partition = partition
        self._begins: list[int] = []
        # How many records there are, the first and the last offset, the timestamp that they count
        # from, who set theirs, where the batch is in the answer, and how long it is uncompressed.
        self._batches: list[tuple[int, int, int, int, int, int, int]] = []
        self._inflated: dict[int, bytes] = {}

    def add(self, batch: RawBatch, data: bytes) -> None:
        """Take a batch.

        Args:
            batch: The batch as it came.
            data: Its data, not compressed.

        Raises:
            DamagedFrameError: If its records do not fill it; those before the break are taken.
        """
        before = len(self._begins)
        filled = walk(data, RECORDS_AT, batch.rows, self._begins)
        if data is not batch.data:
            self._inflated[len(self._batches)] = data
        base, last, by_broker = batch.base_offset, batch.next_offset - 1, batch.timestamp_type
        timestamp = batch.max_timestamp if by_broker else batch.first_timestamp
        rows = len(self._begins) - before
        self._batches.append((rows, base, last, timestamp, by_broker, batch.at, len(data)))
        if not filled:
            raise damaged(self._partition, base, last, BREAKS_FORMAT)

    def unpacked(self, layout: Layout) -> tuple[pa.RecordBatch, Damage | None]:
        """Return the records before the first that cannot be read, and what is wrong with it.

        Args:
            layout: Which columns are made of the records.
        """
        if not self._begins:
            return layout.no_records, None
        rows, bases, lasts, timestamps, by_broker, at, sizes = np.array(self._batches, np.int64).T
        data, at = self._joined(at, sizes)
        begins = np.array(self._begins, np.int64) + np.repeat(at, rows)
        self._begins, self._inflated = [], {}
        batches = np.repeat(np.arange(len(rows)), rows)
        fields, why = _unpacked(data, begins, (lasts - bases)[batches])
        damage = None
        if len(fields) < len(begins):
            number = batches[len(fields)]
            batches = batches[: len(fields)]
            base = int(bases[number])
            damage = Damage(base, damaged(self._partition, base, int(lasts[number]), why))
        if not len(fields):
            return layout.no_records, damage
        times, types = timestamps[batches], by_broker[batches].astype(np.int32)
        records = Unpacked(
            fields,
            data,
            self._partition,
            offsets=bases[batches] + fields.offset_deltas,
            timestamps=np.where(types, times, times + fields.timestamp_deltas),
            timestamp_types=types,
        )
        return layout.columns(records), damage

    def _joined(self, at: Numbers, sizes: Numbers) -> tuple[Bytes, Numbers]:
        """Return the batches in one piece, not compressed, and where each begins in it."""
        if not self._inflated:
            return np.frombuffer(self._answer, np.uint8), at
        answer = memoryview(self._answer)
        pieces = [
            self._inflated.get(number) or answer[begin : begin + size]
            for number, (begin, size) in enumerate(zip(at.tolist(), sizes.tolist(), strict=True))
        ]
        return np.frombuffer(b"".join(pieces), np.uint8), np.cumsum(sizes) - sizes


def _unpacked(data: Bytes, begins: Numbers, most: Numbers) -> tuple[Fields, str]:
    """Find the fields of records, up to the first that cannot be read, and say what is wrong.

    Args:
        data: The bytes that they are in.
        begins: Where they begin.
        most: How far the offset of each may be from the first one of its batch.
    """
    fields = unpack(data, begins)
    deltas = fields.offset_deltas
    elsewhere = np.flatnonzero((deltas < 0) | (deltas > most[: len(deltas)]))
    if not len(elsewhere):
        return fields, BREAKS_FORMAT
    return unpack(data, begins[: elsewhere[0]]), "they have offsets of other batches"


@final
@dataclass(frozen=True, slots=True)
class Decoded:
    """A part of an answer.

    Args:
        records: Records in the order of their offsets, with the columns of the layout; maybe none.
        next_offset: The offset after everything that was covered, delivered or not.
    """

    records: pa.RecordBatch
    next_offset: int


def decode(
    fetched: Fetched,
    partition: Partition,
    *,
    offset: int,
    stop: int | None = None,
    read_committed: bool,
    max_bytes: int,
    layout: Layout = KAFKA,
) -> Iterator[Decoded]:
    """Decode an answer of Fetch; yield at least one part, and most often just one.

    What comes before an error is yielded first, so that the position moves up to the damage.

    Args:
        fetched: The answer.
        partition: Where it is from.
        offset: The first offset that is wanted.
        stop: The first offset that is not wanted; None where there is no such end.
        read_committed: Whether the records of aborted transactions are left out.
        max_bytes: About the most bytes in one part; a batch that is compressed and holds more is
            refused, and one that is not is a part of its own.
        layout: Which columns are made of the records, `offset` among them.

    Raises:
        DamagedFrameError: If a batch cannot be read; the message names its offsets.
        MalformedEventError: If what the broker sent is no record batch, or not one whole batch.
        SetupError: If a codec is missing.
    """
    for part in _parts(
        fetched, partition, offset, stop, read_committed=read_committed, max_bytes=max_bytes
    ):
        decoded, error = part.decoded(layout)
        if error is None or decoded.next_offset > part.first_offset:
            yield decoded
        del decoded
        if error is not None:
            raise error


def _parts(
    fetched: Fetched,
    partition: Partition,
    offset: int,
    stop: int | None,
    *,
    read_committed: bool,
    max_bytes: int,
) -> Iterator[_Part]:
    """Yield what is decoded at once; the last part has the error that ends the answer."""
    aborts = Aborts(fetched.aborted) if read_committed else None
    part = _Part(fetched, partition, offset, stop)
    try:
        for batch in raw_batches(fetched.batches, partition):
            if stop is not None and batch.base_offset >= stop:
                part.cover(stop)
                break
            left_out = aborts is not None and aborts.leave_out(batch, partition)
            if batch.control or left_out or batch.next_offset <= part.next_offset:
                part.cover(batch.next_offset)
                continue
            data = uncompressed(batch, partition, max_bytes)
            size = nbytes(data, batch.rows)
            if part.nbytes and part.nbytes + size > max_bytes:
                yield part
                part = _Part(fetched, partition, part.next_offset, stop)
            part.add(batch, data, size)
    except FanOutError as error:
        part.error = error
    else:
        if fetched.batches and part.next_offset == offset and (stop is None or offset < stop):
            raise MalformedEventError(
                f"{partition}: the broker sent no whole batch at offset {offset}"
            )
    yield part


@final
class _Part:
    """Collect the records of a part.

    Attributes:
        first_offset: The first offset that is wanted.
        next_offset: The offset after everything that was covered.
        nbytes: About what the records take in Arrow.
        error: What is wrong with what comes next, or None.
    """

    def __init__(
        self, fetched: Fetched, partition: Partition, offset: int, stop: int | None
    ) -> None:
        self._partition = partition
        self._stop = stop
        self._packed = PackedRecords(fetched.batches, partition)
        self.first_offset = self.next_offset = offset
        self.nbytes = 0
        self.error: FanOutError | None = None

    def cover(self, next_offset: int) -> None:
        """Move on; never back, and never beyond the stop."""
        if self._stop is not None:
            next_offset = min(next_offset, self._stop)
        self.next_offset = max(self.next_offset, next_offset)

    def add(self, batch: RawBatch, data: bytes, size: int) -> None:
        """Take a batch whose data is not compressed, and cover it.

        Args:
            batch: The batch.
            data: Its data.
            size: About what its records take in Arrow.
        """
        self._packed.add(batch, data)
        self.nbytes += size
        self.cover(batch.next_offset)

    def decoded(self, layout: Layout) -> tuple[Decoded, FanOutError | None]:
        """Return the part up to what cannot be read, and what is wrong with that."""
        records, damage = self._packed.unpacked(layout)
        records = self._wanted(records)
        if damage is not None:
            self.error = damage.error
            self.next_offset = max(self.first_offset, damage.base_offset)
        if self.error is not None and records.num_rows:
            self.cover(records["offset"][-1].as_py() + 1)
        return Decoded(records, self.next_offset), self.error

    def _wanted(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Leave out what lies before the first wanted offset, and from the stop on."""
        offsets = records["offset"].to_numpy()
        wanted = offsets >= self.first_offset
        if self._stop is not None:
            wanted &= offsets < self._stop
        if not wanted.all():
            records, offsets = records.filter(pa.array(wanted)), offsets[wanted]
        if (offsets[1:] <= offsets[:-1]).any():
            raise MalformedEventError(
                f"the records of {self._partition} at offsets {self.first_offset} to "
                f"{self.next_offset - 1} are in disorder"
            )
        return records
