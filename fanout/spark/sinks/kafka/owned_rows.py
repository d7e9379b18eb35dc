"""The rows of a batch that a task writes: it reads the batch's files, and takes its partitions.

The way of rows through the JVM is half the cost of writing them: out of Parquet, through a shuffle
and a sort, into Arrow. Here each task reads all rows with pyarrow, and keeps those of its own
partitions. A checksum of all rows' partitions proves that the tasks have shared them out in the
same way.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fanout.errors import CheckpointError
from fanout.kafka.writing.placement import place_rows, topics_of
from fanout.spark.sinks.kafka.arrow_transform import transform_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from fanout.kafka.writing.partitioner import Partitioner
    from fanout.spark.sinks.kafka.arrow_transform import ArrowTransform

# Bytes that a task reads at a time.
_READ_BYTES: Final = 8 << 20


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
