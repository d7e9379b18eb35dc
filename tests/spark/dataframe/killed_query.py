"""A query on a landing that is killed: windows over records without duplicates.

Its arguments: the landing, the checkpoint, the directory of the results, one for scratch, and the
format of the results.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - as Spark's documentation names it

from fanout.testing.spark.session import short_lived_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Each record is a second; the sequence numbers divisible by 3 repeat the one before.
_ID = "sequence - CASE WHEN sequence % 3 = 0 THEN 1 ELSE 0 END"
WINDOW, DELAY = 10, 5


def counts(records: DataFrame) -> DataFrame:
    """Count the different records of each window."""
    events = records.select(F.expr(_ID).alias("id"))
    events = events.withColumn("at", F.timestamp_seconds("id"))
    return (
        events.withWatermark("at", f"{DELAY} seconds")
        .dropDuplicatesWithinWatermark(["id"])
        .groupBy(F.window("at", f"{WINDOW} seconds"))
        .count()
        .select(F.unix_seconds("window.start").alias("start"), "count")
    )


def expected(sequences: list[int]) -> dict[int, int]:
    """Return the same, computed without Spark, of the windows that the watermark has passed."""
    ids = {n - (n % 3 == 0) for n in sequences}
    starts = range(0, max(ids) - DELAY - WINDOW + 1, WINDOW)
    return {start: sum(start <= one < start + WINDOW for one in ids) for start in starts}


def main(landing: str, checkpoint: str, results: str, scratch: str, sink: str = "parquet") -> None:
    """Run the query until everything is read."""
    with short_lived_session(
        "killed",
        Path(scratch),
        master="local[2,4]",
        spark_sql_shuffle_partitions="2",
        # Spark 4.0 writes windows in the run that completes them.
        spark_sql_streaming_triggerAvailableNowWrapper_enabled="true",
    ) as spark:
        records = (
            spark.readStream.format("fanout")
            .options(landing=landing, reader="killed", maxRecordsPerTrigger=30)
            .load()
        )
        query = (
            counts(records)
            .writeStream.format(sink)
            .option("path", results)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        sys.stdout.write("running\n")
        sys.stdout.flush()
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
