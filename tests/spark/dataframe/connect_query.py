"""A client of Spark Connect whose query counts the records of a Kinesis stream in windows.

Its arguments: the URL of the server, the endpoint of Kinesis, a directory, and how it ends:
`available` when everything was read, `never`, or `results`, which prints the counts.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as Spark's documentation names it

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WINDOW, DELAY = 10, 1000


def counts(records: DataFrame) -> DataFrame:
    """Count the records of each window; the content of a record is its second."""
    events = records.select(F.timestamp_seconds(F.expr("CAST(CAST(data AS STRING) AS INT)")))
    events = events.toDF("at")
    return (
        events.withWatermark("at", f"{DELAY} seconds")
        .groupBy(F.window("at", f"{WINDOW} seconds"))
        .count()
        .select(F.unix_seconds("window.start").alias("start"), "count")
    )


def main(remote: str, endpoint: str, directory: str, end: str) -> None:
    """Run the query."""
    spark = SparkSession.builder.remote(remote).getOrCreate()
    if end == "results":
        rows = spark.read.parquet(f"{directory}/results").collect()
        sys.stdout.write(json.dumps(sorted([row["start"], row["count"]] for row in rows)))
        return
    records = (
        spark.readStream.format("fanout")
        .option("source", "kinesis")
        .option("stream", "orders")
        .option("consumer", "etl")
        .option("startingPosition", "TRIM_HORIZON")
        .option("region", "us-east-1")
        .option("endpointUrl", endpoint)
        .option("maxWait", "0.2")
        .option("landing", f"{directory}/landing")
        .option("reader", "windows")
        .load()
    )
    writer = (
        counts(records)
        .writeStream.format("parquet")
        .option("path", f"{directory}/results")
        .option("checkpointLocation", f"{directory}/checkpoint")
    )
    if end == "available":
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    sys.stdout.write("running\n")
    sys.stdout.flush()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
