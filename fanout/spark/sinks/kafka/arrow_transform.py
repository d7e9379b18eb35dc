"""A user's function from Arrow records to the records that are written, which tasks call."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from fanout.core.error_text import text_of
from fanout.errors import OptionError, UnwritableRecordError
from fanout.spark.workers.arrow_schema import arrow_schema, spark_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

ArrowTransform: TypeAlias = "Callable[[pa.RecordBatch], pa.RecordBatch]"
"""From records of the source to the records that are written, in their order."""


def transformed_schema(transform: ArrowTransform, schema: StructType) -> StructType:
    """Return the schema of what a transform returns, by calling it with no rows.

    Raises:
        OptionError: It fails with no rows, or returns something else than records.
    """
    given = arrow_schema(schema)
    empty = pa.RecordBatch.from_arrays([pa.array([], one.type) for one in given], schema=given)
    try:
        found = transform(empty)
    except Exception as error:
        raise OptionError(
            f"transform_arrow must accept a RecordBatch without rows, and raised "
            f"{type(error).__name__}: {text_of(error)}; the columns are {', '.join(given.names)}"
        ) from error
    if not isinstance(found, pa.RecordBatch):
        raise OptionError(
            f"transform_arrow must return a pyarrow.RecordBatch, and returned a "
            f"{type(found).__name__}"
        )
    return spark_schema(found.schema)


def transform_rows(df: DataFrame, transform: ArrowTransform, schema: StructType) -> DataFrame:
    """Apply a transform, which returns `schema`, to a DataFrame."""

    def each(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return map(transform, batches)

    return df.mapInArrow(each, schema)


def transform_batch(transform: ArrowTransform | None, records: pa.RecordBatch) -> pa.RecordBatch:
    """Call a transform, if there is one, inside a task.

    Raises:
        UnwritableRecordError: It fails, or returns something else than records.
    """
    if transform is None:
        return records
    try:
        found = transform(records)
    except Exception as error:
        raise UnwritableRecordError(
            f"transform_arrow raised {type(error).__name__}: {text_of(error)}"
        ) from error
    if not isinstance(found, pa.RecordBatch):
        raise UnwritableRecordError(f"transform_arrow returned a {type(found).__name__}")
    return found
