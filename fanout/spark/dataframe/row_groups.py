"""Partitions of a batch: row groups of a landing's files, read as Arrow batches."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import InputPartition

from fanout.errors import CheckpointError
from fanout.landing.log.columns import landed_schema
from fanout.spark.dataframe.options import ReadOptions, in_words_of_options
from fanout.spark.workers.spare_worker import spare_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from fanout.landing.log.landed_log import FileRows
    from fanout.landing.storage.storage import ReadableFiles

_LOG: Final = logging.getLogger("fanout.spark")
_PARALLEL_READS: Final = 8
# Small row groups share a task: one costs Spark some milliseconds.
_PARTITION_BYTES: Final = 4 << 20
# What is in memory of a task at a time.
_BATCH_BYTES: Final = 4 << 20
_BATCH_ROWS: Final = 16_384


@final
@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one row group."""

    entry: int  # the number of the entry
    file: str  # its name in the landing
    group: int  # its number in the file
    first: int  # the number of the first row in the row group, from 0
    rows: int
    bytes: int  # what these rows take in memory, about


@final
class RowGroups(InputPartition):
    """The rows that one task reads, in order."""

    def __init__(self, groups: tuple[RowGroup, ...]) -> None:
        super().__init__(None)
        self.groups = groups


def partitions(rows: Iterable[FileRows], options: ReadOptions) -> list[InputPartition]:
    """Divide rows among tasks. It blocks.

    Raises:
        CheckpointError: A file is missing or damaged, or the storage refused.
    """
    files = _files(options)
    found: list[InputPartition] = []
    taken: list[RowGroup] = []
    with ThreadPoolExecutor(_PARALLEL_READS, "fanout-footers") as threads:
        for groups in threads.map(lambda one: _row_groups(files, one, options), rows):
            for group in groups:
                if taken and sum(one.bytes for one in taken) + group.bytes > _PARTITION_BYTES:
                    found.append(RowGroups(tuple(taken)))
                    taken = []
                taken.append(group)
    return [*found, RowGroups(tuple(taken))] if taken else found


def read_rows(
    partition: InputPartition, schema: pa.Schema, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, in the columns that Spark expects, in a worker of Spark. It blocks.

    Raises:
        CheckpointError: A file is missing, damaged or has other columns, or the storage refused.
    """
    assert isinstance(partition, RowGroups)
    spare_worker()
    with in_words_of_options():
        files = _files(options)
        landed = cache(lambda: landed_schema(files))
        for group in partition.groups:
            yield from _rows(files, group, schema, options, landed)


def _rows(
    files: ReadableFiles,
    group: RowGroup,
    schema: pa.Schema,
    options: ReadOptions,
    landed: Callable[[], pa.Schema],
) -> Iterator[pa.RecordBatch]:
    """Yield rows; what was added to the landing after them is null."""
    with _Reading(group.entry, group.file, options) as reading:
        file = reading.open(files)
        there = [name for name in schema.names if name in file.schema_arrow.names]
        added = {*schema.names} - {*there}
        if missing := sorted(added.difference(landed().names if added else ())):
            raise CheckpointError(
                f"the records of entry {group.entry} of {options.landing} have no column "
                f"{', '.join(missing)}; name the columns that all records have with .schema()"
            )
        for batch in _slices(file, group, there):
            yield _as(batch, schema, group, options)


def _row_groups(files: ReadableFiles, rows: FileRows, options: ReadOptions) -> list[RowGroup]:
    with _Reading(rows.entry, rows.file.name, options) as reading:
        metadata = reading.open(files).metadata
        found, begin = [], 0
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            first = max(rows.first - begin, 0)
            count = min(rows.end - begin, group.num_rows) - first
            if count > 0:
                size = group.total_byte_size * count // group.num_rows
                found.append(RowGroup(rows.entry, rows.file.name, number, first, count, size))
            begin += group.num_rows
        return found
    return []


def _slices(file: pq.ParquetFile, group: RowGroup, columns: list[str]) -> Iterator[pa.RecordBatch]:
    row_bytes = max(group.bytes // group.rows, 1)
    size = max(min(_BATCH_BYTES // row_bytes, _BATCH_ROWS), 1)
    skip, left = group.first, group.rows
    batches = file.iter_batches(size, row_groups=[group.group], columns=columns, use_threads=False)
    for batch in batches:
        rows = batch.slice(skip, left)
        skip = max(skip - batch.num_rows, 0)
        left -= rows.num_rows
        if rows.num_rows:
            yield rows
        if not left:
            return


def _as(
    batch: pa.RecordBatch, schema: pa.Schema, group: RowGroup, options: ReadOptions
) -> pa.RecordBatch:
    columns = []
    for field in schema:
        if field.name not in batch.schema.names:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(field.name)
        try:
            columns.append(column.cast(field.type))
        except pa.ArrowException:
            # Arrow's sentence has the value.
            raise CheckpointError(
                f"the column {field.name} of entry {group.entry} of {options.landing} is "
                f"{column.type}, and not each value can be {field.type}: give .schema() the type "
                f"that it has, and cast in the DataFrame"
            ) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@final
class _Reading:
    """Say in one sentence why a file cannot be read; leave out one that is to be skipped."""

    def __init__(self, entry: int, name: str, options: ReadOptions) -> None:
        self._entry = entry
        self._name = name
        self._options = options
        self._file: pq.ParquetFile | None = None

    def open(self, files: ReadableFiles) -> pq.ParquetFile:
        source = files.open(self._name)
        remote = not isinstance(source, Path)  # one request for neighbouring columns
        # A landed file is never changed, so it can be mapped. A disk that fails meanwhile, or cuts
        # the file off, ends the worker by a signal in place of an error.
        self._file = pq.ParquetFile(
            source, memory_map=not remote, pre_buffer=remote, page_checksum_verification=True
        )
        return self._file

    def __enter__(self) -> _Reading:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if self._file is not None:
            self._file.close(force=True)
        what = f"{self._options.landing}/{self._name} of entry {self._entry}"
        if isinstance(error, FileNotFoundError):
            if not self._options.fail_on_data_loss:
                _LOG.warning("%s was deleted before it was read; it is skipped", what)
                return True
            raise CheckpointError(
                f"{what} was deleted before this query had read it: the landing keeps entries for "
                f"`keep`, and longer for a named reader that has committed within "
                f"`keep_for_readers`; set failOnDataLoss to false to go on without it"
            ) from error
        if isinstance(error, OSError | pa.ArrowException):
            raise CheckpointError(f"cannot read {what}: ", error) from error
        return False


def _files(options: ReadOptions) -> ReadableFiles:
    return _opened(options.landing, tuple(sorted(options.storage.items())))


@lru_cache(maxsize=4)
def _opened(location: str, storage: tuple[tuple[str, str], ...]) -> ReadableFiles:
    return ReadOptions(landing=location, storage=dict(storage)).open()
