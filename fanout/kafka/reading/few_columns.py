"""Make the columns of few records of one message in Arrow's format between processes.

Arrow reads such a message in less time than it makes four of the eight columns from buffers. The
message has tables of FlatBuffers, `Message` and `RecordBatch`, and a body with the buffers:
https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from fanout.kafka.reading.columns import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.kafka.partitions import Partition

MOST: Final = 64
"""The most records of a message: a number of so many bits says which values are null."""

_NO_NULL: Final = 2**MOST - 1
_NO_NULLS: Final = (_NO_NULL,) * 3  # of keys, values and timestamps
_ALIGNED: Final = 8  # bytes; each buffer begins at a multiple of it
_COLUMNS: Final = 8
_NODES: Final = 11  # the columns, the structs in the last of them, and the two fields of these
_BUFFERS: Final = 26
# The length of the tables, and the tables. What is not a list is the same in all messages, but for
# the size of the body and the number of rows. Both lists are pairs of numbers, behind their length.
_HEAD: Final = struct.Struct(f"<iiI6H5H6xiIqhB5xiIqII{2 * _NODES}q4xI{2 * _BUFFERS}q")
_LAYOUTS: Final = (-1, _HEAD.size - 8, 32, *(12, 20, 16, 18, 4, 8), *(10, 20, 8, 4, 16))
_MESSAGE: Final = (28, 20, 0, 4, 3)  # a body of 0 bytes, the version V5, a record batch
_NUMBER: Final = struct.Struct("<q")
_PAIR: Final = struct.Struct("<qq")
# Where the head has what differs between messages of one form: the size of the body, the nodes of
# keys, values and timestamps, and the data of keys and values.
_BODY_SIZE: Final = 48
_NULLABLE: Final = (88, 104, 168)
_KEY_DATA: Final = 304
_VALUE_DATA: Final = 352


class _Form(NamedTuple):
    """What is the same in the messages with so many records, and so long a name of the topic.

    Args:
        head: The tables, without nulls and without the sizes of keys, values and body.
        ends: The buffers with the ends of topics and headers, which come first in the body.
        numbers: Those behind the topics: their partition, which keys, values and timestamps are not
            null, the ends of keys and of values, offsets, timestamps and their types.
        data_at: Where the keys begin in the body; the values follow.
        nbytes: What Arrow counts, but for keys, values, and bitmaps of nulls.
    """

    head: bytes
    ends: bytes
    numbers: struct.Struct
    data_at: int
    nbytes: int


@lru_cache(maxsize=1024)
def _form(topic_bytes: int, rows: int) -> _Form:
    ends = 4 * (rows + 1)
    topic_ends = struct.pack(f"<{rows + 1}i", *(row * topic_bytes for row in range(rows + 1)))
    sizes = [ends, ends, topic_bytes * rows, 4 * rows]
    sizes += [8, 8, 8, ends, ends, 8 * rows, 8 * rows, 4 * rows]
    *begins, data_at = accumulate((size + _gap(size) for size in sizes), initial=0)
    topic_places, header_ends, topics, numbers, *others = zip(begins, sizes, strict=True)
    has_key, has_value, has_time, key_ends, value_ends, offsets, times, types = others
    none, data = (0, 0), (data_at, 0)
    nodes = [(rows, 0)] * _COLUMNS + [none] * (_NODES - _COLUMNS)
    buffers = [
        *(has_key, key_ends, data, has_value, value_ends, data, none, topic_places, topics),
        *(none, numbers, none, offsets, has_time, times, none, types, none, header_ends),
    ]
    buffers += [none] * (_BUFFERS - len(buffers))
    return _Form(
        _HEAD.pack(
            *(*_LAYOUTS, *_MESSAGE, 40, 16, rows, 188),
            *(_NODES, *(number for node in nodes for number in node)),
            *(_BUFFERS, *(number for place in buffers for number in place)),
        ),
        b"".join((topic_ends, bytes(_gap(ends)), bytes(ends), bytes(_gap(ends)))),
        struct.Struct(
            f"<{rows}i{_gap(4 * rows)}x3Q{rows + 1}i{_gap(ends)}x{rows + 1}i{_gap(ends)}x"
            f"{2 * rows}q{rows}i{_gap(4 * rows)}x"
        ),
        data_at,
        # The ends of keys, values, topics and headers, the numbers, and the topics.
        rows * (4 * 4 + 2 * 4 + 2 * 8 + topic_bytes),
    )


def few_columns(
    partition: Partition,
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    offsets: Sequence[int],
    *,
    timestamps: Sequence[int | None],
    timestamp_types: Sequence[int],
) -> tuple[pa.RecordBatch, int]:
    """Return the columns of SCHEMA of 1 to MOST records without headers, and their `nbytes`.

    Arrow would count these for as long as all else takes. Timestamps are in microseconds.
    """
    rows = len(keys)
    topic = partition.topic.encode()
    form = _form(len(topic), rows)
    topics = topic * rows
    key_bytes = [key or b"" for key in keys]
    value_bytes = [value or b"" for value in values]
    present = _present(keys), _present(values), _present(timestamps)
    numbers = form.numbers.pack(
        *(partition.number,) * rows,
        *present,
        *accumulate(map(len, key_bytes), initial=0),
        *accumulate(map(len, value_bytes), initial=0),
        *offsets,
        *[time or 0 for time in timestamps],
        *timestamp_types,
    )
    key_data, value_data = b"".join(key_bytes), b"".join(value_bytes)
    key_size, value_size = len(key_data), len(value_data)
    value_at = form.data_at + key_size + _gap(key_size)
    head = bytearray(form.head)
    _NUMBER.pack_into(head, _BODY_SIZE, value_at + value_size + _gap(value_size))
    _PAIR.pack_into(head, _KEY_DATA, form.data_at, key_size)
    _PAIR.pack_into(head, _VALUE_DATA, value_at, value_size)
    nbytes = form.nbytes + key_size + value_size
    if present != _NO_NULLS:
        for node, bits in zip(_NULLABLE, present, strict=True):
            if bits != _NO_NULL:
                _PAIR.pack_into(head, node, rows, rows - bits.bit_count())
                nbytes += -(-rows // 8)
    gaps = [bytes(_gap(len(data))) for data in (topics, key_data, value_data)]
    pieces = (head, form.ends, topics, gaps[0], numbers, key_data, gaps[1], value_data, gaps[2])
    message = b"".join(pieces)
    return pa.ipc.read_record_batch(message, SCHEMA), nbytes


def _present(values: Sequence[object]) -> int:
    """Return a bit for each value that is not null."""
    if None not in values:
        return _NO_NULL
    return sum(1 << row for row, value in enumerate(values) if value is not None)


def _gap(size: int) -> int:
    """Return how many bytes come between a buffer of a size and the next one."""
    return -size % _ALIGNED
