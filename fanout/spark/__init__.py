"""Exact micro-batches of a fan-out, handed to Spark.

Needs the extra `spark`; what writes to Kafka needs `kafka`, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout._exports import lazy_exports

if TYPE_CHECKING:
    from fanout.landing.ledger import LedgerBatch
    from fanout.spark.query import FanOutQuery, QueryProgress
    from fanout.spark.sink.handler import kafka_sink, write_to_kafka
    from fanout.spark.sink.shuffle_handlers import (
        PersistentKeyBy,
        key_by_sink,
        persistent_key_by,
        write_key_by,
    )
    from fanout.spark.start_query import foreach_batch

__all__ = (
    "FanOutQuery",
    "LedgerBatch",
    "PersistentKeyBy",
    "QueryProgress",
    "foreach_batch",
    "kafka_sink",
    "key_by_sink",
    "persistent_key_by",
    "write_key_by",
    "write_to_kafka",
)

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "FanOutQuery": "fanout.spark.query",
        "LedgerBatch": "fanout.landing.ledger",
        "PersistentKeyBy": "fanout.spark.sink.shuffle_handlers",
        "QueryProgress": "fanout.spark.query",
        "foreach_batch": "fanout.spark.start_query",
        "kafka_sink": "fanout.spark.sink.handler",
        "key_by_sink": "fanout.spark.sink.shuffle_handlers",
        "persistent_key_by": "fanout.spark.sink.shuffle_handlers",
        "write_key_by": "fanout.spark.sink.shuffle_handlers",
        "write_to_kafka": "fanout.spark.sink.handler",
    },
)
