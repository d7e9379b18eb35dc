"""Cut the answer of a Fetch into record batches, check each, and decompress it up to a limit.

The format is https://kafka.apache.org/documentation/#recordbatch with "magic" 2. Brokers have
written it since Kafka 0.11; from 4.0 on they can send no other.

Arrow has every codec of Kafka and decompresses in steps, so a batch beyond the limit is refused
before its memory is taken. aiokafka's own decoder decompresses first and checks afterwards.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from fanout.core.error_text import text_of
from fanout.errors import DamagedFrameError, MalformedEventError, SetupError

try:
    from google_crc32c.cext import value as crc32c
except ImportError:  # no build for this platform
    from aiokafka.record.util import calc_crc32c as crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.kafka.partitions import Partition

# By their numbers in the attributes of a batch:
# https://kafka.apache.org/documentation/#recordbatch
_CODECS: Final = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}

# The JVM's snappy library writes blocks after a header of its own: a name, a version, and the
# oldest version that can read it. Other clients write one block without a header.
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = len(_XERIAL) + 8

_STEP: Final = 64 * 1024

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


def announced_rows(batches: bytes | memoryview, most: int) -> int:
    """Return how many records the batches of an answer announce, or a number above `most`.

    Nothing is checked: the headers may be wrong, or cut off.
    """
    rows = at = 0
    while at + _HEADER.size <= len(batches) and rows <= most:
        rows += int.from_bytes(batches[at + _HEADER.size - 4 : at + _HEADER.size])
        at += _BEFORE_LENGTH_COUNTS + int.from_bytes(batches[at + 8 : at + _BEFORE_LENGTH_COUNTS])
    return rows


def decompress(batch: RawBatch, partition: Partition, max_bytes: int) -> bytes:
    """Return the data of a batch, decompressed if it was; `max_bytes` bounds its records in Arrow.

    Raises:
        DamagedFrameError: If it cannot be decompressed, or takes more than `max_bytes`.
        SetupError: If this build of pyarrow lacks the codec.
    """
    if not batch.codec:
        return batch.data
    try:
        most = max_bytes - batch.rows * ROW_BYTES
        records = decompress_records(memoryview(batch.data)[RECORDS_AT:], batch.codec, most)
    except MalformedEventError as error:
        last = batch.next_offset - 1
        raise damaged_batch(partition, batch.base_offset, last, str(error)) from error
    return b"".join((batch.data[:RECORDS_AT], *records))


def decompress_records(compressed: memoryview, codec: int, max_bytes: int) -> list[bytes]:
    """Return the records of a batch, which follow its header, decompressed in pieces.

    Raises:
        MalformedEventError: If the bytes do not fit the codec, or hold more than `max_bytes`.
        SetupError: If this build of pyarrow lacks the codec.
    """
    name = _CODECS.get(codec)
    if name is None:
        raise MalformedEventError(f"there is no codec {codec} in Kafka")
    if not pa.Codec.is_available(name):
        raise SetupError(
            f"the records are compressed with {name}, which this build of pyarrow lacks: "
            "install pyarrow from PyPI or conda-forge, whose builds have it"
        )
    whole: list[bytes] = []
    pieces = _snappy(compressed, max_bytes) if name == "snappy" else _stream(compressed, name)
    size = 0
    try:
        for piece in pieces:
            size += len(piece)
            if size > max_bytes:
                raise _too_large()
            whole.append(piece)
    except (OSError, ValueError) as error:
        # Arrow's message names the codec and the library's error, and quotes no data.
        raise MalformedEventError(f"they cannot be decompressed: {text_of(error)}") from error
    return whole


def _stream(compressed: memoryview, name: str) -> Iterator[bytes]:
    with pa.CompressedInputStream(pa.BufferReader(compressed), name) as stream:
        while piece := stream.read(_STEP):
            yield piece


def _snappy(compressed: memoryview, max_bytes: int) -> Iterator[bytes]:
    if bytes(compressed[: len(_XERIAL)]) != _XERIAL:
        yield _block(compressed, max_bytes)
        return
    at = _XERIAL_HEADER
    while at < len(compressed):
        size = int.from_bytes(compressed[at : at + 4])
        block = compressed[at + 4 : at + 4 + size]
        if len(block) != size or not size:
            raise MalformedEventError("they cannot be decompressed: a block of snappy is cut short")
        yield _block(block, max_bytes)
        at += 4 + size


def _block(block: memoryview, max_bytes: int) -> bytes:
    """Decompress one block, which begins with its size as a varint."""
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:  # noqa: PLR2004 - a varint's last byte
            break
    if size > max_bytes:
        raise _too_large()
    whole: bytes = pa.decompress(block, size, "snappy", asbytes=True)
    return whole


def _too_large() -> MalformedEventError:
    return MalformedEventError(
        "decompressed, they take more than max_event_bytes: raise it if that is intended"
    )


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
        leader_epoch: That of the leader which appended it; -1 where it is not known.
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
    leader_epoch: int
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
        base, length, epoch, magic, crc, flags, last, first_time, max_time, producer, _, _, rows = (
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
        yield RawBatch(
            base, behind, flags, first_time, max_time, producer, rows, at, epoch, checked
        )
        at = end


def arrow_bytes(data: bytes, rows: int) -> int:
    """Return about how many bytes uncompressed records take in Arrow; small ones grow there."""
    return len(data) + rows * ROW_BYTES


def damaged_batch(partition: Partition, first: int, last: int, why: str) -> DamagedFrameError:
    """Build the error for a batch that cannot be read."""
    return DamagedFrameError(
        f"the records of {partition} at offsets {first} to {last} cannot be read: {why}"
    )
