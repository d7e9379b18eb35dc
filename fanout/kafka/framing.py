"""The record batches of an answer of Fetch, each with its header read and its checksum checked.

The format is that of https://kafka.apache.org/documentation/#recordbatch, "magic" 2, which brokers
have written since version 0.11, and the only one that brokers from 4.0 on can send.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch

from fanout.errors import DamagedFrameError, MalformedEventError
from fanout.kafka.columns import AT_ONCE
from fanout.kafka.compression import inflate
from fanout.kafka.header_keys import with_readable_keys

try:
    from google_crc32c.cext import value as crc32c
except ImportError:  # there is no build of it for this platform
    from aiokafka.record.util import calc_crc32c as crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiokafka.record.default_records import DefaultRecord

    from fanout.kafka.partitions import Partition

__all__ = ("RawBatch", "raw_batches", "uncompressed", "unpack")

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_BEFORE_LENGTH_COUNTS: Final = 12
_MAGIC_AT: Final = 16
_FLAGS_AT: Final = 22
_MAGIC: Final = 2

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
        producer_id: Who wrote it; -1 where nobody said.
        rows: How many records it says that it holds.
        data: The whole batch.
    """

    base_offset: int
    next_offset: int
    attributes: int
    producer_id: int
    rows: int
    data: memoryview

    @property
    def transactional(self) -> bool:
        """Whether it is part of a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def control(self) -> bool:
        """Whether it holds the marker of a transaction's end, and no records of anybody."""
        return bool(self.attributes & _CONTROL)

    @property
    def nbytes(self) -> int:
        """About what its records take in Arrow: little ones take more there than in the batch."""
        return len(self.data) + self.rows * _ROW_BYTES

    @property
    def timestamp_type(self) -> int:
        """0 if producers set the timestamps, 1 if the broker did when it appended the batch."""
        return int(bool(self.attributes & _LOG_APPEND_TIME))


def raw_batches(data: bytes | memoryview, partition: Partition) -> Iterator[RawBatch]:
    """Cut an answer into its record batches; one that is cut short at the end is left out.

    Raises:
        DamagedFrameError: If a batch's checksum is wrong.
        MalformedEventError: If what follows cannot be a batch, or is of an older format.
    """
    view = memoryview(data)
    at = 0
    behind = 0
    while at + _MAGIC_AT < len(view):
        if view[at + _MAGIC_AT] < _MAGIC:
            raise MalformedEventError(
                f"{partition} holds messages in a format from before Kafka 0.11, which brokers "
                "from 4.0 on cannot send: have the topic written anew"
            )
        if at + _HEADER.size > len(view):
            return
        base, length, _, magic, crc, flags, last, _, _, producer, _, _, count = _HEADER.unpack_from(
            view, at
        )
        end = at + _BEFORE_LENGTH_COUNTS + length
        whole = magic == _MAGIC and end >= at + _HEADER.size and count >= 0
        if not whole or not behind <= base <= base + last < _MAX_OFFSET:
            raise MalformedEventError(
                f"{partition}: byte {at} of what the broker sent begins no record batch"
            )
        if end > len(view):
            return
        batch = RawBatch(base, base + last + 1, flags, producer, count, view[at:end])
        if crc32c(bytes(batch.data[_FLAGS_AT - 1 :])) != crc:
            raise _damaged(batch, partition, "their checksum is wrong")
        yield batch
        at = end
        behind = batch.next_offset


def uncompressed(batch: RawBatch, partition: Partition, max_bytes: int) -> RawBatch:
    """Return a batch as it was before it was compressed, if it was.

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
        return batch
    try:
        most = max_bytes - batch.rows * _ROW_BYTES
        records = inflate(batch.data[_HEADER.size :], codec, most)
    except MalformedEventError as error:
        raise _damaged(batch, partition, str(error)) from error
    header = bytearray(batch.data[: _HEADER.size])
    header[_FLAGS_AT] &= ~_CODEC
    return batch._replace(
        attributes=batch.attributes & ~_CODEC, data=memoryview(b"".join((header, *records)))
    )


def unpack(batch: RawBatch, partition: Partition) -> Iterator[list[DefaultRecord]]:
    """Yield the records of a batch that is not compressed, some at a time.

    Raises:
        DamagedFrameError: If they break their own format.
    """
    done = 0
    try:
        try:
            for some in _some_at_a_time(batch.data):
                _check_offsets(some, batch, partition)
                done += len(some)
                yield some
        except UnicodeDecodeError:
            readable = with_readable_keys(batch.data, _HEADER.size, batch.rows)
            for some in _some_at_a_time(readable, done):
                _check_offsets(some, batch, partition)
                yield some
    except (CorruptRecordException, ValueError, OverflowError, MemoryError):
        # What was raised may quote a header, so it is not chained.
        raise _damaged(batch, partition, "they break the format of records") from None


def _some_at_a_time(
    data: bytearray | memoryview, skipped: int = 0
) -> Iterator[list[DefaultRecord]]:
    # The slice asks no more of the decoder, once that has ended.
    records = islice(DefaultRecordBatch(data), skipped, None)
    while some := list(islice(records, AT_ONCE)):
        yield some


def _check_offsets(records: list[DefaultRecord], batch: RawBatch, partition: Partition) -> None:
    if not batch.base_offset <= records[0].offset <= records[-1].offset < batch.next_offset:
        raise _damaged(batch, partition, "they have offsets of other batches")


def _damaged(batch: RawBatch, partition: Partition, why: str) -> DamagedFrameError:
    return DamagedFrameError(
        f"the records of {partition} at offsets {batch.base_offset} to {batch.next_offset - 1} "
        f"cannot be read: {why}"
    )
