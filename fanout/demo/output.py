"""How the records of each service look in what the query wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from fanout.demo.records import digest, number_in
from fanout.demo.verification import ReadRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import Any

__all__ = ("read_records",)

_KINESIS = ("partitionKey", "data", "shardId", "sequenceNumber")
_KAFKA = ("key", "value", "topic", "partition", "offset")
_SHUFFLE = (*_KAFKA, "eventTime")


def read_records(path: Path, batch: int) -> Iterator[ReadRecord]:
    """Return the records in a file of a batch.

    Args:
        path: A Parquet file with all columns of the source.
        batch: The id of the batch.
    """
    # Spark's timestamps, whose unit is that of no column of Arrow, as milliseconds.
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="ms") as file:
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
