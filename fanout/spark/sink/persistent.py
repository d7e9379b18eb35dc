"""Both sides of a shuffle at once: the handler that writes it, and the source that reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from fanout.kafka.protocol.security import Security
from fanout.kafka.shuffle.source import ShuffleSource
from fanout.kafka.shuffle.topic import ShuffleTopic, ensure_topic
from fanout.kafka.source import KafkaSource
from fanout.spark.loop import LoopThread
from fanout.spark.sink.key_by import key_by_sink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta
    from typing import Any

    from fanout.spark.sink.handler import KafkaSink

__all__ = ("PersistentKeyBy", "persistent_key_by")

_OF_SHUFFLE: Final = {"on_bad_frame", "producer_timeout", "on_silent_producer"}


class PersistentKeyBy(NamedTuple):
    """The two sides of a shuffle; they fail, restart and scale on their own.

    Args:
        handler: Writes, as the handler of one query.
        source: Reads, as the source of another.
    """

    handler: KafkaSink
    source: ShuffleSource


def persistent_key_by(
    *,
    bootstrap_servers: str | Sequence[str],
    security: Security | Callable[[], Security],
    topic: str,
    partition_count: int,
    retention: timedelta | None,
    replication_factor: int,
    reading: Mapping[str, Any] | None = None,
    **writing: Any,
) -> PersistentKeyBy:
    """Distribute a stream by key over the partitions of a topic that both sides outlive.

    It creates the topic, or checks that one that exists fits. It blocks, for half a minute at most.

    Args:
        bootstrap_servers: Brokers to begin with, as `"host:port"`, several by commas or as a list.
        security: How they are talked to; a function that returns it where it holds a secret.
        topic: The topic.
        partition_count: How many partitions it has, for ever: as many readers may share it.
        retention: For how long records are kept at least; None for ever. Whoever reads may stand
            still for so long.
        replication_factor: How many brokers have each record.
        reading: Further options of the `KafkaSource`, such as `group_id` and `start`, and of the
            `ShuffleSource`: `on_bad_frame`, `producer_timeout` and `on_silent_producer`.
        writing: Further options of `key_by_sink`, such as `key`, `timestamp`,
            `out_of_orderness` and `delivery_guarantee`.

    Raises:
        OptionError: If an option is malformed or out of range, or two contradict each other.
        ServiceError: The topic does not fit, or may not be created or described, or no broker
            answers.
    """
    handler = key_by_sink(
        bootstrap_servers=bootstrap_servers,
        security=security,
        topic=topic,
        partition_count=partition_count,
        **writing,
    )
    here = security if isinstance(security, Security) else security()
    of_kafka = dict(reading or {})
    of_shuffle = {name: of_kafka.pop(name) for name in _OF_SHUFFLE & of_kafka.keys()}
    kafka = KafkaSource(
        bootstrap_servers=bootstrap_servers, topics=topic, security=here, **of_kafka
    )
    source = ShuffleSource(kafka, partition_count=partition_count, **of_shuffle)
    wanted = ShuffleTopic(
        name=topic,
        partition_count=partition_count,
        retention=retention,
        replication_factor=replication_factor,
    )
    with LoopThread() as loop:
        loop.call(ensure_topic(bootstrap_servers, wanted, security=here))
    return PersistentKeyBy(handler, source)
