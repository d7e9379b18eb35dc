"""A query whose source is landed by landers on Spark's executors, or by itself, into Parquet.

Its arguments: the endpoint of Kinesis, a directory, and a word: "alone" for no landers, or
"unguarded" for a coordinator that assigns splits where their first lander began, and does not check
what lands. It runs until the directory has a file "end", and tells in "landers.log" which landers
connect.
"""

from __future__ import annotations

import logging
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from fanout.kinesis import KinesisSource
from fanout.spark import read_stream
from fanout.testing.spark.session import short_lived_session
from tests.provers.planted.lander_bugs import UNGUARDED


def main(endpoint: str, directory: str, how: str = "") -> None:
    """Run the query."""
    path = Path(directory)
    log = logging.getLogger("fanout.lifecycle")
    log.setLevel(logging.INFO)
    log.addHandler(logging.FileHandler(path / "landers.log"))
    with ExitStack() as resources:
        for edit in UNGUARDED if how == "unguarded" else ():
            resources.enter_context(edit.made())
        spark = resources.enter_context(
            # Two tasks are landers, and one is left for the batches.
            short_lived_session("landers", path / "scratch", master="local[3,4]")
        )
        source = KinesisSource(
            stream="orders",
            consumer="etl",
            start="TRIM_HORIZON",
            region="us-east-1",
            endpoint_url=endpoint,
            discovery_interval=1.0,
        )
        records = read_stream(
            spark,
            source,
            landing=f"{path}/landing",
            landers=None if how == "alone" else 2,
            options={"maxWait": 0.2, "maxRecordsPerTrigger": 500},
        ).select("shardId", "sequenceNumber", "partitionKey", "data")
        writer = records.writeStream.format("parquet")
        query = writer.option("checkpointLocation", f"{path}/checkpoint").start(f"{path}/results")
        sys.stdout.write("running\n")
        sys.stdout.flush()
        while query.isActive and not (path / "end").exists():
            time.sleep(0.1)
        query.processAllAvailable()
        query.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
