"""Which partition of its topic a row goes to: what Spark's Python workers work out from keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.pandas.functions import pandas_udf

from fanout.errors import UnwritableRecordError
from fanout.kafka.writing.murmur2 import partitions_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fanout.spark.sink.options import Partitioner

__all__ = ("assigner", "checked")


def assigner(partitioner: Partitioner | None) -> Callable[..., Any]:
    """Return a function of Spark columns: of keys, and of how many partitions their topics have.

    It returns a column of partitions, null where it is not known how many there are.

    Args:
        partitioner: The user's function; None for Kafka's own.
    """
    assign = partitions_of if partitioner is None else checked(partitioner)

    def partition_of_key(keys: pd.Series, counts: pd.Series) -> pd.Series:
        column = pa.array(keys, type=pa.binary(), from_pandas=True)
        different = counts.unique()
        if len(different) != 1 or pd.isna(different[0]):
            return _by_count(column, counts, assign)
        return assign(column, int(different[0])).to_pandas()

    column: Callable[..., Any] = cast("Any", pandas_udf)(partition_of_key, "int")
    return column


def _by_count(keys: pa.Array, counts: pd.Series, assign: Partitioner) -> pd.Series:
    """Assign the rows of each count by themselves: topics may differ in their partitions."""
    partitions = pd.Series(pd.NA, index=counts.index, dtype="Int32")
    for count in counts.dropna().unique():
        rows = np.flatnonzero(counts.eq(count).fillna(value=False))
        partitions.iloc[rows] = assign(keys.take(pa.array(rows)), int(count)).to_numpy()
    return partitions


def checked(partitioner: Partitioner) -> Partitioner:
    """Return a user's function that raises UnwritableRecordError where it returns no partitions."""

    def assign(keys: pa.Array, count: int) -> pa.Array:
        found = partitioner(keys, count)
        try:
            partitions = pa.array(found).cast(pa.int32())
        except (pa.ArrowException, TypeError) as error:
            raise UnwritableRecordError(
                f"the partitioner must return an array of partitions: {error}"
            ) from error
        numbers = partitions.to_numpy(zero_copy_only=False)
        if (
            len(numbers) != len(keys)
            or partitions.null_count
            or not (((numbers >= 0) & (numbers < count)).all())
        ):
            raise UnwritableRecordError(
                f"the partitioner must return, for each of the {len(keys)} keys that it is given, "
                f"a partition from 0 to {count - 1}"
            )
        return partitions

    return assign
