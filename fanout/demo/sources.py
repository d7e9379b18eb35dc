"""The settings of a driver's source, and of the shuffle between two drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, final

import msgspec

from fanout.core.event_time import EventTime
from fanout.demo.records import OUT_OF_ORDERNESS

if TYPE_CHECKING:
    from fanout.core.source import Source
    from fanout.kafka import ShuffleSource
    from fanout.spark import ShuffleSink

# Seconds; short, because new partitions have to be found during the run.
_DISCOVERY_INTERVAL = 1.0
_CONSUMERS = 4
# A killed member keeps its records and its partitions for these milliseconds; Kafka's defaults are
# half a minute and more.
_LEFT_BEHIND = 5_000

# Much less than a batch, which then has records of each partition, so that the watermark advances.
_FETCH_BYTES = 8_192


@final
class KinesisSettings(msgspec.Struct, frozen=True, tag=True):
    """A stream of the embedded Kinesis.

    Args:
        stream: Its name.
        endpoint_url: The URL of Kinesis.
        region: Its region.
        silence_timeout: Seconds of silence after which a subscription is cancelled.
    """

    stream: str
    endpoint_url: str
    region: str
    silence_timeout: float


@final
class KafkaSettings(msgspec.Struct, frozen=True, tag=True):
    """A topic of a broker on this machine.

    Args:
        topic: Its name.
        bootstrap_servers: The address of the broker.
    """

    topic: str
    bootstrap_servers: str


@final
class ShareSettings(msgspec.Struct, frozen=True, tag=True):
    """A topic of a broker on this machine, read by a share group.

    Args:
        topic: Its name.
        bootstrap_servers: The address of the broker.
    """

    topic: str
    bootstrap_servers: str


@final
class ShuffleSettings(msgspec.Struct, frozen=True, tag=True):
    """A topic between two queries, in which records are distributed by their keys.

    Args:
        topic: Its name.
        bootstrap_servers: The address of the broker.
        partitions: Its number of partitions.
    """

    topic: str
    bootstrap_servers: str
    partitions: int


SourceSettings: TypeAlias = KinesisSettings | KafkaSettings | ShareSettings | ShuffleSettings


def make_source(settings: SourceSettings) -> Source:
    """Return a source that begins with the oldest record; its service alone is imported."""
    match settings:
        case KinesisSettings():
            from fanout.kinesis import KinesisSource  # noqa: PLC0415 - see above

            return KinesisSource(
                stream=settings.stream,
                consumer="fanout-demo",
                start="TRIM_HORIZON",
                silence_timeout=settings.silence_timeout,
                endpoint_url=settings.endpoint_url,
                region=settings.region,
            )
        case KafkaSettings():
            from fanout.kafka import Cluster, KafkaSource, Security  # noqa: PLC0415 - see above

            return KafkaSource(
                topics=settings.topic,
                cluster=Cluster(
                    settings.bootstrap_servers, security=Security(protocol="PLAINTEXT")
                ),
                discovery_interval=_DISCOVERY_INTERVAL,
                event_time=EventTime(out_of_orderness=OUT_OF_ORDERNESS),
                consumer_options={"max.partition.fetch.bytes": _FETCH_BYTES},
            )
        case ShareSettings():
            from fanout.kafka import Cluster, KafkaShareSource, Security  # noqa: PLC0415 - see above

            return KafkaShareSource(
                topics=settings.topic,
                cluster=Cluster(
                    settings.bootstrap_servers, security=Security(protocol="PLAINTEXT")
                ),
                group_id="fanout-demo",
                consumers=_CONSUMERS,
                group_settings={
                    "share.auto.offset.reset": "earliest",
                    "share.isolation.level": "read_committed",
                    "share.record.lock.duration.ms": str(_LEFT_BEHIND),
                    "share.session.timeout.ms": str(_LEFT_BEHIND),
                    "share.delivery.count.limit": "10",  # on a busy machine locks may expire
                },
            )
        case ShuffleSettings():
            return make_shuffle_source(settings)


def make_shuffle_sink(settings: ShuffleSettings) -> ShuffleSink:
    """Return the sink of the shuffle, and create the topic unless it exists."""
    from fanout.kafka import Cluster, Security  # noqa: PLC0415 - it needs Kafka's library
    from fanout.spark import ShuffleSink, create_shuffle_topic  # noqa: PLC0415 - and pyspark

    sink = ShuffleSink(
        cluster=Cluster(settings.bootstrap_servers, security=Security(protocol="PLAINTEXT")),
        topic=settings.topic,
        partition_count=settings.partitions,
        timestamp="timestamp",
    )
    create_shuffle_topic(sink, retention=None, replication_factor=1)
    return sink


def make_shuffle_source(settings: ShuffleSettings) -> ShuffleSource:
    """Return the source of the shuffle, and create the topic unless it exists."""
    from fanout.kafka import KafkaSource, ShuffleSource  # noqa: PLC0415 - the same

    kafka = KafkaSource(cluster=make_shuffle_sink(settings).cluster, topics=settings.topic)
    return ShuffleSource(kafka, partition_count=settings.partitions)
