"""The files of one run: the evidence of what was sent, and the output of the query."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
import pyarrow as pa
from pyarrow.dataset import HivePartitioning, ParquetFileFormat, ParquetReadOptions, dataset
from pyarrow.fs import FileSystem, FileType, LocalFileSystem

from fanout.testing.s3_clients import BUCKET, s3_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# The columns of all services in the output of a query.
_COLUMNS: Final = (
    *("batch", "partitionKey", "data", "shardId", "sequenceNumber"),
    *("key", "value", "topic", "partition", "offset", "eventTime"),
    *("recordId", "receiveCount"),
)
# Spark's timestamps (INT96) have no unit of Arrow: read them as milliseconds.
_FORMAT: Final = ParquetFileFormat(
    read_options=ParquetReadOptions(coerce_int96_timestamp_unit="ms")
)


@final
class ReadRecord(msgspec.Struct, frozen=True):
    """A record as the query wrote it, in a batch.

    The time is its event time in milliseconds since the Unix epoch; None where it has none.
    """

    batch: int
    key: bytes
    value: bytes
    split: str
    sequence: str
    time: int | None = None
    deliveries: int = 1  # by a queue, this one included


@final
@dataclass(frozen=True, slots=True)
class Workspace:
    """The files of a run, below a directory; checkpoints and output may be on S3 instead."""

    root: str
    s3: str | None = None  # its endpoint

    @property
    def evidence(self) -> Path:
        """What was sent, for the comparison."""
        return Path(self.root, "evidence.json")

    @property
    def scratch(self) -> Path:
        """The temporary files of drivers and their JVMs, so that a kill leaves none elsewhere."""
        return Path(self.root, "scratch")

    def checkpoint(self, query: str) -> str:
        """Return the checkpoint of a query, by its name."""
        return f"{self._home}/checkpoints/{query.replace(' ', '-')}"

    def batch(self, batch_id: int) -> str:
        """Return the output directory of a batch."""
        return f"{self._home}/output/batch={batch_id}"

    def read_output(self, batch_id: int | None = None) -> Iterator[ReadRecord]:
        """Return the records of a batch or of all, without files that Spark has not committed."""
        files: FileSystem = LocalFileSystem() if self.s3 is None else s3_files(self.s3)
        output = f"{self.root if self.s3 is None else BUCKET}/output"
        path = output if batch_id is None else f"{output}/batch={batch_id}"
        if files.get_file_info(path).type == FileType.NotFound:
            return
        found = dataset(
            path,
            filesystem=files,
            format=_FORMAT,
            partitioning=HivePartitioning(pa.schema([("batch", pa.int64())])),
            partition_base_dir=output,
        )
        names = set(found.schema.names)
        columns = [name for name in _COLUMNS if name in names]
        for rows in found.to_batches(columns=columns) if len(columns) > 1 else ():
            yield from map(_read_record, rows.to_pylist())

    @property
    def _home(self) -> str:
        return self.root if self.s3 is None else f"s3a://{BUCKET}"


def _read_record(row: Mapping[str, Any]) -> ReadRecord:
    batch = row["batch"]
    if "shardId" in row:
        key, shard = row["partitionKey"].encode(), row["shardId"]
        return ReadRecord(batch, key, row["data"], shard, row["sequenceNumber"])
    if "recordId" in row:
        key, number = row["partitionKey"].encode(), str(int(row["recordId"], 16))
        return ReadRecord(batch, key, row["data"], "", number, deliveries=row["receiveCount"])
    split, time = f"{row['topic']}-{row['partition']}", row.get("eventTime")
    millis = None if time is None else round(time.replace(tzinfo=UTC).timestamp() * 1_000)
    return ReadRecord(batch, row["key"], row["value"], split, str(row["offset"]), millis)
