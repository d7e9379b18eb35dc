from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from fanout.errors import OptionError
from fanout.kafka.writing.partitioner import partitions_of
from fanout.spark.sinks.kafka.partitioned_rows import check_columns, partitioned

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

pytestmark = pytest.mark.spark

HEADERS = "headers array<struct<key: string, value: binary>>"


@pytest.mark.parametrize(
    ("columns", "topic", "message"),
    [
        ("value string, id bigint", "t", "'id' is not part of a Kafka record"),
        ("value string, value binary", "t", "'value' is not part of .* each once"),
        ("key string", "t", "no column 'value'"),
        ("value string", None, "there is no topic: pass topic="),
        ("value bigint", "t", "'value' is bigint, and must be string or binary"),
        ("value string, partition bigint", "t", "'partition' is bigint, and must be int"),
        ("value string, topic binary", None, "'topic' is binary, and must be string"),
        ("value string, timestamp date", "t", "'timestamp' is date, and must be timestamp"),
        ("value string, headers string", "t", "'headers' is string, and must be array<"),
        ("value string, headers array<struct<key: string>>", "t", "'headers' is array<"),
        ("value string, headers array<struct<key: string, value: string>>", "t", "'headers' is"),
    ],
)
def test_columns_that_kafka_does_not_take_are_refused(
    spark: SparkSession, columns: str, topic: str | None, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        check_columns(schema(spark, columns), topic)


def test_the_columns_of_sparks_own_sink_are_taken(spark: SparkSession) -> None:
    check_columns(schema(spark, "value binary"), "t")
    every = f"key binary, value string, topic string, partition int, {HEADERS}, timestamp timestamp"
    check_columns(schema(spark, every), None)
    check_columns(schema(spark, every), "t")


def schema(spark: SparkSession, columns: str) -> StructType:
    # A column may be there twice, so it is not created from rows.
    names = [f"cast(null as {kind}) as {name}" for name, kind in split(columns)]
    return spark.range(0).selectExpr(*names).schema


def split(columns: str) -> list[tuple[str, str]]:
    """Split columns at the commas that are not within a type."""
    found, depth = [""], 0
    for letter in columns:
        depth += (letter == "<") - (letter == ">")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return [(name, kind) for name, _, kind in (one.strip().partition(" ") for one in found)]


def place(rows: DataFrame, **options: Any) -> list[Any]:
    """Return the rows as the tasks get them, with the number of the task."""
    chosen = {"topic": None, "tasks": 3, "partitioner": None} | options
    frame = partitioned(rows, **chosen)
    return frame.select("*", F.spark_partition_id().alias("task")).collect()


def test_each_partition_has_one_task_each_task_has_partitions_and_order_is_kept(
    spark: SparkSession,
) -> None:
    rows = spark.range(0, 300, numPartitions=4).selectExpr(
        "cast(id as string) value",
        "case when id % 3 > 0 then cast(id % 50 as string) end key",
        "element_at(array('a', 'b', 'new'), cast(id % 7 % 3 as int) + 1) topic",
    )
    counts = {"a": 5, "b": 2}
    found = place(rows, counts=counts)
    assert sorted(int(row.value) for row in found) == list(range(300))
    known = [row for row in found if row.topic != "new"]
    assert {row.partition for row in found if row.topic == "new"} == {None}
    tasks: dict[tuple[str, int], set[int]] = {}
    for row in known:
        tasks.setdefault((row.topic, row.partition), set()).add(row.task)
        if row.key is not None:
            keys = pa.array([bytes(row.key)], pa.binary())
            assert [row.partition] == partitions_of(keys, counts[row.topic]).to_pylist()
    assert len(tasks) == 7
    assert sorted(next(iter(one)) for one in tasks.values()) == [0, 0, 0, 1, 1, 2, 2]
    assert all(len(one) == 1 for one in tasks.values())
    for partition in tasks:
        values = [int(row.value) for row in known if (row.topic, row.partition) == partition]
        assert values == sorted(values)


def test_a_partition_of_the_users_own_goes_before_that_of_the_key(spark: SparkSession) -> None:
    rows = spark.range(0, 20, numPartitions=2).selectExpr(
        "cast(id as string) value",
        "'k' key",
        "case when id < 10 then cast(id as int) end partition",
    )

    def third(keys: pa.Array, count: int) -> list[int]:
        assert count == 12
        return [3] * len(keys)

    found = place(rows, topic="t", counts={"t": 12}, partitioner=third)
    chosen = {int(row.value): row.partition for row in found}
    assert chosen == {number: number if number < 10 else 3 for number in range(20)}


def test_rows_are_sorted_after_the_shuffle(spark: SparkSession) -> None:
    # On one machine what was shuffled comes in order anyway, so the plan has to show it.
    rows = spark.range(4).selectExpr("cast(id as string) value")
    frame: Any = partitioned(rows, topic="t", counts={"t": 2}, tasks=2, partitioner=None)
    plan = frame._jdf.queryExecution().executedPlan().toString()
    operators = [line.strip(" :+-*()0123456789").split(" ")[0] for line in plan.splitlines()]
    assert operators.index("Sort") < operators.index("Exchange")
    assert "Sort [fanout_order" in plan
