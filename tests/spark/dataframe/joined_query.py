"""A query that lands orders of Kinesis and payments of Kafka, and joins them into Parquet.

Its arguments: the endpoint of Kinesis, the broker, the topic, a directory, and the records of the
orders and of the payments after which it ends; without these it does not end.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as Spark's documentation names it

from fanout.testing.spark.session import short_lived_session

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

WITHIN, DELAY = 20, 1000


def joined(orders: DataFrame, payments: DataFrame) -> DataFrame:
    """Find the payments of each order within some seconds; their content is "number,second"."""
    orders = _numbered(orders, "data", "ordered").withWatermark("orderedAt", f"{DELAY} seconds")
    payments = _numbered(payments, "value", "paid").withWatermark("paidAt", f"{DELAY} seconds")
    condition = f"""
        ordered = paid AND paidAt >= orderedAt AND paidAt <= orderedAt + INTERVAL {WITHIN} seconds
    """
    pairs = orders.join(payments, F.expr(condition), "leftOuter")
    return pairs.select("ordered", F.unix_seconds("paidAt").alias("second"))


def expected(
    orders: Iterable[tuple[int, int]], payments: Iterable[tuple[int, int]]
) -> Counter[tuple[int, int | None]]:
    """Return the same, computed without Spark."""
    seconds: dict[int, list[int]] = {}
    for number, second in payments:
        seconds.setdefault(number, []).append(second)
    found: Counter[tuple[int, int | None]] = Counter()
    for number, second in orders:
        paid = [one for one in seconds.get(number, ()) if second <= one <= second + WITHIN]
        found.update((number, one) for one in paid)
        found[number, None] += not paid
    return found


def main(endpoint: str, broker: str, topic: str, directory: str, *counts: str) -> None:
    """Run the query."""
    path = Path(directory)
    with short_lived_session("joined", path / "scratch", spark_sql_shuffle_partitions="2") as spark:
        reading = spark.readStream.format("fanout").options(maxWait="0.1", maxRecordsPerTrigger=100)
        orders = reading.options(
            source="kinesis",
            stream="orders",
            consumer="etl",
            startingPosition="TRIM_HORIZON",
            region="us-east-1",
            endpointUrl=endpoint,
            landing=f"{path}/orders",
            reader="joined",
        ).load()
        reading = spark.readStream.format("fanout").options(maxWait="0.1", maxRecordsPerTrigger=100)
        payments = (
            reading.options(
                source="kafka",
                subscribe=topic,
                startingOffsets="earliest",
                landing=f"{path}/payments",
                reader="joined",
            )
            .option("kafka.bootstrap.servers", broker)
            .load()
        )
        writer = joined(orders, payments).writeStream.format("parquet")
        writer = writer.option("checkpointLocation", f"{path}/checkpoint")
        query = writer.start(f"{path}/results")
        sys.stdout.write("running\n")
        sys.stdout.flush()
        if not counts:
            query.awaitTermination()
        wanted = [*map(int, counts)]
        query.processAllAvailable()  # both landings have begun
        landings = [f"{path}/orders", f"{path}/payments"]
        while query.isActive and [_landed(spark, one) for one in landings] != wanted:
            time.sleep(0.5)
        query.processAllAvailable()
        query.stop()


def _numbered(records: DataFrame, content: str, name: str) -> DataFrame:
    words = F.split(F.col(content).cast("string"), ",")
    return records.select(
        words[0].cast("int").alias(name),
        F.timestamp_seconds(words[1].cast("int")).alias(f"{name}At"),
    )


def _landed(spark: SparkSession, landing: str) -> int:
    return spark.read.format("fanout").option("landing", landing).load().count()


if __name__ == "__main__":
    main(*sys.argv[1:])
