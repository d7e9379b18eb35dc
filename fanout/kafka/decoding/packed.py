"""The records of some batches of an answer, packed until all of them become columns at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from fanout.kafka.decoding.columns import Unpacked
from fanout.kafka.decoding.framing import BREAKS_FORMAT, RECORDS_AT, damaged
from fanout.kafka.decoding.unpacking import unpack, walk

if TYPE_CHECKING:
    import pyarrow as pa

    from fanout.errors import DamagedFrameError
    from fanout.kafka.decoding.columns import Layout
    from fanout.kafka.decoding.framing import RawBatch
    from fanout.kafka.decoding.unpacking import Fields
    from fanout.kafka.decoding.varints import Bytes, Numbers
    from fanout.kafka.partitions import Partition

__all__ = ("Damage", "PackedRecords")


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
