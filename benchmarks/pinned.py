"""The pinned pieces of work whose cost `make bench-check` holds, and its yardstick.

Each runs in one process, without sockets and without a broker, so that other work on the machine
disturbs it least. They decode and encode records, which is done for each one.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import zlib
from random import Random
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa

from benchmarks.decode import Workload, decode_by_fanout
from benchmarks.decode_records import BATCH, SHAPES, bodies_of, rows_of
from fanout.decoding import Avro, Json
from fanout.kafka.partitions import Partition
from fanout.kafka.reading.records import decode_fetched
from fanout.kafka.reading.transport import Fetched
from fanout.kafka.writing.encoding import encode_record_batch
from fanout.kafka.writing.producer_id import NO_PRODUCER_ID
from fanout.kafka.writing.row_batches import cut_together

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ("PINNED", "main", "yardstick")

# Records of a Fetch: a segment of a partition as Java's producer fills it, 16 KiB a batch.
_FETCHED_BYTES: Final = 4 << 20
_BATCH_BYTES: Final = 16 << 10
# A minute of a stream that is nearly idle: each answer has one record.
_SMALL_ANSWERS: Final = 200
_REPEATED: Final = 3


def yardstick() -> Callable[[], object]:
    """Return the work in which costs are counted: a fixed mix of what decoders do.

    It has Python's own loop, JSON in C, checksums, and Arrow's columns of Python objects. None of
    it is fanout's, so that its cost changes with the machine and the load alone.
    """
    random = Random(7)  # noqa: S311 - reproducible, not secret
    document = json.dumps(
        [{"n": n, "at": n / 7, "key": f"user-{n}"} for n in range(2_000)]
    ).encode()
    block = random.randbytes(1 << 20)
    words = [f"word-{random.randrange(1_000)}" for _ in range(5_000)]

    def work() -> None:
        total = 0
        for number in range(40_000):
            total = (total + number * 7) & 0xFFFF
        for _ in range(4):
            msgspec.json.decode(document)
            zlib.crc32(bytes(memoryview(block)))
        counts: dict[str, int] = {}
        for word in words:
            counts[word] = counts.get(word, 0) + 1
        pa.array(words, pa.string()).dictionary_encode()

    return work


def _decoded_kinesis(record_bytes: int, records: int, events: int) -> Callable[[], int]:
    workload = Workload(record_bytes=record_bytes, records=records, events=events)
    chunks = workload.chunks()
    return lambda: sum(batch.num_rows for batch in decode_by_fanout(chunks))


def _rows(record_bytes: int, count: int) -> pa.RecordBatch:
    random = Random(record_bytes)  # noqa: S311 - reproducible, not secret
    keys = [b"user-%d" % random.randrange(10_000) for _ in range(count)]
    values = [random.randbytes(record_bytes + number % 17 - 8) for number in range(count)]
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array(range(1_795_218_308_174, 1_795_218_308_174 + count), pa.int64()),
            pa.nulls(count, headers),
        ],
        names=["key", "value", "timestamp", "headers"],
    )


def _encoded_kafka(record_bytes: int, count: int) -> Callable[[], int]:
    rows = _rows(record_bytes, count)

    def work() -> int:
        # The first that is encoded encodes all that were cut before, as in a writer's queue.
        for batch, _, records in list(cut_together(rows, _BATCH_BYTES)):
            encode_record_batch(batch, "none", NO_PRODUCER_ID, -1, records)
        return count

    return work


def _batches(record_bytes: int, size: int) -> bytes:
    """Return batches of a partition, the first offset of each in its place."""
    rows = _rows(record_bytes, max(1, _BATCH_BYTES // record_bytes))
    body = b"".join(encode_record_batch(rows, "none", NO_PRODUCER_ID, -1))
    count = max(1, size // len(body))
    return b"".join(
        (number * rows.num_rows).to_bytes(8, "big") + body[8:] for number in range(count)
    )


def _decode(batches: bytes) -> int:
    fetched = Fetched(1 << 40, 1 << 40, 0, (), batches)
    parts = decode_fetched(
        fetched, Partition("orders", 0), offset=0, read_committed=True, max_bytes=1 << 30
    )
    return sum(part.records.num_rows for part in parts)


def _decoded_kafka(record_bytes: int) -> Callable[[], int]:
    batches = _batches(record_bytes, _FETCHED_BYTES)
    return lambda: _decode(batches)


def _small_answers() -> Callable[[], int]:
    rows = _rows(1024, 1)
    batch = b"".join(encode_record_batch(rows, "none", NO_PRODUCER_ID, -1))
    return lambda: sum(_decode(batch) for _ in range(_SMALL_ANSWERS))


def _json() -> Callable[[], int]:
    decoder = Json(SHAPES["flat"][0])
    documents = pa.array([json.dumps(row).encode() for row in rows_of("flat", 200)], pa.binary())

    def work() -> int:
        for _ in range(_REPEATED):
            decoder.read(documents)
        return _REPEATED * BATCH

    return work


def _avro() -> Callable[[], int]:
    decoder = Avro(SHAPES["flat"][1])
    bodies = pa.array(bodies_of("flat", 200), pa.binary())

    def work() -> int:
        for _ in range(_REPEATED):
            decoder.read(bodies)
        return _REPEATED * BATCH

    return work


PINNED: Final[Mapping[str, Callable[[], Callable[[], int]]]] = {
    "decode events of Kinesis, 1 KB": lambda: _decoded_kinesis(1024, 1_000, 4),
    "decode events of Kinesis, 100 B": lambda: _decoded_kinesis(100, 10_000, 2),
    "decode answers of Kafka, 1 KB": lambda: _decoded_kafka(1024),
    "decode answers of Kafka, 100 B": lambda: _decoded_kafka(100),
    "decode answers of Kafka with one record": _small_answers,
    "encode batches for Kafka, 1 KB": lambda: _encoded_kafka(1024, 16_000),
    "encode batches for Kafka, 100 B": lambda: _encoded_kafka(100, 40_000),
    "decode JSON, 200 B": _json,
    "decode Avro, 200 B": _avro,
}
"""What is pinned: each makes its data, and returns work that returns how many records it did."""


def main(names: Sequence[str]) -> None:
    """Do pinned work while valgrind counts its instructions, and have it write each count.

    Args:
        names: The names of the work.
    """
    gc.disable()
    for number, name in enumerate(names):
        work = PINNED[name]()
        work()
        _callgrind("--zero")
        _callgrind("--instr=on")
        records = work()
        _callgrind("--instr=off")
        _callgrind(f"--dump=pinned {number} {records}")


def _callgrind(action: str) -> None:
    subprocess.run(  # noqa: S603 - a part of valgrind
        ["callgrind_control", action, str(os.getpid())],  # noqa: S607
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
