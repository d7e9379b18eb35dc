"""Apache Kafka: partitions of one cluster, share groups, and shuffles by key.

Needs the extra `kafka`. `KafkaShareSource` reads with the members of a share group (KIP-932), and
needs the extra `share` as well; its client calls its own share consumer a preview.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout._exports import lazy_exports

if TYPE_CHECKING:
    from fanout.kafka.cluster import Cluster
    from fanout.kafka.group.consumer_group import ConsumerGroup
    from fanout.kafka.partitions import Partition
    from fanout.kafka.reading.kafka_source import KafkaSource
    from fanout.kafka.security import Security
    from fanout.kafka.share.source import KafkaShareSource
    from fanout.kafka.shuffle.producers import Activity, Producers, ProducerState
    from fanout.kafka.shuffle.reader import producers_at
    from fanout.kafka.shuffle.source import ShuffleSource
    from fanout.kafka.shuffle.writer import ShuffleWriter, open_shuffle_writer
    from fanout.kafka.shuffle.writer_options import ShuffleWriterOptions
    from fanout.kafka.writing.delivery import Delivery, Placed
    from fanout.kafka.writing.topic_writer import TopicWriter, open_writer

__all__ = (
    "Activity",
    "Cluster",
    "ConsumerGroup",
    "Delivery",
    "KafkaShareSource",
    "KafkaSource",
    "Partition",
    "Placed",
    "ProducerState",
    "Producers",
    "Security",
    "ShuffleSource",
    "ShuffleWriter",
    "ShuffleWriterOptions",
    "TopicWriter",
    "open_shuffle_writer",
    "open_writer",
    "producers_at",
)

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "Activity": "fanout.kafka.shuffle.producers",
        "Cluster": "fanout.kafka.cluster",
        "ConsumerGroup": "fanout.kafka.group.consumer_group",
        "Delivery": "fanout.kafka.writing.delivery",
        "KafkaShareSource": "fanout.kafka.share.source",
        "KafkaSource": "fanout.kafka.reading.kafka_source",
        "Partition": "fanout.kafka.partitions",
        "Placed": "fanout.kafka.writing.delivery",
        "ProducerState": "fanout.kafka.shuffle.producers",
        "Producers": "fanout.kafka.shuffle.producers",
        "Security": "fanout.kafka.security",
        "ShuffleSource": "fanout.kafka.shuffle.source",
        "ShuffleWriter": "fanout.kafka.shuffle.writer",
        "ShuffleWriterOptions": "fanout.kafka.shuffle.writer_options",
        "TopicWriter": "fanout.kafka.writing.topic_writer",
        "open_shuffle_writer": "fanout.kafka.shuffle.writer",
        "open_writer": "fanout.kafka.writing.topic_writer",
        "producers_at": "fanout.kafka.shuffle.reader",
    },
)
