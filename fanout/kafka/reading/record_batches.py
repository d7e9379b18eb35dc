"""Cut the answer of a Fetch into record batches, and check the header and checksum of each.

The format is https://kafka.apache.org/documentation/#recordbatch with "magic" 2. Brokers have
written it since Kafka 0.11; from 4.0 on they can send no other.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from fanout.errors import DamagedFrameError, MalformedEventError

try:
    from google_crc32c.cext import value as crc32c
except ImportError:  # no build for this platform
    from aiokafka.record.util import calc_crc32c as crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.kafka.partitions import Partition

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_BEFORE_LENGTH_COUNTS: Final = 12
_MAGIC_AT: Final = 16
_CHECKED_AT: Final = 21  # the checksum covers everything from the attributes on
_MAGIC: Final = 2
_MAX_OFFSET: Final = 2**63 - 1

RECORDS_AT: Final = _HEADER.size - _CHECKED_AT
"""Where the first record begins in the part of a batch that the checksum covers."""

BREAKS_FORMAT: Final = "they break the format of records"
"""The reason in an error for records whose lengths or counts are impossible."""

ROW_BYTES: Final = 64
"""About what a record takes in Arrow besides its bytes: columns of fixed width, the ends of the
others, and a topic of some length."""

# Flags in the attributes of a batch.
_CODEC: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20


class RawBatch(NamedTuple):
    """A record batch with a valid checksum, whose records are not decoded yet.

    Args:
        next_offset: The offset after its last one, including records that compaction has removed.
        attributes: Its flags, as received.
        first_timestamp: The base of its records' timestamps, in milliseconds since the Unix epoch.
        max_timestamp: The latest timestamp; that of all records where the broker set it.
        producer_id: The producer; -1 for none.
        rows: How many records its header announces.
        at: Where `data` begins in the answer.
        data: What the checksum covers: the end of the header, and the records from RECORDS_AT on.
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
    def codec(self) -> int:
        """The number of its compression codec; 0 for none."""
        return self.attributes & _CODEC

    @property
    def transactional(self) -> bool:
        """Whether it belongs to a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def control(self) -> bool:
        """Whether it holds the marker that ends a transaction, and no records of users."""
        return bool(self.attributes & _CONTROL)

    @property
    def timestamp_type(self) -> int:
        """0 if producers set the timestamps, 1 if the broker did when it appended the batch."""
        return int(bool(self.attributes & _LOG_APPEND_TIME))


def read_raw_batches(data: bytes | memoryview, partition: Partition) -> Iterator[RawBatch]:
    """Cut an answer into its record batches; a batch that is cut short at the end is left out.

    Raises:
        DamagedFrameError: If the checksum of a batch is wrong.
        MalformedEventError: If the bytes are no record batch, or have an older format.
    """
    view = memoryview(data)
    size = len(view)
    at = 0
    behind = 0
    while at + _MAGIC_AT < size:
        if view[at + _MAGIC_AT] < _MAGIC:
            raise MalformedEventError(
                f"{partition} holds messages in a format from before Kafka 0.11, which brokers "
                "from 4.0 on cannot send: write the topic anew"
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
                f"{partition}: no record batch begins at byte {at} of the broker's answer"
            )
        if end > size:
            return
        behind = base + last + 1
        at += _CHECKED_AT
        # The only fast checksum function takes bytes, and indexing bytes is fast too.
        checked = bytes(view[at:end])
        if crc32c(checked) != crc:
            raise damaged_batch(partition, base, behind - 1, "their checksum is wrong")
        yield RawBatch(base, behind, flags, first_time, max_time, producer, rows, at, checked)
        at = end


def arrow_bytes(data: bytes, rows: int) -> int:
    """Return about how many bytes uncompressed records take in Arrow; small ones grow there."""
    return len(data) + rows * ROW_BYTES


def damaged_batch(partition: Partition, first: int, last: int, why: str) -> DamagedFrameError:
    """Build the error for a batch that cannot be read."""
    return DamagedFrameError(
        f"the records of {partition} at offsets {first} to {last} cannot be read: {why}"
    )
