"""Encode Arrow columns as record batches of Kafka, without a Python object per record.

The format is https://kafka.apache.org/documentation/#recordbatch with "magic" 2. numpy makes the
variable-length integers of all records at once, and Arrow joins them with keys and values.
"""

from __future__ import annotations

import struct
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode

try:
    from google_crc32c.cext import extend, value
except ImportError:  # no build for this platform
    from aiokafka.record.util import calc_crc32c

    def _checksum(header: bytes, records: pa.Buffer) -> int:
        number: int = calc_crc32c(header + bytes(records))
        return number
else:

    def _checksum(header: bytes, records: pa.Buffer) -> int:
        number: int = extend(value(header), records)
        return number


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from fanout.kafka.writing.producer_id import ProducerId

    _Numbers: TypeAlias = npt.NDArray[np.int64]

_BEFORE_CHECKSUM: Final = struct.Struct(">qiibI")
_AFTER_CHECKSUM: Final = struct.Struct(">hiqqqhii")
_HEADER: Final = _BEFORE_CHECKSUM.size + _AFTER_CHECKSUM.size
_BEFORE_LENGTH_COUNTS: Final = 12
_MAGIC: Final = 2
_TRANSACTIONAL: Final = 0x10

# The most bytes that a record takes besides its content: its length, flags, time, offset, and the
# sizes of key, value and headers; then what a header takes besides its content.
_RECORD: Final = 5 + 1 + 10 + 5 + 5 + 5 + 5
_HEADER_OF_RECORD: Final = 5 + 5

# By their names in Kafka's options: the number in a batch's flags, and the function. The levels are
# those of Kafka's own producer; the default level of Java's LZ4 is the fast one of LZ4.
CODECS: Final[Mapping[str, tuple[int, Callable[[memoryview], bytes | memoryview]]]] = {
    "none": (0, lambda body: body),
    "gzip": (1, lambda body: gzip_encode(body, 6)),
    "snappy": (2, snappy_encode),
    "lz4": (3, lambda body: lz4_encode(bytes(body), 1)),  # which takes no memoryview
    "zstd": (4, zstd_encode),
}


def record_sizes(rows: pa.RecordBatch) -> _Numbers:
    """Return the most bytes that each record takes in a batch; a batch takes 61 bytes more."""
    most = _lengths(rows["key"], 0) + _lengths(rows["value"], 0) + _RECORD
    headers = rows["headers"]
    inside = headers.flatten()
    if len(inside):
        each = _lengths(inside.field("key"), 0) + _lengths(inside.field("value"), 0)
        ends = np.concatenate(([0], np.cumsum(each + _HEADER_OF_RECORD)))
        most += np.diff(ends[_list_offsets(headers)])
    return most


EncodedBatch: TypeAlias = "tuple[bytes, pa.Buffer]"
"""The bytes of a record batch: its header, and its records."""


def encode_record_batch(
    rows: pa.RecordBatch,
    codec: str,
    producer: ProducerId,
    sequence: int,
    records: Callable[[], pa.Buffer] | None = None,
) -> EncodedBatch:
    """Encode at least one record as one batch, by a codec of CODECS.

    The rows have `key` and `value` (binary, null for none), `timestamp` (int64, milliseconds from
    1970 on) and `headers` (a list of structs of a string `key` and a binary `value`). `sequence` is
    the number of the producer's records in the partition before these; -1 without a producer id.
    `records` returns them encoded, if `EncodedTogether` has them.
    """
    times = rows["timestamp"].to_numpy()
    number, compress = CODECS[codec]
    after = _AFTER_CHECKSUM.pack(
        number | producer.transactional * _TRANSACTIONAL,
        len(times) - 1,
        times[0],
        times.max(),
        producer.producer_id,
        producer.epoch,
        sequence,
        len(times),
    )
    plain = _encode_records(rows, [len(rows)])[0] if records is None else records()
    body = pa.py_buffer(compress(memoryview(plain)))
    length = _HEADER - _BEFORE_LENGTH_COUNTS + len(body)
    before = _BEFORE_CHECKSUM.pack(0, length, -1, _MAGIC, _checksum(after, body))
    return before + after, body


@final
class EncodedTogether:
    """Encode the records of batches that follow each other in one go, when the first is needed.

    A call of numpy or Arrow for 500 records costs nearly as much as one for 2,000. All batches are
    added before the first one is taken.
    """

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows  # those of the first batch, and the ones after it
        self._ends: list[int] = []
        self._records: list[pa.Buffer] = []
        self.nbytes = 0

    def add(self, rows: int, nbytes: int) -> Callable[[], pa.Buffer]:
        """Add rows of at most so many bytes as a batch; return what returns its records."""
        self._ends.append(rows + (self._ends[-1] if self._ends else 0))
        self.nbytes += nbytes
        return partial(self._take, len(self._ends) - 1)

    def _take(self, number: int) -> pa.Buffer:
        if not self._records:
            self._records = _encode_records(self._rows.slice(0, self._ends[-1]), self._ends)
            self._rows = None
        return self._records[number]


