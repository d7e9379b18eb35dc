"""A driver that reads a landing in a bucket by s3a, as a batch and as a stream.

Its arguments: the endpoint of S3, and the bucket with the prefix of the landing. It prints the
numbers that it has read.
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import TYPE_CHECKING

from fanout.testing.s3_clients import s3a_settings
from tests.spark.driver_on_s3 import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main() -> None:
    """Run the driver."""
    endpoint, place = sys.argv[1:]
    segments = f"s3a://{place}/segments"
    spark = session(s3a_settings(endpoint))
    batch = spark.read.parquet(segments)
    found: list[int] = []
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            spark.readStream.schema(batch.schema)
            .option("maxFilesPerTrigger", 10)
            .parquet(segments)
            .writeStream.foreachBatch(lambda df, _: found.extend(_numbers(df)))
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    sys.stdout.write(json.dumps({"batch": _numbers(batch), "stream": sorted(found)}))
    spark.stop()


def _numbers(df: DataFrame) -> list[int]:
    return sorted(int(row.data) for row in df.collect())


if __name__ == "__main__":
    main()
