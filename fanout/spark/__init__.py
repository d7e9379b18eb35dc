"""Exact micro-batches of a fan-out, handed to Spark.

Needs the extra `spark`; what writes to Kafka needs `kafka`, what writes to Kinesis `kinesis`, what
writes to PostgreSQL `postgres`, and `traced` needs `otel`, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout._exports import lazy_exports

if TYPE_CHECKING:
    from fanout.landing.ledger import LedgerBatch
    from fanout.spark.batch_phases import BatchReport
    from fanout.spark.dataframe.read_stream import read_stream
    from fanout.spark.kinesis_sink.sink import KinesisSink
    from fanout.spark.landers_stream import OnExecutors
    from fanout.spark.query import FanOutQuery, QueryProgress
    from fanout.spark.signals import stop_on_signal
    from fanout.spark.sink.kafka_sink import KafkaSink
    from fanout.spark.sink.shuffle_sink import ShuffleSink, create_shuffle_topic
    from fanout.spark.start_query import foreach_batch
    from fanout.spark.tables.delta_sink import DeltaSink
    from fanout.spark.tables.iceberg_sink import IcebergSink
    from fanout.spark.tables.jdbc_sink import JdbcSink
    from fanout.spark.tables.parquet_sink import ParquetSink
    from fanout.spark.tables.postgres_sink import PostgresSink
    from fanout.spark.traced_handler import traced

__all__ = (
    "BatchReport",
    "DeltaSink",
    "FanOutQuery",
    "IcebergSink",
    "JdbcSink",
    "KafkaSink",
    "KinesisSink",
    "LedgerBatch",
    "OnExecutors",
    "ParquetSink",
    "PostgresSink",
    "QueryProgress",
    "ShuffleSink",
    "create_shuffle_topic",
    "foreach_batch",
    "read_stream",
    "stop_on_signal",
    "traced",
)

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "BatchReport": "fanout.spark.batch_phases",
        "DeltaSink": "fanout.spark.tables.delta_sink",
        "FanOutQuery": "fanout.spark.query",
        "IcebergSink": "fanout.spark.tables.iceberg_sink",
        "JdbcSink": "fanout.spark.tables.jdbc_sink",
        "KafkaSink": "fanout.spark.sink.kafka_sink",
        "KinesisSink": "fanout.spark.kinesis_sink.sink",
        "LedgerBatch": "fanout.landing.ledger",
        "OnExecutors": "fanout.spark.landers_stream",
        "ParquetSink": "fanout.spark.tables.parquet_sink",
        "PostgresSink": "fanout.spark.tables.postgres_sink",
        "QueryProgress": "fanout.spark.query",
        "ShuffleSink": "fanout.spark.sink.shuffle_sink",
        "create_shuffle_topic": "fanout.spark.sink.shuffle_sink",
        "foreach_batch": "fanout.spark.start_query",
        "read_stream": "fanout.spark.dataframe.read_stream",
        "stop_on_signal": "fanout.spark.signals",
        "traced": "fanout.spark.traced_handler",
    },
)
