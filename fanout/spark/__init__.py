"""Exact micro-batches of a fan-out, handed to Spark.

Needs the extra `spark`; what writes to Kafka needs `kafka`, what writes to Kinesis `kinesis`, what
writes to PostgreSQL `postgres`, and `traced` needs `otel`, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout._exports import lazy_exports

if TYPE_CHECKING:
    from fanout.landing.log.ledger import LedgerBatch
    from fanout.spark.dataframe.read_stream import read_stream
    from fanout.spark.landers.stream import OnExecutors
    from fanout.spark.query.batch_runner import BatchReport
    from fanout.spark.query.query import FanOutQuery, QueryProgress
    from fanout.spark.query.signals import stop_on_signal
    from fanout.spark.query.start_query import foreach_batch
    from fanout.spark.query.traced_handler import traced
    from fanout.spark.sinks.kafka.kafka_sink import KafkaSink
    from fanout.spark.sinks.kafka.shuffle_sink import ShuffleSink, create_shuffle_topic
    from fanout.spark.sinks.kinesis.sink import KinesisSink
    from fanout.spark.sinks.tables.delta_sink import DeltaSink
    from fanout.spark.sinks.tables.iceberg_sink import IcebergSink
    from fanout.spark.sinks.tables.jdbc_sink import JdbcSink
    from fanout.spark.sinks.tables.parquet_sink import ParquetSink
    from fanout.spark.sinks.tables.postgres_sink import PostgresSink

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
        "BatchReport": "fanout.spark.query.batch_runner",
        "DeltaSink": "fanout.spark.sinks.tables.delta_sink",
        "FanOutQuery": "fanout.spark.query.query",
        "IcebergSink": "fanout.spark.sinks.tables.iceberg_sink",
        "JdbcSink": "fanout.spark.sinks.tables.jdbc_sink",
        "KafkaSink": "fanout.spark.sinks.kafka.kafka_sink",
        "KinesisSink": "fanout.spark.sinks.kinesis.sink",
        "LedgerBatch": "fanout.landing.log.ledger",
        "OnExecutors": "fanout.spark.landers.stream",
        "ParquetSink": "fanout.spark.sinks.tables.parquet_sink",
        "PostgresSink": "fanout.spark.sinks.tables.postgres_sink",
        "QueryProgress": "fanout.spark.query.query",
        "ShuffleSink": "fanout.spark.sinks.kafka.shuffle_sink",
        "create_shuffle_topic": "fanout.spark.sinks.kafka.shuffle_sink",
        "foreach_batch": "fanout.spark.query.start_query",
        "read_stream": "fanout.spark.dataframe.read_stream",
        "stop_on_signal": "fanout.spark.query.signals",
        "traced": "fanout.spark.query.traced_handler",
    },
)
