"""The source of a driver, and the shuffle between two drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fanout.core.event_time import EventTime
from fanout.demo.options import LENT_SECONDS, QUEUE, STREAM, ServiceName
from fanout.demo.queries import QueryName

if TYPE_CHECKING:
    from fanout.core.source import Source
    from fanout.demo.queries import QueryOptions
    from fanout.spark import ShuffleSink

OUT_OF_ORDERNESS: Final = 1.0
"""Seconds by which the event time of a record may be earlier than that of one before it."""

_SHARE_GROUP = {
    "share.auto.offset.reset": "earliest",
    "share.isolation.level": "read_committed",
    # A killed member keeps its records and its partitions for these milliseconds; Kafka's defaults
    # are half a minute and more.
    "share.record.lock.duration.ms": str(LENT_SECONDS * 1000),
    "share.session.timeout.ms": str(LENT_SECONDS * 1000),
    "share.delivery.count.limit": "10",  # on a busy machine locks may expire
}


def make_source(options: QueryOptions) -> Source:
    """Return a source that begins with the oldest record; its service alone is imported."""
    if options.demo.source in {ServiceName.KAFKA, ServiceName.KAFKA_SHARE}:
        return _kafka_source(options)
    from fanout.kinesis import KinesisQueueSource, KinesisSource  # noqa: PLC0415 - see above
    from fanout.testing.kinesis.credentials import REGION  # noqa: PLC0415 - the same

    if options.demo.source is ServiceName.KINESIS_QUEUE:
        return KinesisQueueSource(
            stream=STREAM,
            queue=QUEUE,
            visibility_timeout=LENT_SECONDS,
            endpoint_url=options.address,
            region=REGION,
        )
    return KinesisSource(
        stream=STREAM,
        consumer="fanout-demo",
        start="TRIM_HORIZON",
        silence_timeout=3.0,  # the server sends a heartbeat every second; the service every five
        endpoint_url=options.address,
        region=REGION,
    )


def _kafka_source(options: QueryOptions) -> Source:
    from fanout.kafka import KafkaShareSource, KafkaSource, ShuffleSource  # noqa: PLC0415 - as above

    if options.query is QueryName.READING:
        sink = make_shuffle_sink(options)
        topic = KafkaSource(cluster=sink.cluster, topics=sink.topic)
        return ShuffleSource(topic, partition_count=sink.partition_count)
    cluster = _cluster(options.address)
    if options.demo.source is ServiceName.KAFKA_SHARE:
        return KafkaShareSource(
            topics=STREAM,
            cluster=cluster,
            group_id="fanout-demo",
            consumers=4,
            group_settings=_SHARE_GROUP,
        )
    return KafkaSource(
        topics=STREAM,
        cluster=cluster,
        discovery_interval=1.0,  # new partitions have to be found during the run
        event_time=EventTime(out_of_orderness=OUT_OF_ORDERNESS),
        # A batch has records of each partition, so that the watermark advances.
        consumer_options={"max.partition.fetch.bytes": 8_192},
    )


def make_shuffle_sink(options: QueryOptions) -> ShuffleSink:
    """Return the sink of the shuffle, and create the topic unless it exists."""
    from fanout.spark import ShuffleSink, create_shuffle_topic  # noqa: PLC0415 - it needs pyspark

    sink = ShuffleSink(
        cluster=_cluster(options.address),
        topic=f"{STREAM}-by-key",
        partition_count=options.demo.shards,
        timestamp="timestamp",
    )
    create_shuffle_topic(sink, retention=None, replication_factor=1)
    return sink


def _cluster(address: str) -> Any:
    from fanout.kafka import Cluster, Security  # noqa: PLC0415 - it needs Kafka's library

    return Cluster(address, security=Security(protocol="PLAINTEXT"))
