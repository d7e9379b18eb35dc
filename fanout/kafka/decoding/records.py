"""What an answer of Fetch holds, as Arrow columns, and how far it goes.

Aborted transactions, control batches, compacted holes and batches that begin before the wanted
offset are what make the two differ: the position moves over all that was covered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import pyarrow as pa

from fanout.errors import FanOutError, MalformedEventError
from fanout.kafka.decoding.aborts import Aborts
from fanout.kafka.decoding.columns import KAFKA
from fanout.kafka.decoding.framing import nbytes, raw_batches, uncompressed
from fanout.kafka.decoding.packed import PackedRecords

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.kafka.decoding.columns import Layout
    from fanout.kafka.decoding.framing import RawBatch
    from fanout.kafka.partitions import Partition
    from fanout.kafka.transport import Fetched

__all__ = ("Decoded", "decode")


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
