"""How the records of each service look in what the query wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def read_records(path: Path, batch: int) -> Iterator[ReadRecord]:
    """Return the records in a file of a batch.

    Args:
        path: A Parquet file with all columns of the source.
        batch: The id of the batch.
    """
    with pq.ParquetFile(path) as file:
        if "shardId" in file.schema_arrow.names:
            for key, data, shard, sequence in _rows(file, _KINESIS):
                yield ReadRecord(batch, number_in(data), key, shard, int(sequence), digest(data))
            return
        for key, data, topic, partition, offset in _rows(file, _KAFKA):
            split = f"{topic}-{partition}"
            yield ReadRecord(batch, number_in(data), key.decode(), split, offset, digest(data))


def _rows(file: pq.ParquetFile, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    for rows in file.iter_batches(columns=list(columns)):
        yield from zip(*(rows.column(name).to_pylist() for name in columns), strict=True)
