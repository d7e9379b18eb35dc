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

from fanout.errors import UnwritableRecordError
from fanout.kafka.writing.partitioner import partitions_of
from fanout.spark.sink.arrow_transform import transform_batch
from fanout.spark.sink.partitioned_rows import checked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from fanout.spark.sink.arrow_transform import ArrowTransform
    from fanout.spark.sink.options import Partitioner

# Bytes that a task reads at a time.
_READ_BYTES: Final = 8 << 20
# A row of a topic that the driver did not know, and so without a partition.
_UNKNOWN: Final = -1


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFiles:
    """The files of a batch, and how its tasks share the rows out; pickled and sent to the workers.

    Args:
        paths: The Parquet files, in the order of the rows.
        transform: Makes of the rows what is written; None where they are written as they are.
        topic: The topic of all rows; None where the rows name it.
        counts: The partition counts of the known topics.
        tasks: The number of tasks.
        partitioner: The user's partitioner; None for Kafka's own.
    """

    paths: Sequence[str]
    transform: ArrowTransform | None
    topic: str | None
    counts: Mapping[str, int]
    tasks: int
    partitioner: Partitioner | None


@final
class OwnedRows:
    """Iterate over the rows that one task writes, sorted by partition within each batch.

    A row of an unknown topic comes to every task, with a null partition.

    Args:
        shared: The files.
        task: The number of the task.

    Raises:
        UnwritableRecordError: The transform or the partitioner fails, or a row has no topic.
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
            if self._shared.topic is not None and "topic" in rows.schema.names:
                rows = rows.drop_columns("topic")
            if rows.num_rows:
                yield self._owned(rows)
                self._rows += rows.num_rows

    def _owned(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        partitions, places = self._place(rows)
        self._checksum = zlib.crc32(places.tobytes(), self._checksum)
        mine = np.flatnonzero((places % self._shared.tasks == self._task) | (places == _UNKNOWN))
        mine = mine[np.argsort(places[mine], kind="stable")]
        taken = rows.take(pa.array(mine))
        numbers = pa.array(partitions[mine], pa.int32(), mask=places[mine] == _UNKNOWN)
        names = taken.schema.names
        if "partition" in names:
            return taken.set_column(names.index("partition"), "partition", numbers)
        return taken.append_column("partition", numbers)

    def _place(self, rows: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the partition of each row, and its place among the partitions of all topics."""
        if self._shared.topic is not None:
            partitions = self._assign(rows, self._shared.topic, self._rows)
            return partitions, partitions
        topics = rows["topic"].cast(pa.string()).dictionary_encode()
        if topics.null_count:
            raise UnwritableRecordError("a record has no topic: give each one")
        partitions = np.full(rows.num_rows, _UNKNOWN, np.int64)
        places = partitions.copy()
        indices = topics.indices.to_numpy()
        for number, topic in enumerate(topics.dictionary.to_pylist()):
            if topic in self._shared.counts:
                at = np.flatnonzero(indices == number)
                partitions[at] = self._assign(rows.take(pa.array(at)), topic, self._rows)
                places[at] = partitions[at] + self._begins[topic]
        return partitions, places

    def _assign(self, rows: pa.RecordBatch, topic: str, first_row: int) -> npt.NDArray[np.int64]:
        """Return the partitions of rows of one topic: their own, or those of their keys."""
        names, count = rows.schema.names, self._shared.counts[topic]
        if "key" in names:
            keys = rows["key"].cast(pa.binary())
        else:
            keys = pa.nulls(rows.num_rows, pa.binary())
        if self._shared.partitioner is None:
            found = partitions_of(keys, count, first_row=first_row)
        else:
            found = checked(self._shared.partitioner)(keys, count)
        if "partition" in names:
            found = pc.coalesce(rows["partition"].cast(pa.int32()), found)
        numbers: npt.NDArray[np.int64] = found.to_numpy(zero_copy_only=False).astype(np.int64)
        return numbers


def _read(paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files in order; a worker has one core, so that it reads in one thread."""
    for path in paths:
        with pq.ParquetFile(path, memory_map=True, page_checksum_verification=True) as file:
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                size = max(1, group.total_byte_size // max(1, group.num_rows))
                yield from file.iter_batches(
                    batch_size=max(1, _READ_BYTES // size), row_groups=[number], use_threads=False
                )