def _encode_records(rows: pa.RecordBatch, ends: Sequence[int]) -> list[pa.Buffer]:
    """Return the records of batches, which end at these rows."""
    counts = np.diff(ends, prepend=0)
    begins = np.repeat(np.subtract(ends, counts), counts)  # of each row's batch
    times = rows["timestamp"].to_numpy()
    keys, values = rows["key"], rows["value"]
    key_lengths, value_lengths = _lengths(keys, -1), _lengths(values, -1)
    headers, header_lengths = _headers(rows["headers"])
    before_key = [
        _Varints(times - times[begins]),
        _Varints(np.arange(len(times)) - begins),
        _Varints(key_lengths),
    ]
    before_value = _Varints(value_lengths)
    flags = _Varints(np.zeros(len(times), np.int64))  # no flag is defined: a zero byte
    inside = np.sum([part.widths for part in (flags, *before_key, before_value)], axis=0)
    inside += np.maximum(key_lengths, 0) + np.maximum(value_lengths, 0) + header_lengths
    start = _binary(_Varints(inside), flags, *before_key)
    return _contents(_joined(start, keys, _binary(before_value), values, headers), ends)


def _headers(headers: pa.ListArray) -> tuple[pa.BinaryArray | pa.Scalar, _Numbers | int]:
    """Return the encoded headers of each record, with their number before them, and their bytes."""
    inside = headers.flatten()
    if not len(inside):
        return pa.scalar(b"\0", pa.binary()), 1
    offsets = _list_offsets(headers)
    counts = _binary(_Varints(np.diff(offsets)))
    keys, values = inside.field("key").cast(pa.binary()), inside.field("value")
    each = _joined(
        _binary(_Varints(_lengths(keys, 0))), keys, _binary(_Varints(_lengths(values, -1))), values
    )
    # The bytes of all headers follow each other, so those of one record are one slice of them.
    ends = np.frombuffer(each.buffers()[1], np.int32, len(each) + 1)[offsets]
    buffers = [None, pa.py_buffer(ends), each.buffers()[2]]
    whole = _joined(counts, pa.Array.from_buffers(pa.binary(), len(headers), buffers))
    return whole, _lengths(whole, 0)


def _list_offsets(lists: pa.ListArray) -> _Numbers:
    """Return where each list begins and ends in the values of all lists; a null list is empty."""
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


def _lengths(column: pa.BinaryArray, of_null: int) -> _Numbers:
    lengths = pc.binary_length(column)
    if column.null_count:  # it takes long to find that there is nothing to fill
        lengths = pc.fill_null(lengths, of_null)
    numbers: _Numbers = lengths.to_numpy().astype(np.int64)
    return numbers


def _joined(*columns: pa.BinaryArray | pa.Scalar) -> pa.BinaryArray:
    return pc.binary_join_element_wise(*columns, b"", null_handling="replace", null_replacement=b"")


def _contents(column: pa.BinaryArray, ends: Sequence[int]) -> list[pa.Buffer]:
    """Return the bytes of the elements up to each end, one after the other."""
    _, offsets, data = column.buffers()
    at = np.frombuffer(offsets, np.int32, len(column) + 1)[[0, *ends]].tolist()
    return [data.slice(begin, end - begin) for begin, end in pairwise(at)]


@final
class _Varints:
    """Numbers as Kafka's variable-length integers: zigzag, seven bits a byte, lowest first."""

    def __init__(self, numbers: _Numbers) -> None:
        left = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
        longest = max(1, -(-int(left.max()).bit_length() // 7))
        if longest == 1:
            self.lines = left.astype(np.uint8)[np.newaxis]
            self.present = np.ones(self.lines.shape, np.bool_)
            self.widths: _Numbers = np.ones(len(numbers), np.int64)
            return
        # A line holds one byte of every number; whole lines are computed at once.
        self.lines = np.empty((longest, len(numbers)), np.uint8)
        self.present = np.empty(self.lines.shape, np.bool_)
        self.present[0] = True
        for line in range(longest):
            rest = left >> np.uint64(7)
            more = rest != 0
            self.lines[line] = (left & np.uint64(0x7F)).astype(np.uint8) | (
                more.view(np.uint8) << 7
            )
            if line + 1 < longest:
                self.present[line + 1] = more
            left = rest
        self.widths = self.present.sum(axis=0, dtype=np.int64)


def _binary(*parts: _Varints) -> pa.BinaryArray:
    """Return the numbers of each record, one after the other."""
    lines = np.concatenate([part.lines for part in parts]).T
    present = np.concatenate([part.present for part in parts]).T
    ends = np.zeros(len(lines) + 1, np.int32)
    np.cumsum(present.sum(axis=1), out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(lines[present])]
    return pa.Array.from_buffers(pa.binary(), len(lines), buffers)
