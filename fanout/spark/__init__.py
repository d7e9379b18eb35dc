"""Exact micro-batches of a fan-out, handed to Spark.

Needs the extra `fanout[spark]`; what writes to Kafka needs `fanout[kafka]`, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanout.errors import SetupError

if TYPE_CHECKING:
    from fanout.spark.sink.handler import kafka_sink, write_to_kafka
    from fanout.spark.sink.shuffle_handlers import (
        PersistentKeyBy,
        key_by_sink,
        persistent_key_by,
        write_key_by,
    )

try:
    from fanout.landing.ledger import LedgerBatch
    from fanout.spark.query import FanOutQuery, QueryProgress
    from fanout.spark.start_query import foreach_batch
except ModuleNotFoundError as error:
    if error.name is not None and error.name.startswith("fanout"):
        raise
    raise SetupError(
        f"{error.name} is not installed; install the extra: pip install 'fanout[spark]'"
    ) from error

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


def __getattr__(name: str) -> Any:
    """Load what writes to Kafka when it is asked for: not everybody has Kafka's library."""
    if name in {"kafka_sink", "write_to_kafka"}:
        from fanout.spark.sink import handler  # noqa: PLC0415 - see above

        return getattr(handler, name)
    if name in {"PersistentKeyBy", "key_by_sink", "persistent_key_by", "write_key_by"}:
        from fanout.spark.sink import shuffle_handlers  # noqa: PLC0415 - see above

        return getattr(shuffle_handlers, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
