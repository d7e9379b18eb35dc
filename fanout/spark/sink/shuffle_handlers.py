"""The handlers that write a batch to a shuffle: for `foreach_batch`, and for use in one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from fanout.kafka.security import Security
from fanout.kafka.shuffle.source import ShuffleSource
from fanout.kafka.shuffle.topic import ShuffleTopic, ensure_topic
from fanout.kafka.shuffle.writer_options import check_lateness, check_producers
from fanout.kafka.source import KafkaSource
from fanout.spark.loop_thread import LoopThread
from fanout.spark.sink.handler import KafkaSink
from fanout.spark.sink.options import KafkaSinkOptions
from fanout.spark.sink.shuffle_frames import Framing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import timedelta
    from typing import Any

    from pyspark.sql import Column, DataFrame


__all__ = (
    "Guarantee",
    "PersistentKeyBy",
    "key_by_sink",
    "persistent_key_by",
    "write_key_by",
)


Guarantee: TypeAlias = Literal["exactly_once", "at_least_once"]


def key_by_sink(
    *,
    bootstrap_servers: str | Sequence[str],
    security: Security | Callable[[], Security],
    topic: str,
    key: str | Column = "key",
    value: str | Column = "value",
    timestamp: str | Column | None = None,
    out_of_orderness: float | None = None,
    transform: Callable[[DataFrame], DataFrame] | None = None,
    sink_name: str = "shuffle",
    delivery_guarantee: Guarantee = "exactly_once",
    partition_count: int | None = None,
    producer: int = 0,
    producers: int = 1,
    generation: int | None = None,
    transaction_timeout: float | None = None,
    transactional_id_prefix: str = "fanout",
    client_id_prefix: str = "fanout",
    producer_options: Mapping[str, Any] | None = None,
) -> KafkaSink:
    """Return a handler for `foreach_batch` that writes each batch to a shuffle, by key.

    The records of a batch and its watermark are one transaction. The watermark is behind the rows
    in every partition, also where the batch has none; it is that of the stream that the query
    reads, which a replay has again, or follows from the rows. Where it follows from the rows, a
    batch without any tells readers not to wait for this producer.

    Args:
        bootstrap_servers: As for `kafka_sink`.
        security: As for `kafka_sink`.
        topic: The topic of the shuffle. It has to exist.
        key: The column of the keys, string or binary, by its name or as an expression.
        value: The column of the values, likewise.
        timestamp: The column of the times, a timestamp, likewise; None where there are none.
        out_of_orderness: Seconds by which a row may be earlier than one before it, for a watermark
            that follows from what was written in this batch. None for the stream's watermark; the
            times must then be those of the source, or later ones.
        transform: Makes of a batch what is written, for example `lambda df: df.where(...)`.
        sink_name: As for `kafka_sink`.
        delivery_guarantee: `"exactly_once"`; or `"at_least_once"`, where a batch that fails is
            there in part and comes again.
        partition_count: How many partitions the topic must have; None for any number.
        producer: The number of this query among those that write to the topic, from 0 on.
        producers: How many queries do.
        generation: What they share; a higher one takes the place of all lower ones. None, for a
            single query, is a new one for each run.
        transaction_timeout: As for `kafka_sink`.
        transactional_id_prefix: As for `kafka_sink`.
        client_id_prefix: As for `kafka_sink`.
        producer_options: As for `kafka_sink`.

    Returns:
        The handler. Called with a batch, it raises BadFrameError for a row without key or value,
        ServiceError where the topic has another number of partitions, and else what that of
        `kafka_sink` does.

    Raises:
        OptionError: If an option is malformed or out of range, or two contradict each other.
    """
    check_lateness(out_of_orderness, has_times=timestamp is not None)
    check_producers(producer, producers, generation, partition_count)
    options = KafkaSinkOptions(
        bootstrap_servers=bootstrap_servers,
        topic=topic,
        sink_name=sink_name,
        security=security,
        delivery_guarantee=delivery_guarantee,
        transaction_timeout=transaction_timeout,
        transactional_id_prefix=transactional_id_prefix,
        client_id_prefix=client_id_prefix,
        producer_options=producer_options or {},
    )
    framing = Framing(
        topic=topic,
        out_of_orderness=out_of_orderness,
        partition_count=partition_count,
        producer=producer,
        producers=producers,
        generation=generation,
    )

    def columns(df: DataFrame) -> DataFrame:
        chosen = {"key": key, "value": value}
        if timestamp is not None:
            chosen["eventTime"] = timestamp
        rows = df if transform is None else transform(df)
        return rows.select(
            *(
                (F.col(one) if isinstance(one, str) else one).alias(name)
                for name, one in chosen.items()
            )
        )

    return KafkaSink(options, columns, framing)


def write_key_by(df: DataFrame, batch_id: int, **options: Any) -> None:
    """Write a DataFrame to a shuffle inside a handler of `foreach_batch`, by key.

    Args:
        df: What is written.
        batch_id: What the handler was called with.
        options: As for `key_by_sink`; each shuffle that a handler writes to has a `sink_name` of
            its own.

    Raises:
        StreamStateError: No handler runs in this thread, the batch is another one, or sink_name
            was written to before in it.
        OptionError: If an option is malformed or out of range, or the columns do not fit.
        FanOutError: As the handler of `key_by_sink`.
    """
    key_by_sink(**options)(df, batch_id)


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
