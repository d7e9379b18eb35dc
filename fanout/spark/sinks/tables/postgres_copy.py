"""Copy the rows of a Spark task into a table of PostgreSQL of its own, in Spark's workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, final
from uuid import uuid4

import pyarrow as pa

from fanout.core.remote_error import ErrorWire
from fanout.errors import FanOutError
from fanout.spark.sinks.tables.postgres_connection import quoted, transaction
from fanout.spark.workers.spare_worker import spare_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

REPORT_SCHEMA: Final = "staging string, rows bigint, failure string"
"""What a task returns: the table that has its rows and their number, or an error."""


@final
@dataclass(frozen=True, slots=True)
class CopyTask:
    """What each task of a batch does."""

    dsn: str | Callable[[], str] = field(repr=False)  # or a function that returns it
    schema: str  # of the tables that are created
    prefix: str  # of their names
    columns: Sequence[tuple[str, str]]  # the name and the type of each, as they are in the rows

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy rows, and yield one row of REPORT_SCHEMA if there are any."""
        spare_worker()
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        staging, copied, failure = f"{self.prefix}{uuid4().hex[:16]}", 0, None

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal copied
            for batch in chain((first,), batches):
                copied += batch.num_rows
                yield batch

        try:
            with transaction(self.dsn) as database:
                rows = pa.RecordBatchReader.from_batches(first.schema, counted())
                self._copy(database, staging, rows)
        except FanOutError as error:
            failure = ErrorWire.of(error).to_json()
        report = {"staging": staging, "rows": copied, "failure": failure}
        yield pa.RecordBatch.from_pylist([report])

    def _copy(self, database: Any, staging: str, rows: pa.RecordBatchReader) -> None:
        columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in self.columns)
        with database.cursor() as cursor:
            # It lives as long as its batch: a log of its rows would be of no use. As a crash
            # empties it, the driver counts the rows before it takes them over.
            cursor.execute(f"CREATE UNLOGGED TABLE {quoted(self.schema, staging)} ({columns})")
            cursor.adbc_ingest(staging, rows, mode="append", db_schema_name=self.schema)


def copy_rows(task: CopyTask) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark runs in each task of a batch."""

    def copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return task.run(batches)

    return copy
