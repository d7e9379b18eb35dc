"""A driver that writes one batch to a table of each kind, while it and its workers are killed.

The Python worker of the first attempt of each sink's job is killed, and in the first run of the
driver the driver, too, between the first sink and the second. Its arguments: a directory, a URL of
PostgreSQL with a table `orders`, and the kinds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from fanout.spark import DeltaSink, IcebergSink, ParquetSink, PostgresSink, foreach_batch
from fanout.testing.spark.session import small_settings
from tests.support.manual_source import ManualSource
from tests.support.spark.table_formats import CATALOG, format_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

RECORDS = 100


def dies_once(marker: Path) -> Callable[[DataFrame], DataFrame]:
    """Return a transformation whose worker is killed when it has passed on rows, once."""

    def passing_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    def transform(df: DataFrame) -> DataFrame:
        rows = df.selectExpr("sequence AS id")
        return rows.mapInArrow(passing_on, rows.schema)

    return transform


def main(directory: Path, url: str, kinds: list[str]) -> None:
    lake, died = directory / "lake", directory / "driver"
    options: dict[str, tuple[Any, dict[str, Any]]] = {
        "parquet": (ParquetSink, {"path": str(lake / "parquet")}),
        "postgres": (PostgresSink, {"table": "orders", "dsn": url}),
        "delta": (DeltaSink, {"path": str(lake / "delta")}),
        "iceberg": (IcebergSink, {"table": f"{CATALOG}.shop.orders"}),
    }
    sinks = {
        name: kind(**given, transform=dies_once(directory / name))
        for name, (kind, given) in options.items()
        if name in kinds
    }

    def handler(df: DataFrame, batch_id: int) -> None:
        for name, sink in sinks.items():
            sink.write(df, batch_id)
            if name == "parquet" and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    spark = (
        SparkSession.builder.master("local[2,4]")  # a task may fail three times
        .config(map=small_settings() | format_settings(directory / "warehouse"))
        .getOrCreate()
    )
    source = ManualSource(bounded=True)
    source.put(*(b"%d" % n for n in range(RECORDS)))
    source.end("a")
    checkpoint = str(directory / "checkpoint")
    query = foreach_batch(
        spark, source, handler, checkpoint_location=checkpoint, available_now=True
    )
    query.await_termination()
    readers: dict[str, Callable[[], DataFrame]] = {
        "parquet": lambda: sinks["parquet"].read(spark),
        "delta": lambda: spark.read.format("delta").load(str(lake / "delta")),
        "iceberg": lambda: spark.table(f"{CATALOG}.shop.orders"),
    }
    found = {
        name: sorted(row.id for row in readers[name]().collect())
        for name in sinks
        if name in readers
    }
    (directory / "rows.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
