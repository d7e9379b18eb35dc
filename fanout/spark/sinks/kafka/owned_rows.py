"""The rows of a batch that a task writes: it reads the batch's files, and takes its partitions.

The way of rows through the JVM is half the cost of writing them: out of Parquet, through a shuffle
and a sort, into Arrow. Here each task reads all rows with pyarrow, applies the user's function to
them, and keeps those of its own partitions. A checksum of all rows' partitions proves that the
tasks have shared them out in the same way.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fanout.core.error_text import text_of
from fanout.errors import CheckpointError, OptionError, UnwritableRecordError
from fanout.kafka.writing.partitioner import place_rows, topics_of
from fanout.spark.workers.arrow_schema import arrow_schema, spark_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from fanout.kafka.writing.partitioner import Partitioner

ArrowTransform: TypeAlias = "Callable[[pa.RecordBatch], pa.RecordBatch]"
"""From records of the source to the records that are written, in their order."""

# Bytes that a task reads at a time.
_READ_BYTES: Final = 8 << 20


def transformed_schema(transform: ArrowTransform, schema: StructType) -> StructType:
    """Return the schema of what a transform returns, by calling it with no rows.

    Raises:
        OptionError: It fails with no rows, or returns something else than records.
    """
    given = arrow_schema(schema)
    empty = pa.RecordBatch.from_arrays([pa.array([], one.type) for one in given], schema=given)
    try:
        found = transform(empty)
    except Exception as error:
        raise OptionError(
            f"transform_arrow must accept a RecordBatch without rows, and raised "
            f"{type(error).__name__}: {text_of(error)}; the columns are {', '.join(given.names)}"
        ) from error
    if not isinstance(found, pa.RecordBatch):
        raise OptionError(
            f"transform_arrow must return a pyarrow.RecordBatch, and returned a "
            f"{type(found).__name__}"
        )
    return spark_schema(found.schema)


def transform_rows(df: DataFrame, transform: ArrowTransform, schema: StructType) -> DataFrame:
    """Apply a transform, which returns `schema`, to a DataFrame."""

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return map(transform, batches)

    return df.mapInArrow(each, schema)


def transform_batch(transform: ArrowTransform | None, records: pa.RecordBatch) -> pa.RecordBatch:
    """Call a transform, if there is one, inside a task.

    Raises:
        UnwritableRecordError: It fails, or returns something else than records.
    """
    if transform is None:
        return records
    try:
        found = transform(records)
    except Exception as error:
        raise UnwritableRecordError(
            f"transform_arrow raised {type(error).__name__}: {text_of(error)}"
        ) from error
    if not isinstance(found, pa.RecordBatch):
        raise UnwritableRecordError(f"transform_arrow returned a {type(found).__name__}")
    return found


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFiles:
    """The files of a batch, and how its tasks share the rows out; pickled and sent to workers."""

    paths: Sequence[str]  # Parquet files, in the order of the rows
    transform: ArrowTransform | None
    topic: str | None  # of all rows; None where the rows name it
    counts: Mapping[str, int]  # the partition counts of the known topics
    tasks: int
    partitioner: Partitioner | None  # the user's; None for Kafka's own


@final
class OwnedRows:
    """Iterate over the rows that one task writes, each with its topic and partition.

    The rows of a topic that the driver did not know come to every task, without a partition.

    Raises:
        UnwritableRecordError: The transform or the partitioner fails, or a row has no topic.
        CheckpointError: A file is damaged.
    """

    def __init__(self, shared: SharedFiles, task: int) -> None:
        self._shared = shared
        self._task = task
        counts = shared.counts
        self._begins = dict(zip(counts, np.cumsum([0, *counts.values()]).tolist(), strict=False))
        self._rows = 0
        self._checksum = 0

    @property
    def checksum(self) -> int:
        """A checksum of the topics and partitions of all rows so far, the same in every task."""
        return self._checksum

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Read the files, and yield the rows of this task."""
        for records in _read(self._shared.paths):
            rows = transform_batch(self._shared.transform, records)
            if rows.num_rows:
                yield from self._owned(rows)
                self._rows += rows.num_rows

    def _owned(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        known = dict(self._shared.counts)
        if self._shared.topic is None:
            topics = topics_of(rows, None)
            unknown = pa.array([topic for topic in topics if topic not in known], pa.string())
            is_unknown = pc.is_in(rows["topic"].cast(pa.string()), unknown)
            if unknown:
                yield _without_partition(rows.filter(is_unknown))
                rows = rows.filter(pc.invert(is_unknown))
            known = {topic: known[topic] for topic in topics if topic in known}
        if rows.num_rows:
            partitioner = self._shared.partitioner
            yield self._mine(place_rows(rows, known, partitioner=partitioner, first_row=self._rows))

    def _mine(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of this task, sorted by topic and partition."""
        topics = rows["topic"].dictionary_encode()
        begins = np.array([self._begins[topic] for topic in topics.dictionary.to_pylist()])
        places = begins[topics.indices.to_numpy()] + rows["partition"].to_numpy()
        self._checksum = zlib.crc32(places.astype(np.int64).tobytes(), self._checksum)
        mine = np.flatnonzero(places % self._shared.tasks == self._task)
        return rows.take(pa.array(mine[np.argsort(places[mine], kind="stable")]))


def _without_partition(rows: pa.RecordBatch) -> pa.RecordBatch:
    numbers = pa.nulls(rows.num_rows, pa.int32())
    topics = rows["topic"].cast(pa.string())
    return pa.RecordBatch.from_arrays([topics, numbers], names=["topic", "partition"])


def row_count(path: str) -> int:
    """Return how many rows a Parquet file has."""
    rows: int = pq.read_metadata(path).num_rows
    return rows


def _read(paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files in order; a worker has one core, so that it reads in one thread."""
    for path in paths:
        try:
            with pq.ParquetFile(path, memory_map=True, page_checksum_verification=True) as file:
                for number in range(file.num_row_groups):
                    group = file.metadata.row_group(number)
                    row_bytes = group.total_byte_size // max(1, group.num_rows)
                    rows = max(1, _READ_BYTES // max(1, row_bytes))
                    yield from file.iter_batches(rows, row_groups=[number], use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise CheckpointError(
                f"the segment {path} cannot be read; if it is damaged, restore this file alone "
                f"from a backup, or start with a new checkpoint location"
            ) from error
