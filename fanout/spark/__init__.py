"""Exact micro-batches of a fan-out, handed to Spark.

Needs the extra `fanout[spark]`; what writes to Kafka needs `fanout[kafka]`, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanout.errors import SetupError

if TYPE_CHECKING:
    from fanout.spark.sink.handler import kafka_sink, write_to_kafka
    from fanout.spark.sink.key_by import key_by_sink, write_key_by
    from fanout.spark.sink.persistent import PersistentKeyBy, persistent_key_by

try:
    from fanout.spark.ledger import LedgerBatch
    from fanout.spark.progress import QueryProgress
    from fanout.spark.query import FanOutQuery
    from fanout.spark.starting import foreach_batch
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
    if name in {"key_by_sink", "write_key_by"}:
        from fanout.spark.sink import key_by  # noqa: PLC0415 - see above

        return getattr(key_by, name)
    if name in {"PersistentKeyBy", "persistent_key_by"}:
        from fanout.spark.sink import persistent  # noqa: PLC0415 - see above

        return getattr(persistent, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
