"""The handlers that write a batch to a shuffle: for `foreach_batch`, and for use in one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from fanout.kafka.shuffle.writer_options import check_lateness, check_producers
from fanout.spark.sink.framing import Framing
from fanout.spark.sink.handler import KafkaSink
from fanout.spark.sink.options import KafkaSinkOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from pyspark.sql import Column, DataFrame

    from fanout.kafka.protocol.security import Security

__all__ = ("Guarantee", "key_by_sink", "write_key_by")

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
