"""Read and write the files of one run: sent records, parents of splits, output of the query."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO, final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem

from fanout.demo.records import ReadRecord, Restart, SentRecord, digest, number_in
from fanout.testing.s3_clients import BUCKET, s3_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from fanout.demo.records import Reported

# The columns of each service in the output of the query.
_KINESIS = ("partitionKey", "data", "shardId", "sequenceNumber")
_KAFKA = ("key", "value", "topic", "partition", "offset")
_SHUFFLE = (*_KAFKA, "eventTime")


@final
class SentLog:
    """Log the records that the service has accepted.

    Args:
        file: An open file.
    """

    def __init__(self, file: TextIO) -> None:
        self._writer = csv.writer(file)

    def append(self, records: Iterable[SentRecord]) -> None:
        """Add records."""
        self._writer.writerows(msgspec.structs.astuple(record) for record in records)


@final
@dataclass(frozen=True, slots=True)
class Workspace:
    """The files of a run, below a directory; checkpoints and output may be on S3 instead.

    Args:
        root: The directory.
        s3: The endpoint of S3; None for the directory.
    """

    root: Path
    s3: str | None = None

    @property
    def sent(self) -> Path:
        """The log of the records sent."""
        return self.root / "sent.csv"

    @property
    def driver_log(self) -> Path:
        """The stderr of the Spark drivers."""
        return self.root / "driver.log"

    @property
    def scratch(self) -> Path:
        """The temporary files of drivers and their JVMs, so that a kill leaves none elsewhere."""
        return self.root / "scratch"

    def checkpoint(self, query: str) -> str:
        """Return the checkpoint of a query, by its name."""
        return f"{self._home}/checkpoints/{query.replace(' ', '-')}"

    @property
    def landing(self) -> str:
        """The landing of a query that lands the stream."""
        return f"{self.root}/landing"

    def batch(self, batch_id: int) -> str:
        """Return the output directory of a batch."""
        return f"{self._home}/output/batch={batch_id}"

    def count(self, batch_id: int) -> int:
        """Return the number of records in the output of a batch."""
        files = self._files
        return sum(
            pq.read_metadata(path, filesystem=files).num_rows
            for path, batch in self._written(files)
            if batch == batch_id
        )

    def write_parents(self, parents: Mapping[str, Sequence[str]]) -> None:
        """Store the parents of every split."""
        self._parents.write_bytes(msgspec.json.encode(parents))

    def read_parents(self) -> dict[str, list[str]] | None:
        """Return the parents of every split; None if splits have no order."""
        if not self._parents.exists():
            return None
        return msgspec.json.decode(self._parents.read_bytes(), type=dict[str, list[str]])

    def write_restart(self, restart: Restart) -> None:
        """Store the restart of the query."""
        self._restart.write_bytes(msgspec.json.encode(restart))

    def read_restart(self) -> Restart | None:
        """Return the restart of the query; None if it was not killed."""
        if not self._restart.exists():
            return None
        return msgspec.json.decode(self._restart.read_bytes(), type=Restart)

    def report(self, batch_id: int, watermark: int | None) -> None:
        """Append the watermark behind a batch."""
        with self._watermarks.open("ab") as file:
            file.write(msgspec.json.encode((batch_id, watermark)) + b"\n")

    def read_reported(self) -> list[Reported] | None:
        """Return the watermarks in the order of their reports; None if there was no shuffle."""
        if not self._watermarks.exists():
            return None
        lines = self._watermarks.read_bytes().splitlines()
        return [msgspec.json.decode(line, type=tuple[int, int | None]) for line in lines]

    def read_sent(self) -> Iterator[SentRecord]:
        """Return the records sent."""
        with self.sent.open(newline="") as file:
            for number, key, split, sequence, hashed, time in csv.reader(file):
                millis = int(time) if time else None
                yield SentRecord(int(number), key, split, int(sequence), hashed, millis)

    def read_output(self, batch_id: int | None = None) -> Iterator[ReadRecord]:
        """Return the records that the query wrote, without files that Spark has not committed.

        Args:
            batch_id: The id of their batch; None for all batches.
        """
        files = self._files
        for path, batch in self._written(files):
            if batch_id is not None and batch != batch_id:
                continue
            with files.open_input_file(path) as source:
                yield from _read_records(source, batch)

    def _written(self, files: FileSystem) -> list[tuple[str, int]]:
        """Return the files of Parquet that Spark has committed, with their batches."""
        root = str(self.root) if self.s3 is None else BUCKET
        output = FileSelector(f"{root}/output", recursive=True, allow_not_found=True)
        paths = sorted(
            info.path for info in files.get_file_info(output) if info.type == FileType.File
        )
        matches = (re.search(r"/output/batch=([0-9]+)/[^/]+\.parquet$", path) for path in paths)
        return [(match.string, int(match[1])) for match in matches if match]

    @property
    def _home(self) -> str:
        return str(self.root) if self.s3 is None else f"s3a://{BUCKET}"

    @property
    def _files(self) -> FileSystem:
        return LocalFileSystem() if self.s3 is None else s3_files(self.s3)

    @property
    def _watermarks(self) -> Path:
        return self.root / "watermarks.jsonl"

    @property
    def _parents(self) -> Path:
        return self.root / "parents.json"

    @property
    def _restart(self) -> Path:
        return self.root / "restart.json"


def _read_records(source: pa.NativeFile, batch: int) -> Iterator[ReadRecord]:
    """Return the records in a file of a batch.

    Args:
        source: A Parquet file with all columns of the source.
        batch: The id of the batch.
    """
    # Spark's timestamps (INT96) have no unit of Arrow: read them as milliseconds.
    with pq.ParquetFile(source, coerce_int96_timestamp_unit="ms") as file:
        if "shardId" in file.schema_arrow.names:
            for key, data, shard, sequence in _rows(file, _KINESIS):
                yield ReadRecord(batch, number_in(data), key, shard, int(sequence), digest(data))
            return
        shuffled = "eventTime" in file.schema_arrow.names
        for key, data, topic, partition, offset, *times in _rows(
            file, _SHUFFLE if shuffled else _KAFKA
        ):
            yield ReadRecord(
                batch,
                number_in(data),
                key.decode(),
                f"{topic}-{partition}",
                offset,
                digest(data),
                *times,
            )


def _rows(file: pq.ParquetFile, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    for rows in file.iter_batches(columns=list(columns)):
        yield from zip(*(_plain(rows.column(name)).to_pylist() for name in columns), strict=True)


def _plain(column: pa.Array) -> pa.Array:
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
