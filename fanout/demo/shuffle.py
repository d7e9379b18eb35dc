"""The shuffle between the two queries of the demo."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout.kafka import Cluster, KafkaSource, Security
from fanout.kafka.shuffle import ShuffleSource
from fanout.spark import ShuffleSink, create_shuffle_topic

if TYPE_CHECKING:
    from fanout.demo.sources import ShuffleSettings

__all__ = ("make_shuffle_sink", "make_shuffle_source")


def make_shuffle_sink(settings: ShuffleSettings) -> ShuffleSink:
    """Return the side that writes, and create the topic unless it exists."""
    sink = ShuffleSink(
        cluster=_cluster(settings),
        topic=settings.topic,
        partition_count=settings.partitions,
        timestamp="timestamp",
    )
    create_shuffle_topic(sink, retention=None, replication_factor=1)
    return sink


def make_shuffle_source(settings: ShuffleSettings) -> ShuffleSource:
    """Return the side that reads, and create the topic unless it exists."""
    make_shuffle_sink(settings)
    kafka = KafkaSource(cluster=_cluster(settings), topics=settings.topic)
    return ShuffleSource(kafka, partition_count=settings.partitions)


def _cluster(settings: ShuffleSettings) -> Cluster:
    return Cluster(settings.bootstrap_servers, security=Security(protocol="PLAINTEXT"))
