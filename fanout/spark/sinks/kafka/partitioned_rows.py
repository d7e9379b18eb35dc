"""Check the columns of a batch, and repartition its rows so that one task writes a partition."""

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

from fanout.errors import OptionError
from fanout.kafka.writing.partitioner import checked, partitions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from pyspark.sql import Column, DataFrame, SparkSession

    from fanout.kafka.writing.partitioner import Partitioner

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
# Numbers tried for each task; that none of them is hashed to a task is very unlikely.
_CANDIDATES: Final = 32
# The keys by the number of tasks; a hash is the same in every session.
_keys: dict[int, tuple[int, ...]] = {}


def check_columns(schema: StructType, topic: str | None, *, event_times: bool = False) -> None:
    """Raise OptionError unless a DataFrame has the columns of Spark's own Kafka sink, each once.

    `topic` is that of all rows; None where the rows name it. `event_times` allows a column
    `eventTime`, for a shuffle.
    """
    types = _TYPES | (_EVENT_TIME if event_times else {})
    for name in schema.names:
        if name not in types or schema.names.count(name) > 1:
            raise OptionError(
                f"the column {name!r} is not part of a Kafka record: select value, and any of "
                f"key, topic, partition, headers and timestamp, each once"
            )
    if "value" not in schema.names:
        raise OptionError("the DataFrame has no column 'value': rename the column to write")
    if topic is None and "topic" not in schema.names:
        raise OptionError("there is no topic: pass topic=, or add a column 'topic'")
    for column in schema:
        kinds, wanted = types[column.name]
        if not isinstance(column.dataType, kinds) or (
            column.name == "headers" and not _is_headers(column.dataType)
        ):
            raise OptionError(
                f"the column {column.name!r} is {column.dataType.simpleString()}, and must be "
                f"{wanted}: cast it"
            )


def _is_headers(kind: DataType) -> bool:
    element = kind.elementType if isinstance(kind, ArrayType) else None
    if not isinstance(element, StructType) or element.names != ["key", "value"]:
        return False
    key, value = (column.dataType for column in element)
    return isinstance(key, StringType) and isinstance(value, BinaryType)


def partitioned(
    df: DataFrame,
    *,
    topic: str | None,
    counts: Mapping[str, int],
    tasks: int,
    partitioner: Partitioner | None,
) -> DataFrame:
    """Repartition rows so that each partition is written by one task, in the order of the rows.

    The rows, whose columns were checked, cross to Python once, except that their keys are hashed
    there before. `counts` are the partition counts of the known topics; rows of others have no
    partition.
    """
    columns = [
        F.col(name).cast("binary").alias(name) if name in {"key", "value"} else F.col(name)
        for name in df.columns
        if name != "topic" or topic is None
    ]
    # Numbers that are added before the shuffle give the order after it.
    rows = df.select(*columns, F.monotonically_increasing_id().alias(_ORDER))
    rows = rows.withColumn(_COUNT, _topic_number(topic, counts))
    rows = rows.withColumn("partition", _partition(rows.columns, partitioner))
    begins = {name: sum(list(counts.values())[:n]) for n, name in enumerate(counts)}
    place = F.col("partition") + _topic_number(topic, begins)
    # The type matters: Spark hashes an int and a bigint of the same number to different tasks.
    task_keys = F.array(*map(F.lit, _find_task_keys(df.sparkSession, tasks))).cast("array<bigint>")
    task = F.element_at(task_keys, F.pmod(place, F.lit(tasks)).cast("int") + 1)
    rows = rows.withColumn(_TASK, task).repartition(tasks, _TASK)
    return rows.sortWithinPartitions(_ORDER).drop(_ORDER, _COUNT, _TASK)


def _topic_number(topic: str | None, numbers: Mapping[str, int]) -> Column:
    """Return a column with the number of each row's topic; null where the topic has none."""
    if topic is not None:
        return F.lit(numbers[topic])
    if not numbers:
        return F.lit(None).cast("int")
    pairs = [F.lit(one) for pair in numbers.items() for one in pair]
    return F.element_at(F.create_map(*pairs), F.col("topic"))


def _partition(names: Sequence[str], assign: Partitioner | None) -> Column:
    count = F.col(_COUNT)
    if "key" not in names and assign is None:
        # Rows without keys go to any partition: distribute them evenly.
        found = F.pmod(F.col(_ORDER), count).cast("int")
    else:
        key = F.col("key") if "key" in names else F.lit(None).cast("binary")
        found = assigner(assign)(key, count)
    if "partition" not in names:
        return found
    return F.when(count.isNotNull(), F.coalesce(F.col("partition"), found))


def _find_task_keys(spark: SparkSession, tasks: int) -> tuple[int, ...]:
    """Return for each task a number that Spark's shuffle sends to it.

    Spark would hash the numbers of the tasks themselves, and leave some tasks without rows.
    """
    if tasks not in _keys:
        numbers = spark.range(_CANDIDATES * tasks)
        found = numbers.select("id", F.pmod(F.hash("id"), F.lit(tasks)).alias("task")).collect()
        by_task = {row.task: row.id for row in found}
        _keys[tasks] = tuple(by_task[task] for task in range(tasks))
    return _keys[tasks]


def assigner(partitioner: Partitioner | None) -> Callable[..., Any]:
    """Return a function of two Spark columns, the keys and the partition counts of their topics.

    It returns a column of partitions, null where the count is null. Spark's Python workers run it.
    None is for Kafka's own partitioner.
    """
    assign = partitions_of if partitioner is None else checked(partitioner)

    def partition_of_key(keys: pd.Series, counts: pd.Series) -> pd.Series:
        column = pa.array(keys, type=pa.binary(), from_pandas=True)
        different = counts.unique()
        if len(different) != 1 or pd.isna(different[0]):
            return _assign_by_count(column, counts, assign)
        return assign(column, int(different[0])).to_pandas()

    column: Callable[..., Any] = cast("Any", pandas_udf)(partition_of_key, "int")
    return column


def _assign_by_count(keys: pa.Array, counts: pd.Series, assign: Partitioner) -> pd.Series:
    """Assign the rows of each partition count separately."""
    partitions = pd.Series(pd.NA, index=counts.index, dtype="Int32")
    for count in counts.dropna().unique():
        rows = np.flatnonzero(counts.eq(count).fillna(value=False))
        partitions.iloc[rows] = assign(keys.take(pa.array(rows)), int(count)).to_numpy()
    return partitions
