"""The Spark task of a Kinesis sink: it puts the rows of its partition keys in a Python worker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, TypeAlias, final

import pyarrow as pa

from fanout.core.remote_error import ErrorWire
from fanout.errors import FanOutError
from fanout.kinesis.deduplication import ID_BYTES
from fanout.kinesis.writer import open_with
from fanout.spark.workers.spare_worker import spare_worker

if TYPE_CHECKING:
    from fanout.kinesis.writing.write_options import KinesisWriteOptions

REPORT_SCHEMA: Final = "rows bigint, bytes bigint, failure string"

_Batches: TypeAlias = Iterator[pa.RecordBatch]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PutTask:
    """The settings of the tasks of a batch; they are pickled and sent to the workers."""

    options: KinesisWriteOptions
    batch: str | None  # its name, from which deduplication ids are made; None to make none


def put_rows(task: PutTask) -> Callable[[_Batches], _Batches]:
    """Return the function that a task runs on its rows: it puts them, and returns a report.

    The report has the rows, their bytes, and the error that ended the task as data: Spark would try
    a task that raises again.
    """

    def put(batches: _Batches) -> _Batches:
        spare_worker()
        failure = None
        rows = nbytes = 0
        try:
            rows, nbytes = asyncio.run(_put(batches, task))
        except FanOutError as error:
            for _ in batches:  # Spark's side waits until all its rows were read
                pass
            failure = ErrorWire.of(error).to_json()
        yield pa.record_batch(
            {
                "rows": pa.array([rows], pa.int64()),
                "bytes": pa.array([nbytes], pa.int64()),
                "failure": pa.array([failure], pa.string()),
            }
        )

    return put


async def _put(batches: _Batches, task: PutTask) -> tuple[int, int]:
    """Put all rows; return their number, and their bytes."""
    ids = None if task.batch is None else RowIds(task.batch)
    async with open_with(task.options) as writer:
        # Spark's iterator reads a socket, which would block the loop.
        while (records := await asyncio.to_thread(next, batches, None)) is not None:
            await writer.write(records if ids is None else ids.add_to(records))
        await writer.flush()
        written = writer.statistics()
    return written.records, written.bytes


@final
class RowIds:
    """Make the deduplication ids of a batch: of the batch, the key, and the row's place in the key.

    So they are the same whenever the batch is written again, however Spark divides it into tasks,
    as long as the rows of a key come in the same order. A row without a key has its place among
    those with the same data. No other batch has the name of this one.
    """

    def __init__(self, batch: str) -> None:
        self._batch = blake2b(batch.encode(), digest_size=ID_BYTES)
        self._rows: Counter[bytes] = Counter()

    def add_to(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the next records of a task with the column `deduplicationId`."""
        columns = (records[name].to_pylist() for name in ("partitionKey", "data"))
        ids = [self._next(key, data) for key, data in zip(*columns, strict=True)]
        return records.append_column("deduplicationId", pa.array(ids, pa.binary()))

    def _next(self, key: str | None, data: str | bytes | None) -> bytes:
        if key is None:
            value = data.encode() if isinstance(data, str) else data or b""
            # No key has the byte 255 in UTF-8.
            name = b"\xff" + blake2b(value, digest_size=ID_BYTES).digest()
        else:
            name = key.encode()
        row = self._rows[name]
        self._rows[name] = row + 1
        made = self._batch.copy()
        made.update(b" %d %s" % (row, name))
        return made.digest()
