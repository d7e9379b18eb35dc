"""Apache Kafka: partitions of one cluster, read without the members of a consumer group.

Needs the extra `kafka`; `KafkaShareSource` reads with the members of a share group, and
needs the extra `share` as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout._exports import lazy_exports

if TYPE_CHECKING:
    from fanout.kafka.cluster import Cluster
    from fanout.kafka.partitions import Partition
    from fanout.kafka.security import Security
    from fanout.kafka.share.source import KafkaShareSource
    from fanout.kafka.source import KafkaSource

__all__ = ("Cluster", "KafkaShareSource", "KafkaSource", "Partition", "Security")

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Cluster": "fanout.kafka.cluster",
        "KafkaShareSource": "fanout.kafka.share",
        "KafkaSource": "fanout.kafka.source",
        "Partition": "fanout.kafka.partitions",
        "Security": "fanout.kafka.security",
    },
)
