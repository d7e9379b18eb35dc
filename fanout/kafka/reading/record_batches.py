"""The record batches of an answer of Fetch, each with its header read and its checksum checked.

The format is that of https://kafka.apache.org/documentation/#recordbatch, "magic" 2, which brokers
have written since version 0.11, and the only one that brokers from 4.0 on can send.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, final

from fanout.errors import DamagedFrameError, MalformedEventError
from fanout.kafka.reading.compression import inflate
from fanout.kafka.reading.unpacking import read_varint, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fanout.kafka.partitions import Partition
    from fanout.kafka.reading.transport import Aborted

__all__ = (
    "BREAKS_FORMAT",
    "RECORDS_AT",
    "Aborts",
    "RawBatch",
    "damaged",
    "nbytes",
    "raw_batches",
    "uncompressed",
)


try:
    from google_crc32c.cext import value as crc32c
except ImportError:  # there is no build of it for this platform
    from aiokafka.record.util import calc_crc32c as crc32c

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")

_BEFORE_LENGTH_COUNTS: Final = 12

_MAGIC_AT: Final = 16

_CHECKED_AT: Final = 21  # what the checksum is of begins with the attributes

_MAGIC: Final = 2

RECORDS_AT: Final = _HEADER.size - _CHECKED_AT

"""Where the first record begins in what the checksum of a batch is of."""

BREAKS_FORMAT: Final = "they break the format of records"

"""What is wrong with records that say something about themselves that cannot be."""

_MAX_OFFSET: Final = 2**63 - 1

# The columns of fixed width, the ends of the others, and a topic of some length.
_ROW_BYTES: Final = 64

_CODEC: Final = 0x07

_LOG_APPEND_TIME: Final = 0x08

_TRANSACTIONAL: Final = 0x10

_CONTROL: Final = 0x20


class RawBatch(NamedTuple):
    """A record batch whose checksum is right, and whose records are still packed.

    Args:
        base_offset: Its first offset.
        next_offset: The offset after its last one, whatever compaction has left of it.
        attributes: Its flags, as they came.
        first_timestamp: From what the timestamps of its records count, in milliseconds since the
            Unix epoch.
        max_timestamp: The latest of them, and that of all where the broker set them.
        producer_id: Who wrote it; -1 where nobody said.
        rows: How many records it says that it holds.
        at: Where `data` begins in the answer.
        data: What the checksum is of: the end of the header, and the records from RECORDS_AT on.
    """

    base_offset: int
    next_offset: int
    attributes: int
    first_timestamp: int
    max_timestamp: int
    producer_id: int
    rows: int
    at: int
    data: bytes

    @property
    def transactional(self) -> bool:
        """Whether it is part of a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def control(self) -> bool:
        """Whether it holds the marker of a transaction's end, and no records of anybody."""
        return bool(self.attributes & _CONTROL)

    @property
    def timestamp_type(self) -> int:
        """0 if producers set the timestamps, 1 if the broker did when it appended the batch."""
        return int(bool(self.attributes & _LOG_APPEND_TIME))


def nbytes(data: bytes, rows: int) -> int:
    """Return about what the records of a batch take in Arrow: little ones take more there.

    Args:
        data: The batch, not compressed.
        rows: How many records it holds.
    """
    return len(data) + rows * _ROW_BYTES


def raw_batches(data: bytes | memoryview, partition: Partition) -> Iterator[RawBatch]:
    """Cut an answer into its record batches; one that is cut short at the end is left out.

    Raises:
        DamagedFrameError: If a batch's checksum is wrong.
        MalformedEventError: If what follows cannot be a batch, or is of an older format.
    """
    view = memoryview(data)
    size = len(view)
    at = 0
    behind = 0
    while at + _MAGIC_AT < size:
        if view[at + _MAGIC_AT] < _MAGIC:
            raise MalformedEventError(
                f"{partition} holds messages in a format from before Kafka 0.11, which brokers "
                "from 4.0 on cannot send: have the topic written anew"
            )
        if at + _HEADER.size > size:
            return
        base, length, _, magic, crc, flags, last, first_time, max_time, producer, _, _, rows = (
            _HEADER.unpack_from(view, at)
        )
        end = at + _BEFORE_LENGTH_COUNTS + length
        whole = magic == _MAGIC and end >= at + _HEADER.size and rows >= 0
        if not whole or not behind <= base <= base + last < _MAX_OFFSET:
            raise MalformedEventError(
                f"{partition}: byte {at} of what the broker sent begins no record batch"
            )
        if end > size:
            return
        behind = base + last + 1
        at += _CHECKED_AT
        # The one function for checksums that is fast takes bytes, and indexing them is fast too.
        checked = bytes(view[at:end])
        if crc32c(checked) != crc:
            raise damaged(partition, base, behind - 1, "their checksum is wrong")
        yield RawBatch(base, behind, flags, first_time, max_time, producer, rows, at, checked)
        at = end


def uncompressed(batch: RawBatch, partition: Partition, max_bytes: int) -> bytes:
    """Return the data of a batch as it was before it was compressed, if it was.

    Args:
        batch: The batch.
        partition: Where it is from.
        max_bytes: The most bytes that its records may take.

    Raises:
        DamagedFrameError: If it cannot be decompressed, or takes more than `max_bytes`.
        SetupError: If its codec is missing.
    """
    codec = batch.attributes & _CODEC
    if not codec:
        return batch.data
    try:
        most = max_bytes - batch.rows * _ROW_BYTES
        records = inflate(memoryview(batch.data)[RECORDS_AT:], codec, most)
    except MalformedEventError as error:
        last = batch.next_offset - 1
        raise damaged(partition, batch.base_offset, last, str(error)) from error
    return b"".join((batch.data[:RECORDS_AT], *records))


def damaged(partition: Partition, first: int, last: int, why: str) -> DamagedFrameError:
    """Build the error for a batch that cannot be read.

    Args:
        partition: Where it is from.
        first: Its first offset.
        last: Its last offset.
        why: What is wrong with its records.
    """
    return DamagedFrameError(
        f"the records of {partition} at offsets {first} to {last} cannot be read: {why}"
    )


_ABORT: Final = 0

_MARKER_BYTES: Final = 64 * 1024

_KEY_BYTES: Final = 4


@final
class Aborts:
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
    data = uncompressed(batch, partition, _MARKER_BYTES)
    broken = damaged(partition, batch.base_offset, batch.next_offset - 1, BREAKS_FORMAT)
    begins: list[int] = []
    if not walk(data, RECORDS_AT, batch.rows, begins):
        raise broken
    if not begins:
        return None
    try:
        _, at = read_varint(data, begins[0])  # its length
        _, at = read_varint(data, at + 1)  # its timestamp, behind its attributes
        delta, at = read_varint(data, at)
        size, at = read_varint(data, at)
    except (IndexError, ValueError):
        raise broken from None
    key = data[at : at + max(size, 0)]
    if len(key) < _KEY_BYTES:
        raise MalformedEventError(
            f"{partition}: the control record at offset {batch.base_offset + delta} has no type"
        )
    return int.from_bytes(key[2:_KEY_BYTES])
