"""Check rows to be written, bring them to one form, and cut them into batches."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fanout.errors import UnwritableRecordError
from fanout.kafka.partitions import Partition
from fanout.kafka.writing.encoding import EncodedTogether, record_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
COLUMNS: Final = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": _HEADERS,
    "timestamp": pa.timestamp("ms", tz="UTC"),
}
"""What a record of Kafka holds, by the names that Spark's own sink uses."""
# Bytes of batches that are encoded at once.
_TOGETHER: Final = 2 << 20
_REQUIRED: Final = ("topic", "partition", "value")


def prepare_rows(records: pa.RecordBatch, now: datetime) -> pa.RecordBatch:
    """Bring records to the columns that are encoded, with the timestamp `now` where they have none.

    Raises:
        UnwritableRecordError: If a column is missing, unknown or of another type, or Kafka cannot
            hold a value: a null topic or partition, or a timestamp before 1970.
    """
    _check_names(records.schema.names)
    columns = {name: column_of(records, name) for name in COLUMNS}
    for name in ("topic", "partition"):
        if columns[name].null_count:
            raise UnwritableRecordError(f"a record has no {name}: give each one")
    times = pc.fill_null(columns["timestamp"], pa.scalar(now, COLUMNS["timestamp"]))
    columns["timestamp"] = times = times.view(pa.int64())
    for name, numbers in (("timestamp", times), ("partition", columns["partition"])):
        if pc.any(pc.less(numbers, 0)).as_py():
            raise UnwritableRecordError(
                f"the {name} of a record is less than 0, which Kafka does not allow"
            )
    headers = columns["headers"]
    if pc.struct_field(headers.flatten(), "key").null_count:
        raise UnwritableRecordError("a record has a header without a key: give each header one")
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def split_by_partition(rows: pa.RecordBatch) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    """Yield each partition with its rows, in their order."""
    topics = rows["topic"].dictionary_encode()
    numbers = rows["partition"].to_numpy().astype(np.int64)
    numbered = (topics.indices.to_numpy().astype(np.int64) << 32) + numbers
    if len(numbered) and (numbered[1:] < numbered[:-1]).any():
        order = np.argsort(numbered, kind="stable")
        rows, numbered = rows.take(pa.array(order)), numbered[order]
    ends = [0, *(np.flatnonzero(np.diff(numbered)) + 1), len(numbered)] if len(numbered) else []
    for begin, end in pairwise(ends):
        topic, number = divmod(int(numbered[begin]), 1 << 32)
        partition = Partition(topics.dictionary[topic].as_py(), number)
        yield partition, rows.slice(begin, end - begin)


def cut_batches(rows: pa.RecordBatch, max_bytes: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Cut rows of a partition into batches, each with the most bytes that it takes.

    These are at most `max_bytes`, unless one record takes more: it goes alone.
    """
    ends = np.cumsum(record_sizes(rows))
    begin, behind = 0, 0
    while begin < len(ends):
        end = max(begin + 1, int(np.searchsorted(ends, behind + max_bytes, side="right")))
        yield rows.slice(begin, end - begin), int(ends[end - 1]) - behind
        begin, behind = end, int(ends[end - 1])


def cut_together(
    rows: pa.RecordBatch, max_bytes: int
) -> Iterator[tuple[pa.RecordBatch, int, Callable[[], pa.Buffer]]]:
    """Cut rows as `cut_batches` does, and add what returns the encoded records of each batch.

    It encodes several batches at once. The encoded ones take about `_TOGETHER` bytes, until all of
    them are confirmed.
    """
    together, begin = EncodedTogether(rows), 0
    for batch, nbytes in cut_batches(rows, max_bytes):
        if together.nbytes and together.nbytes + nbytes > _TOGETHER:
            together = EncodedTogether(rows.slice(begin))
        yield batch, nbytes, together.add(len(batch), nbytes)
        begin += len(batch)


def _check_names(names: list[str]) -> None:
    missing = [name for name in _REQUIRED if name not in names]
    if missing:
        raise UnwritableRecordError(f"the records have no column {missing[0]!r}")
    unknown = [name for name in names if name not in COLUMNS or names.count(name) > 1]
    if unknown:
        raise UnwritableRecordError(
            f"the records have a column {unknown[0]!r} that Kafka cannot hold: leave it out, "
            f"or name it {', '.join(COLUMNS)}, each at most once"
        )


def column_of(records: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column in the type that is encoded; nulls where the records have none."""
    kind = COLUMNS[name]
    if name not in records.schema.names:
        return pa.nulls(len(records), kind)
    column = records[name]
    if column.type == kind:
        return column
    inner = getattr(column.type, "value_type", column.type)
    # A cast makes null of fields that are missing, and leaves out others.
    if not (pa.types.is_struct(inner) and {each.name for each in inner} != {"key", "value"}):
        # The original error may quote a value, so it is not chained.
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return column.cast(kind, safe=name != "timestamp")
    raise UnwritableRecordError(
        f"the column {name!r} has the type {column.type}, which cannot be made {kind}"
    )
