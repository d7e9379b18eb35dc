"""Apache Kafka: partitions of one cluster, read without the members of a consumer group.

Needs the extra `fanout[kafka]`; `KafkaShareSource` reads with the members of a share group, and
needs the extra `fanout[share]` as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanout.errors import SetupError

if TYPE_CHECKING:
    from fanout.kafka.share import KafkaShareSource

try:
    from fanout.kafka.partitions import Partition
    from fanout.kafka.security import Security
    from fanout.kafka.source import KafkaSource
except ModuleNotFoundError as error:
    if error.name is not None and error.name.startswith("fanout"):
        raise
    raise SetupError(
        f"{error.name} is not installed; install the extra: pip install 'fanout[kafka]'"
    ) from error

__all__ = ("KafkaShareSource", "KafkaSource", "Partition", "Security")


def __getattr__(name: str) -> Any:
    """Load what needs another library when it is asked for."""
    if name != "KafkaShareSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fanout.kafka.share import KafkaShareSource  # noqa: PLC0415 - see above

    return KafkaShareSource
