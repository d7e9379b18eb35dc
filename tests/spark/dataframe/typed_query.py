"""A query over a landing of typed records, which is killed.

Its arguments: the landing, the checkpoint, the directory of the results, one for scratch, and
"now" to end when everything is read.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fanout.testing.spark.session import short_lived_session


def main(landing: str, checkpoint: str, results: str, scratch: str, until: str) -> None:
    """Run the query."""
    with short_lived_session(
        "typed",
        Path(scratch),
        master="local[2,4]",
        spark_sql_parquet_outputTimestampType="TIMESTAMP_MICROS",
    ) as spark:
        records = spark.readStream.format("fanout").options(landing=landing, reader="typed").load()
        writer = (
            records.writeStream.format("parquet")
            .option("path", results)
            .option("checkpointLocation", checkpoint)
        )
        query = (writer.trigger(availableNow=True) if until == "now" else writer).start()
        sys.stdout.write("running\n")
        sys.stdout.flush()
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
