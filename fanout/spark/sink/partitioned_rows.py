"""Which partition of its topic a row goes to: what Spark's Python workers work out from keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from fanout.errors import OptionError, UnwritableRecordError
from fanout.kafka.writing.partitioner import partitions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from pyspark.sql import Column, DataFrame, SparkSession

    from fanout.spark.sink.options import Partitioner

__all__ = (
    "assigner",
    "check_columns",
    "checked",
    "partitioned",
)


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


_HEADERS: Final = "array<struct<key: string, value: binary>>"

_TYPES: Final[dict[str, tuple[tuple[type[DataType], ...], str]]] = {
    "key": ((StringType, BinaryType), "string or binary"),
    "value": ((StringType, BinaryType), "string or binary"),
    "topic": ((StringType,), "string"),
    "partition": ((IntegerType,), "int"),
    "headers": ((ArrayType,), _HEADERS),
    "timestamp": ((TimestampType,), "timestamp"),
}

_EVENT_TIME: Final = {"eventTime": _TYPES["timestamp"]}

_ORDER: Final = "fanout_order"

_COUNT: Final = "fanout_count"

_TASK: Final = "fanout_task"
# So many numbers for each task that one without its own would be a wonder.
_CANDIDATES: Final = 32
# The answers, by the number of tasks: a hash is the same in every session.
_keys: dict[int, tuple[int, ...]] = {}


def check_columns(schema: StructType, topic: str | None, *, event_times: bool = False) -> None:
    """Check that rows are what Kafka takes, by the columns of Spark's own Kafka sink.

    Args:
        schema: Of the DataFrame that is written.
        topic: Where everything goes; None where the rows say it.
        event_times: Whether there may be a column `eventTime`, which an encoder takes.

    Raises:
        OptionError: A column is missing, unknown, there twice, or of another type.
    """
    types = _TYPES | (_EVENT_TIME if event_times else {})
    for name in schema.names:
        if name not in types or schema.names.count(name) > 1:
            raise OptionError(
                f"the column {name!r} has no place in a Kafka record: select value, and what you "
                f"need of key, topic, partition, headers and timestamp, each once"
            )
    if "value" not in schema.names:
        raise OptionError("the DataFrame has no column 'value': name what is written so")
    if topic is None and "topic" not in schema.names:
        raise OptionError("nobody says where to write: pass topic=, or add a column 'topic'")
    for column in schema:
        kinds, wanted = types[column.name]
        if not isinstance(column.dataType, kinds) or (
            column.name == "headers" and not _is_headers(column.dataType)
        ):
            raise OptionError(
                f"the column {column.name!r} is {column.dataType.simpleString()}, and must be "
                f"{wanted}: cast it"
            )


def partitioned(
    df: DataFrame,
    *,
    topic: str | None,
    counts: Mapping[str, int],
    tasks: int,
    partitioner: Partitioner | None,
) -> DataFrame:
    """Return the rows so that each partition is written by one task, in the order of the rows.

    The rows cross to Python once, but for their keys, which are hashed there before.

    Args:
        df: What is written; its columns were checked.
        topic: Where everything goes; None where the rows say it.
        counts: How many partitions the topics have that are known; rows of others have no
            partition.
        tasks: How many tasks write.
        partitioner: The user's partitioner, None for Kafka's own.
    """
    columns = [
        F.col(name).cast("binary").alias(name) if name in {"key", "value"} else F.col(name)
        for name in df.columns
        if name != "topic" or topic is None
    ]
    # Only numbers that are there before the shuffle tell the order after it.
    rows = df.select(*columns, F.monotonically_increasing_id().alias(_ORDER))
    rows = rows.withColumn(_COUNT, _of_topic(topic, counts))
    rows = rows.withColumn("partition", _partition(rows.columns, partitioner))
    begins = {name: sum(list(counts.values())[:n]) for n, name in enumerate(counts)}
    place = F.col("partition") + _of_topic(topic, begins)
    # The type counts: Spark hashes an int and a bigint of the same number to different tasks.
    of_task = F.array(*map(F.lit, _keys_of_tasks(df.sparkSession, tasks))).cast("array<bigint>")
    task = F.element_at(of_task, F.pmod(place, F.lit(tasks)).cast("int") + 1)
    rows = rows.withColumn(_TASK, task).repartition(tasks, _TASK)
    return rows.sortWithinPartitions(_ORDER).drop(_ORDER, _COUNT, _TASK)


def _of_topic(topic: str | None, numbers: Mapping[str, int]) -> Column:
    """Return a column with the number of each row's topic; null where it has none."""
    if topic is not None:
        return F.lit(numbers[topic])
    if not numbers:
        return F.lit(None).cast("int")
    pairs = [F.lit(one) for pair in numbers.items() for one in pair]
    return F.element_at(F.create_map(*pairs), F.col("topic"))


def _partition(names: Sequence[str], assign: Partitioner | None) -> Column:
    count = F.col(_COUNT)
    if "key" not in names and assign is None:
        # They may go anywhere, so they take turns.
        found = F.pmod(F.col(_ORDER), count).cast("int")
    else:
        key = F.col("key") if "key" in names else F.lit(None).cast("binary")
        found = assigner(assign)(key, count)
    if "partition" not in names:
        return found
    return F.when(count.isNotNull(), F.coalesce(F.col("partition"), found))


def _is_headers(kind: DataType) -> bool:
    element = kind.elementType if isinstance(kind, ArrayType) else None
    if not isinstance(element, StructType) or element.names != ["key", "value"]:
        return False
    key, value = (column.dataType for column in element)
    return isinstance(key, StringType) and isinstance(value, BinaryType)


def _keys_of_tasks(spark: SparkSession, tasks: int) -> tuple[int, ...]:
    """Return for each task a number that Spark's shuffle sends to it, and to no other.

    The numbers of the tasks themselves would be hashed, so that some tasks got nothing to do.
    """
    if tasks not in _keys:
        numbers = spark.range(_CANDIDATES * tasks)
        found = numbers.select("id", F.pmod(F.hash("id"), F.lit(tasks)).alias("task")).collect()
        by_task = {row.task: row.id for row in found}
        _keys[tasks] = tuple(by_task[task] for task in range(tasks))
    return _keys[tasks]
