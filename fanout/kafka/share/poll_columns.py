"""Turn the messages of a poll into Arrow columns."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from fanout.core.user_decode import no_records
from fanout.kafka.partitions import Partition
from fanout.kafka.reading.columns import SCHEMA as KAFKA_SCHEMA
from fanout.kafka.reading.columns import timestamps_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from fanout.kafka.share.offset_ranges import OffsetRange

SCHEMA: Final = KAFKA_SCHEMA.append(pa.field("deliveryCount", pa.int32()))

NO_RECORDS: Final = no_records(SCHEMA)

_HEADERS: Final = SCHEMA.field("headers").type
_NO_PAIRS: Final = pa.nulls(0, _HEADERS.value_type)


@final
@dataclass(frozen=True, slots=True, eq=False)
class PolledRecords:
    """The records of one poll of a member.

    Args:
        records: The records, with the columns of SCHEMA.
        partition_keys: The partition of each record: the index of its topic in the upper 32 bits,
            the number of the partition in the lower 32 bits.
        delivery_counts: How often each record was delivered, this time included.
        unreadable: The rows whose headers the client cannot read.
        acquired_after: A time before the broker locked the first record, on the loop's clock.
    """

    records: pa.RecordBatch
    topics: tuple[str, ...]
    partition_keys: NDArray[np.int64]
    offsets: NDArray[np.int64]
    delivery_counts: NDArray[np.int32]
    unreadable: NDArray[np.int64]
    acquired_after: float

    @property
    def lent(self) -> LentOffsets:
        """The partition and offset of each record, without the columns."""
        return LentOffsets(self.topics, self.partition_keys, self.offsets, self.acquired_after)


@final
@dataclass(frozen=True, slots=True, eq=False)
class LentOffsets:
    """The partition and offset of each record of a poll; see `PolledRecords`."""

    topics: tuple[str, ...]
    partition_keys: NDArray[np.int64]
    offsets: NDArray[np.int64]
    acquired_after: float

    def pieces(self, rows: NDArray[np.int64]) -> list[OffsetRange]:
        """Return rows as ranges of offsets."""
        keys, offsets = self.partition_keys[rows], self.offsets[rows]
        follows = (offsets[1:] == offsets[:-1] + 1) & (keys[1:] == keys[:-1])
        ends = [*(np.flatnonzero(~follows) + 1).tolist(), len(offsets)] if len(offsets) else []
        return [
            (self._partition(int(keys[begin])), int(offsets[begin]), int(offsets[end - 1]) + 1)
            for begin, end in pairwise([0, *ends])
        ]

    def rows_of(self, piece: OffsetRange) -> NDArray[np.int64]:
        """Return the rows of a range of offsets."""
        partition, begin, end = piece
        key = (self.topics.index(partition.topic) << 32) + partition.number
        chosen = (self.offsets >= begin) & (self.offsets < end) & (self.partition_keys == key)
        return np.flatnonzero(chosen)

    def groups(self, rows: NDArray[np.int64]) -> list[tuple[Partition, NDArray[np.int64]]]:
        """Group rows by their partitions, in their order."""
        keys = self.partition_keys[rows]
        return [(self._partition(key), rows[keys == key]) for key in np.unique(keys).tolist()]

    def lock_deadline(self, lock_seconds: float) -> float:
        """Return when the first lock may expire: the broker may have locked it right away."""
        return self.acquired_after + lock_seconds

    def _partition(self, key: int) -> Partition:
        return Partition(self.topics[key >> 32], key & 0xFFFFFFFF)


def to_columns(messages: Sequence[Message], acquired_after: float) -> PolledRecords:
    """Turn messages, at least one and none with an error, into columns.

    No line of Python runs for each message.
    """
    size = len(messages)
    topics: list[Any] = list(map(Message.topic, messages))
    partitions = np.fromiter(map(Message.partition, messages), np.int32, size)
    # A timestamp comes with its kind: 1 is the producer's, 2 the broker's, and 0 is none. Only one
    # of these tuples exists at a time, because many would trigger garbage collections.
    both = chain.from_iterable(map(Message.timestamp, messages))
    kinds, stamps = np.fromiter(both, np.int64, 2 * size).reshape(size, 2).T
    offsets = np.fromiter(map(Message.offset, messages), np.int64, size)
    delivery_counts = np.fromiter(map(Message.delivery_count, messages), np.int32, size)
    headers, unreadable = _headers(messages)
    records = pa.RecordBatch.from_arrays(
        [
            pa.array(list(map(Message.key, messages)), pa.binary()),
            pa.array(list(map(Message.value, messages)), pa.binary()),
            pa.array(topics, pa.string()),
            pa.array(partitions),
            pa.array(offsets),
            timestamps_of(stamps),
            pa.array((kinds > 1).astype(np.int32)),
            headers,
            pa.array(delivery_counts),
        ],
        schema=SCHEMA,
    )
    numbers = {topic: number << 32 for number, topic in enumerate(dict.fromkeys(topics))}
    keys = partitions.astype(np.int64)
    if len(numbers) > 1:
        keys += np.fromiter(map(numbers.__getitem__, topics), np.int64, size)
    return PolledRecords(
        records, tuple(numbers), keys, offsets, delivery_counts, unreadable, acquired_after
    )


def _headers(messages: Sequence[Message]) -> tuple[pa.ListArray, NDArray[np.int64]]:
    """Return the headers, and the rows whose headers the client cannot read."""
    headers: list[Any] = []
    unreadable: list[int] = []
    # If a key is not UTF-8, the client returns null pointers and sets an error. `map` raises that
    # error; a call in Python does not, once the interpreter has specialised it.
    found = map(Message.headers, messages)
    while len(headers) < len(messages):
        try:
            headers.extend(found)
        except (SystemError, UnicodeError):
            unreadable.append(len(headers))
            headers.append(None)
    return _column(headers), np.array(unreadable, np.int64)


def _column(headers: list[Any]) -> pa.ListArray:
    if not any(headers):
        return pa.ListArray.from_arrays(pa.array(np.zeros(len(headers) + 1, np.int32)), _NO_PAIRS)
    pairs = [pair for some in headers for pair in some or ()]
    ends = np.cumsum([0, *(len(some or ()) for some in headers)], dtype=np.int32)
    keys = pa.array([key for key, _ in pairs], pa.string())
    values = pa.array([value for _, value in pairs], pa.binary())
    fields = [_HEADERS.value_type.field(0), _HEADERS.value_type.field(1)]
    return pa.ListArray.from_arrays(
        pa.array(ends), pa.StructArray.from_arrays([keys, values], fields=fields)
    )
