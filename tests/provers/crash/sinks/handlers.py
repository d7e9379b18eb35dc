"""The handlers of the job: the library's sinks, as a user would make them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - the usual name

from fanout.spark import (
    DeltaSink,
    IcebergSink,
    JdbcSink,
    KinesisSink,
    ParquetSink,
    PostgresSink,
)
from tests.provers.crash.moments import SUFFIX, Sink
from tests.provers.crash.sinks.destination import NEWEST, ROWS
from tests.provers.crash.sinks.jdbc import DRIVER, PROPERTIES
from tests.provers.crash.sinks.worker_rows import pass_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

__all__ = ("make_handler", "transformed")

# What a table keeps the newest row of each key by.
_MERGED: Final[dict[str, Any]] = {"key": "key", "latest_by": "number", "sink_name": NEWEST}


def make_handler(sink: Sink, location: str, endpoint_url: str) -> Callable[[DataFrame, int], None]:
    """Make what `foreach_batch` calls.

    A sink that can merge rows writes each batch twice: first the newest records of the keys into
    one table, and then all of them into another. So what the second one has is in the first.

    Args:
        sink: The sink; not Kafka, which the driver makes for each pipeline.
        location: The location of its destination.
        endpoint_url: The endpoint of Kinesis.
    """
    match sink:
        case Sink.PARQUET:
            return ParquetSink(path=location, transform=_through_workers)
        case Sink.POSTGRES:
            return _both(
                PostgresSink(table=NEWEST, dsn=location, transform=_numbered, **_MERGED),
                PostgresSink(table=ROWS, dsn=location, transform=_rows, sink_name=ROWS),
            )
        case Sink.JDBC:
            place: dict[str, Any] = {"url": location, "driver": DRIVER, "properties": PROPERTIES}
            return _both(
                JdbcSink(table=f'"{NEWEST}"', transform=_numbered, **_MERGED, **place),
                JdbcSink(table=f'"{ROWS}"', transform=_through_workers, sink_name=ROWS, **place),
            )
        case Sink.DELTA:
            return _both(
                DeltaSink(path=f"{location}/{NEWEST}", transform=_numbered, **_MERGED),
                DeltaSink(path=f"{location}/{ROWS}", transform=_through_workers, sink_name=ROWS),
            )
        case Sink.ICEBERG:
            return _both(
                IcebergSink(table=f"{location}.{NEWEST}", transform=_numbered, **_MERGED),
                IcebergSink(table=f"{location}.{ROWS}", transform=_through_workers, sink_name=ROWS),
            )
        case Sink.KINESIS:
            return KinesisSink(
                stream=location,
                endpoint_url=endpoint_url,
                deduplicate=True,
                transform=_records,
            )
        case Sink.KAFKA:
            raise AssertionError(f"{sink} has a sink for each pipeline")


def transformed(column: str) -> Any:
    """Return what the job makes of the bytes of a record.

    Args:
        column: Their column.
    """
    return F.concat(F.col(column).cast("string"), F.lit(SUFFIX.decode())).alias("value")


def _both(
    newest: Callable[[DataFrame, int], None], rows: Callable[[DataFrame, int], None]
) -> Callable[[DataFrame, int], None]:
    def write(frame: DataFrame, batch_id: int) -> None:
        newest(frame, batch_id)
        rows(frame, batch_id)

    return write


def _rows(frame: DataFrame) -> DataFrame:
    return frame.select(F.col("partitionKey").alias("key"), transformed("data"))


def _numbered(frame: DataFrame) -> DataFrame:
    number = F.substring_index("value", ":", 1).cast("long").alias("number")
    return _rows(frame).select("key", number, "value")


def _records(frame: DataFrame) -> DataFrame:
    return frame.select("partitionKey", transformed("data").alias("data"))


def _through_workers(frame: DataFrame) -> DataFrame:
    """Take the rows through Python workers, where a task of a sink in the JVM can be struck."""
    rows = _rows(frame)
    return rows.mapInArrow(pass_rows, rows.schema)
