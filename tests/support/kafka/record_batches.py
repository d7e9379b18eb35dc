"""Record batches as a broker would send them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = (
    "ABORT",
    "CODECS",
    "COMMIT",
    "HEADER_SIZE",
    "BatchRow",
    "batch",
    "compress",
    "empty",
    "marker",
    "rows",
    "sealed",
    "xerial",
)

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
HEADER_SIZE = 61
COMMIT, ABORT = 1, 0


class BatchRow(NamedTuple):
    """A record; its offset counts from the first offset of its batch."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def rows(count: int) -> list[BatchRow]:
    """Return some records, each unlike the others."""
    return [BatchRow(i, 1_700_000_000_000 + i, b"k%d" % i, b"v%d" % i) for i in range(count)]


def batch(
    records: Sequence[BatchRow],
    base: int = 0,
    *,
    codec: str = "none",
    producer: int = -1,
    transactional: bool = False,
    control: bool = False,
    log_append_time: bool = False,
    last: int | None = None,
) -> bytes:
    """Build a batch.

    Args:
        records: Its records.
        base: Its first offset.
        codec: How it is compressed.
        producer: The id of its producer.
        transactional: Whether it is part of a transaction.
        control: Whether it is a control batch.
        log_append_time: Whether the broker has set the timestamp.
        last: The last offset that it had before compaction, counted from the first; None where it
            is that of the last record.
    """
    builder = DefaultRecordBatchBuilder(2, 0, transactional, producer, 0, 0, 1 << 30)
    for record in records:
        builder.append(*record[:4], list(record.headers))
    data = bytearray(builder.build())
    body = compress(bytes(data[HEADER_SIZE:]), codec)
    flags = CODECS.index(codec) | transactional << 4 | control << 5 | log_append_time << 3
    if last is None:
        last = records[-1].offset if records else 0
    return sealed(bytes(data[:HEADER_SIZE]) + body, base=base, flags=flags, last=last)


def sealed(data: bytes, *, base: int, flags: int, last: int) -> bytes:
    """Write the fields that the broker, and compression, change; make length and checksum fit."""
    whole = bytearray(data)
    struct.pack_into(">qi", whole, 0, base, len(whole) - 12)
    struct.pack_into(">hi", whole, 21, flags, last)
    struct.pack_into(">I", whole, 17, calc_crc32c(bytes(whole[21:])))
    return bytes(whole)


def compress(body: bytes, codec: str) -> bytes:
    """Compress the records of a batch as clients do."""
    if codec == "none":
        return body
    if codec == "snappy":
        return bytes(pa.compress(body, "snappy", asbytes=True))
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(body)
    return bytes(sink.getvalue())


def xerial(body: bytes, block: int) -> bytes:
    """Compress as the JVM's snappy library does, in blocks."""
    blocks = [compress(body[at : at + block], "snappy") for at in range(0, len(body), block)]
    return (
        b"\x82SNAPPY\x00"
        + struct.pack(">ii", 1, 1)
        + b"".join(struct.pack(">i", len(each)) + each for each in blocks)
    )


def marker(kind: int, base: int, producer: int) -> bytes:
    """End a transaction: COMMIT or ABORT."""
    row = BatchRow(0, 1_700_000_000_000, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0))
    return batch([row], base, producer=producer, transactional=True, control=True)


def empty(base: int, last: int, *, producer: int = -1, transactional: bool = False) -> bytes:
    """Build a batch of which compaction has left nothing but its header.

    Args:
        base: Its first offset.
        last: The last offset that it had, counted from the first.
        producer: The id of its producer.
        transactional: Whether it is part of a transaction.
    """
    whole = bytearray(batch([BatchRow(0, 0, None, None)], producer=producer))[:HEADER_SIZE]
    struct.pack_into(">i", whole, HEADER_SIZE - 4, 0)
    return sealed(bytes(whole), base=base, flags=transactional << 4, last=last)
