"""Apache Kafka: partitions of one cluster, read without the members of a consumer group.

Needs the extra `fanout[kafka]`.
"""

from fanout.errors import SetupError

try:
    from fanout.kafka.partitions import Partition
    from fanout.kafka.protocol.security import Security
    from fanout.kafka.source import KafkaSource
except ModuleNotFoundError as error:
    if error.name is not None and error.name.startswith("fanout"):
        raise
    raise SetupError(
        f"{error.name} is not installed; install the extra: pip install 'fanout[kafka]'"
    ) from error

__all__ = ("KafkaSource", "Partition", "Security")
