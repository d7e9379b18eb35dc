"""What an answer of Fetch holds, as Arrow columns, and how far it goes.

Aborted transactions, control batches, compacted holes and batches that begin before the wanted
offset are what make the two differ: the position moves over all that was covered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import pyarrow.compute as pc

from fanout.errors import FanOutError, MalformedEventError
from fanout.kafka.columns import Columns
from fanout.kafka.framing import raw_batches, uncompressed, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from fanout.kafka.framing import RawBatch
    from fanout.kafka.partitions import Partition
    from fanout.kafka.transport import Aborted, Fetched

__all__ = ("Decoded", "decode")

_ABORT: Final = 0
_MARKER_BYTES: Final = 64 * 1024


@final
@dataclass(frozen=True, slots=True)
class Decoded:
    """A part of an answer.

    Args:
        records: Records in the order of their offsets, with the columns of SCHEMA; maybe none.
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

    Raises:
        DamagedFrameError: If a batch cannot be read; the message names its offsets.
        MalformedEventError: If what the broker sent is no record batch, or not one whole batch.
        SetupError: If a codec is missing.
    """
    aborts = _Aborts(fetched.aborted) if read_committed else None
    part = _Part(partition, offset, stop)
    try:
        for batch in raw_batches(fetched.batches, partition):
            if stop is not None and batch.base_offset >= stop:
                part.cover(stop)
                break
            left_out = aborts is not None and aborts.leave_out(batch, partition)
            if batch.control or left_out or batch.next_offset <= part.next_offset:
                part.cover(batch.next_offset)
                continue
            whole = uncompressed(batch, partition, max_bytes)
            if part.nbytes and part.nbytes + whole.nbytes > max_bytes:
                yield part.decoded()
                part = _Part(partition, part.next_offset, stop)
            part.add(whole)
    except FanOutError:
        if part.next_offset > part.first_offset:
            yield part.decoded()
        raise
    if fetched.batches and part.next_offset == offset and (stop is None or offset < stop):
        raise MalformedEventError(f"{partition}: the broker sent no whole batch at offset {offset}")
    yield part.decoded()


@final
class _Part:
    """Collect the records of a part."""

    def __init__(self, partition: Partition, offset: int, stop: int | None) -> None:
        self._partition = partition
        self._stop = stop
        self._columns = Columns(partition)
        self.first_offset = self.next_offset = offset
        self.nbytes = 0

    def cover(self, next_offset: int) -> None:
        """Move on; never back, and never beyond the stop."""
        if self._stop is not None:
            next_offset = min(next_offset, self._stop)
        self.next_offset = max(self.next_offset, next_offset)

    def add(self, batch: RawBatch) -> None:
        """Take what is wanted of a batch that is not compressed, and cover it."""
        for records in unpack(batch, self._partition):
            wanted = records
            if records[0].offset < self.next_offset:
                wanted = [record for record in wanted if record.offset >= self.next_offset]
            if self._stop is not None and records[-1].offset >= self._stop:
                wanted = [record for record in wanted if record.offset < self._stop]
            self._columns.add(wanted, batch.timestamp_type)
            self.cover(records[-1].offset + 1)
        self.nbytes += batch.nbytes
        self.cover(batch.next_offset)

    def decoded(self) -> Decoded:
        """Return the part as it is now."""
        records = self._columns.taken()
        offsets = records["offset"]
        if pc.any(pc.greater_equal(offsets[:-1], offsets[1:])).as_py():
            raise MalformedEventError(
                f"the records of {self._partition} at offsets {self.first_offset} to "
                f"{self.next_offset - 1} are in disorder"
            )
        return Decoded(records, self.next_offset)


@final
class _Aborts:
    """Know which batches belong to aborted transactions.

    A transaction is open from its first offset to its marker, and a producer has one at a time.

    Args:
        aborted: The aborted transactions that touch the answer.
    """

    def __init__(self, aborted: Sequence[Aborted]) -> None:
        self._ahead = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        self._producers: set[int] = set()

    def leave_out(self, batch: RawBatch, partition: Partition) -> bool:
        """Tell whether a batch is part of an aborted transaction; each batch is asked in turn."""
        while self._ahead and self._ahead[-1].first_offset <= batch.base_offset:
            self._producers.add(self._ahead.pop().producer_id)
        if batch.control:
            if _marker(batch, partition) == _ABORT:
                self._producers.discard(batch.producer_id)
            return True
        return batch.transactional and batch.producer_id in self._producers


def _marker(batch: RawBatch, partition: Partition) -> int | None:
    """Return the type of a control batch; None where compaction has removed what it held.

    Its key is a version and a type, of 16 bits each:
    https://kafka.apache.org/documentation/#controlbatch
    """
    for records in unpack(uncompressed(batch, partition, _MARKER_BYTES), partition):
        record = records[0]
        key = record.key
        if key is None or len(key) < 4:  # noqa: PLR2004 - two fields of two bytes
            raise MalformedEventError(
                f"{partition}: the control record at offset {record.offset} has no type"
            )
        return int.from_bytes(key[2:4])
    return None
