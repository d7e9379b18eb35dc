"""Bring what users pass to record batches, and choose the partition of each row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fanout.errors import UnwritableRecordError
from fanout.kafka.writing.partitioner import checked, partitions_of
from fanout.kafka.writing.row_batches import COLUMNS, column_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.kafka.writing.partitioner import Partitioner

_TOPIC: Final = "topic"


def to_batch(records: pa.RecordBatch | Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Return rows as a record batch, or raise UnwritableRecordError where Kafka cannot hold one."""
    if isinstance(records, pa.RecordBatch):
        return records
    names = dict.fromkeys(name for row in records for name in row)
    columns = {name: _column(name, [row.get(name) for row in records]) for name in names}
    return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])


def topics_of(records: pa.RecordBatch, topic: str | None) -> list[str]:
    """Return the topics of rows: this one, or those of their column where it is None."""
    if topic is not None:
        return [topic]
    if _TOPIC not in records.schema.names:
        raise UnwritableRecordError("there is no topic: pass topic=, or add a column 'topic'")
    column = records[_TOPIC]
    if column.null_count:
        raise UnwritableRecordError("a record has no topic: give each one")
    topics: list[str] = column.unique().to_pylist()
    return topics


def place_rows(
    records: pa.RecordBatch,
    counts: Mapping[str, int],
    *,
    partitioner: Partitioner | None,
    first_row: int,
) -> pa.RecordBatch:
    """Return rows with a topic and a partition each; a given partition goes before the partitioner.

    `counts` has the number of partitions of each topic; where there is one, all rows are for it.
    Rows
    without a key go to all partitions in turn, by their numbers from `first_row` on.
    """
    columns = {name: records[name] for name in records.schema.names}
    if len(counts) == 1:
        (topic,) = counts
        columns[_TOPIC] = pa.repeat(topic, len(records))
    given = column_of(records, "partition")
    if given.null_count:
        keys = column_of(records, "key")
        found = _assign(keys, columns[_TOPIC], counts, partitioner, first_row)
        given = pc.coalesce(given, found)
    columns["partition"] = given
    return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])


def _assign(
    keys: pa.Array,
    topics: pa.Array,
    counts: Mapping[str, int],
    partitioner: Partitioner | None,
    first_row: int,
) -> pa.Array:
    if len(counts) == 1:
        (count,) = counts.values()
        return _partitions(keys, count, partitioner, first_row)
    found = np.zeros(len(keys), np.int32)
    for topic, count in counts.items():
        rows = np.flatnonzero(pc.equal(topics, topic).to_numpy(zero_copy_only=False))
        of_topic = _partitions(keys.take(pa.array(rows)), count, partitioner, first_row)
        found[rows] = of_topic.to_numpy()
    return pa.array(found)


def _partitions(
    keys: pa.Array, count: int, partitioner: Partitioner | None, first_row: int
) -> pa.Array:
    if partitioner is None:
        return partitions_of(keys, count, first_row=first_row)
    return checked(partitioner)(keys, count)


def _column(name: str, values: list[Any]) -> pa.Array:
    kind = COLUMNS.get(name)
    if kind is None:
        raise UnwritableRecordError(
            f"a row has {name!r}, which Kafka cannot hold: leave it out, or name it one of "
            f"{', '.join(COLUMNS)}"
        )
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        # The original error may quote a value, so it is not chained.
        raise UnwritableRecordError(f"{name!r} of a row cannot be made {kind}") from None
