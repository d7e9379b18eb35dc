"""The record batches of an answer of Fetch, each with its header read and its checksum checked.

The format is that of https://kafka.apache.org/documentation/#recordbatch, "magic" 2, which brokers
have written since version 0.11, and the only one that brokers from 4.0 on can send.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from fanout.errors import DamagedFrameError, MalformedEventError
from fanout.kafka.decoding.compression import inflate

try:
    from google_crc32c.cext import value as crc32c
except ImportError:  # there is no build of it for this platform
    from aiokafka.record.util import calc_crc32c as crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.kafka.partitions import Partition

__all__ = (
    "BREAKS_FORMAT",
    "RECORDS_AT",
    "RawBatch",
    "damaged",
    "nbytes",
    "raw_batches",
    "uncompressed",
)

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
