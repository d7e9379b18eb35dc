"""Apply a user's `decode` function to batches of records, and check its results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import pyarrow as pa
import pyarrow.compute as pc

from fanout.errors import DecodeFailedError
from fanout.kafka.reading.columns import NO_RECORDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.kafka.partitions import Partition

_IDENTITY: Final = ("topic", "partition", "offset")


@final
class UserDecode:
    """Apply a user's function to each batch of records, and check its result.

    The function may add, drop and change columns, and leave rows out. It must keep the columns
    `topic`, `partition` and `offset`, by which batches are cut and resumed, and the order of the
    rows; one record cannot become two. It is called once without rows to learn its schema.

    `schema` is the schema of its results; `no_records` is such a batch without rows.

    Args:
        function: Takes a batch with the columns of Kafka, and returns a batch, each time with the
            same schema.
        given: A batch without rows, with the columns that the function gets.

    Raises:
        DecodeFailedError: If the function fails for a batch without rows.
    """

    def __init__(
        self,
        function: Callable[[pa.RecordBatch], pa.RecordBatch],
        given: pa.RecordBatch = NO_RECORDS,
    ) -> None:
        self._function = function
        try:
            self.no_records = function(given)
        except Exception as error:
            raise DecodeFailedError("decode failed for a batch without rows") from error
        if problem := _problem(given, self.no_records):
            raise DecodeFailedError(f"decode was given a batch without rows, and {problem}")
        self.schema: pa.Schema = self.no_records.schema

    def __call__(self, records: pa.RecordBatch, partition: Partition) -> pa.RecordBatch:
        """Decode a batch with rows.

        Args:
            records: The batch.
            partition: Its partition, for messages.

        Raises:
            DecodeFailedError: If the function fails, or its result cannot be delivered.
        """
        offsets = records.column("offset")
        where = f"{partition} from offset {offsets[0]} to {offsets[-1]}"
        try:
            decoded = self._function(records)
        except Exception as error:
            raise DecodeFailedError(f"decode failed for {where}") from error
        problem = _problem(records, decoded)
        if not problem and not decoded.schema.equals(self.schema):
            problem = (
                f"returned the schema {_on_one_line(decoded.schema)} instead of "
                f"{_on_one_line(self.schema)}, which it returns for a batch without rows"
            )
        if problem:
            raise DecodeFailedError(f"decode was given {where}, and {problem}")
        return decoded


def _problem(given: pa.RecordBatch, decoded: object) -> str:
    """Return why a result of the function cannot be delivered; empty where it can."""
    if not isinstance(decoded, pa.RecordBatch):
        return f"returned a {type(decoded).__name__}; return a pyarrow.RecordBatch"
    for name in _IDENTITY:
        field = decoded.schema.field(name) if decoded.schema.names.count(name) == 1 else None
        if field is None or field.type != given.schema.field(name).type:
            return (
                f"returned no single column {name!r} of the type {given.schema.field(name).type}; "
                f"keep the columns topic, partition and offset"
            )
    if not _is_part_of(given, decoded):
        return (
            "changed topic, partition or offset, or the order of the rows, or returned a row "
            "twice; keep them, and leave rows out at the most"
        )
    return ""


def _is_part_of(given: pa.RecordBatch, decoded: pa.RecordBatch) -> bool:
    if decoded.num_rows != given.num_rows:
        rows = pc.index_in(decoded.column("offset"), value_set=given.column("offset"))
        if not _rising(rows):
            return False
        given = given.select(_IDENTITY).take(rows)
    return all(decoded.column(name).equals(given.column(name)) for name in _IDENTITY)


def _rising(numbers: pa.Array) -> bool:
    return bool(pc.all(pc.less(numbers[:-1], numbers[1:]), min_count=0).as_py())


def _on_one_line(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
