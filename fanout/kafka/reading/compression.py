"""Decompress record batches, up to a limit on their size.

Arrow has every codec of Kafka and decompresses in steps, so a batch beyond the limit is refused
before its memory is taken. aiokafka's own decoder decompresses first and checks afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from fanout.core.error_text import text_of
from fanout.errors import MalformedEventError, SetupError
from fanout.kafka.reading.record_batches import RECORDS_AT, ROW_BYTES, damaged_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.kafka.partitions import Partition
    from fanout.kafka.reading.record_batches import RawBatch

# By their numbers in the attributes of a batch:
# https://kafka.apache.org/documentation/#recordbatch
_CODECS: Final = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}

# The JVM's snappy library writes blocks after a header of its own: a name, a version, and the
# oldest version that can read it. Other clients write one block without a header.
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = len(_XERIAL) + 8

_STEP: Final = 64 * 1024


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
