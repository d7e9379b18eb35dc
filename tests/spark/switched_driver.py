"""A driver that waits to be killed: a query and a streaming DataFrame on one stream.

Its arguments: the URL of an embedded Kinesis, the directory of all files, and how many records each
of the two has to have written before it holds, inside a batch.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds

from fanout.kinesis import KinesisSource
from fanout.spark import foreach_batch
from fanout.spark.dataframe.read_stream import read_stream
from tests.spark.doomed_driver import small_session

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from pyspark.sql import DataFrame

KINDS = ("query", "frame")
_AT_ONCE = 40


def written(directory: Path) -> list[dict[str, Any]]:
    """Return what is written, without files that Spark has not committed, in order of batches."""
    files = sorted(
        directory.glob("batch=*/part-*.parquet"),
        key=lambda file: int(file.parent.name.partition("=")[2]),
    )
    columns = ["shardId", "sequenceNumber", "partitionKey", "data"]
    return [
        row | {"batch": file.parent.name}
        for file in files
        if (file.parent / "_SUCCESS").exists()
        for row in ds.dataset(file).to_table(columns=columns).to_pylist()
    ]


def main(address: str, directory: Path, wanted: int) -> None:
    held = threading.Semaphore(0)

    def writing(kind: str) -> Callable[[DataFrame, int], None]:
        def handle(df: DataFrame, batch_id: int) -> None:
            df.write.mode("overwrite").parquet(str(directory / kind / f"batch={batch_id}"))
            if len(written(directory / kind)) >= wanted:
                held.release()
                threading.Event().wait()

        return handle

    def source(consumer: str) -> KinesisSource:
        return KinesisSource(
            stream="orders",
            consumer=consumer,
            start="TRIM_HORIZON",
            endpoint_url=address,
            region="us-east-1",
        )

    spark = small_session()
    query, frame = KINDS
    foreach_batch(
        spark,
        source(query),
        writing(query),
        checkpoint_location=str(directory / "checkpoint"),
        max_records=_AT_ONCE,
    )
    landed = read_stream(
        spark,
        source(frame),
        landing=str(directory / "landing"),
        options={"maxRecordsPerTrigger": _AT_ONCE},
    )
    landed.writeStream.foreachBatch(writing(frame)).option(
        "checkpointLocation", str(directory / "of-frame")
    ).start()
    for _ in KINDS:
        held.acquire()
    sys.stdout.write("held\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
