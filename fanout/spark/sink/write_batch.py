"""Writing one batch, as rows or as frames of a shuffle, with what readers may count on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from fanout.errors import FanOutError, StreamStateError
from fanout.kafka.writing.producer_id import Idempotent, Unconfirmed
from fanout.spark.current_batch import current_batch
from fanout.spark.sink.cluster import cluster_of
from fanout.spark.sink.job import AttemptFailedError, deliver, in_attempts, raise_failure
from fanout.spark.sink.partitioned_rows import check_columns
from fanout.spark.sink.shuffle_frames import say
from fanout.spark.sink.transaction import ExactlyOnce
from fanout.spark.sink.worker_task import Delivery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from fanout.kafka.writing.producer_id import WriteMode
    from fanout.spark.sink.cluster import Cluster
    from fanout.spark.sink.job import Delivered
    from fanout.spark.sink.options import KafkaSinkOptions
    from fanout.spark.sink.shuffle_frames import Framing

__all__ = ("write_batch",)


def write_batch(
    df: DataFrame, batch_id: int, options: KafkaSinkOptions, framing: Framing | None = None
) -> None:
    """Write a batch; see `write_to_kafka`.

    Args:
        df: What is written; with framing it may have a column `eventTime`.
        batch_id: What the handler was called with.
        options: The sink's options.
        framing: Makes frames of a shuffle of the rows; None where they are written as they are.
    """
    context = current_batch()
    if context.batch_id != batch_id:
        raise StreamStateError(
            f"batch_id={batch_id} is not what the handler was called with: {context.batch_id}"
        )
    context.enter_sink(options.sink_name)
    check_columns(df.schema, options.topic, event_times=framing is not None)
    cluster = cluster_of(options, context.loop)

    def send(mode: WriteMode) -> Delivered:
        delivery = Delivery(
            bootstrap_servers=options.bootstrap_servers,
            make_security=options.make_security,
            mode=mode,
            options=options.producing,
            client_id=options.client_id_prefix,
            topic=options.topic,
        )
        if framing is not None:
            return _send_frames(df, delivery, options, cluster, framing)
        return _send(df, delivery, options, cluster)

    match options.delivery_guarantee:
        case "exactly_once":
            ExactlyOnce(options, context, cluster).write(send)
        case "at_least_once":
            in_attempts(batch_id, lambda: send(Idempotent()))
        case "none":
            in_attempts(batch_id, lambda: send(Unconfirmed()))


def _send(
    df: DataFrame, delivery: Delivery, options: KafkaSinkOptions, cluster: Cluster
) -> Delivered:
    counts = cluster.partitions([] if options.topic is None else [options.topic])
    delivered = deliver(df, delivery, counts=counts, assign=options.partitioner)
    if delivered.new_topics:
        # How many partitions they have decides which task writes what: so all of it again.
        cluster.partitions(delivered.new_topics)
        raise AttemptFailedError(f"its rows name new topics: {', '.join(delivered.new_topics)}")
    return delivered


def _send_frames(
    df: DataFrame,
    delivery: Delivery,
    options: KafkaSinkOptions,
    cluster: Cluster,
    framing: Framing,
) -> Delivered:
    """Send rows as frames, and then say in all partitions how far they go."""
    context = current_batch()
    counts = cluster.partitions([framing.topic])
    hello = framing.hello(context, options.sink_name, counts[framing.topic])
    encoded = replace(delivery, encoder=framing.encoder(hello))
    delivered = deliver(df, encoded, counts=counts, assign=None)
    words = framing.last_words(hello, delivered, context.watermark)
    try:
        written = cluster.call(say(delivery, delivered.written, hello.partitions, words))
    except FanOutError as error:
        raise_failure(error)
    return replace(
        delivered,
        rows=delivered.rows + written.rows,
        bytes=delivered.bytes + written.bytes,
        written=Counter(delivered.written) + Counter(written.partitions),
    )
