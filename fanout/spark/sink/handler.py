"""The handlers that write a batch to Kafka: one for `foreach_batch`, one for use in one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from fanout.kafka.shuffle.topic import check_partition_count
from fanout.spark.sink.cluster import cluster_of
from fanout.spark.sink.options import KafkaSinkOptions
from fanout.spark.sink.transaction import ExactlyOnce
from fanout.spark.sink.write_batch import write_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from pyspark.sql import DataFrame

    from fanout.kafka.security import Security
    from fanout.spark.current_batch import BatchContext
    from fanout.spark.loop_thread import LoopThread
    from fanout.spark.sink.options import DeliveryGuarantee, Partitioner
    from fanout.spark.sink.shuffle_frames import Framing

__all__ = ("KafkaSink", "kafka_sink", "write_to_kafka")


@final
class KafkaSink:
    """A handler for `foreach_batch` that writes each batch to Kafka; made by `kafka_sink`.

    Args:
        options: The sink's options.
        transform: The user's function.
        framing: Makes frames of a shuffle of the rows; None where they are written as they are.
    """

    def __init__(
        self,
        options: KafkaSinkOptions,
        transform: Callable[[DataFrame], DataFrame] | None,
        framing: Framing | None = None,
    ) -> None:
        self._options = options
        self._transform = transform
        self._framing = framing

    def __repr__(self) -> str:
        return f"<KafkaSink {self._options.sink_name!r} to {self._options.topic or 'many topics'}>"

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write a batch; `foreach_batch` calls it."""
        rows = df if self._transform is None else self._transform(df)
        write_batch(rows, batch_id, self._options, self._framing)

    def prepare(self, loop: LoopThread) -> None:
        """Look whether the topic exists, and whether a transaction may take so long.

        Raises:
            OptionError: The brokers allow less than transaction_timeout.
            ServiceError: The topic does not exist, or no broker answers.
        """
        options = self._options
        cluster = cluster_of(options, loop)
        if options.topic is not None:
            count = cluster.partitions([options.topic])[options.topic]
            if self._framing is not None:
                check_partition_count(options.topic, count, self._framing.partition_count)
        if options.delivery_guarantee == "exactly_once":
            cluster.transaction_timeout(options.transaction_timeout)

    def recover(self, context: BatchContext) -> None:
        """Finish what an earlier run has recorded, and abort what it left open otherwise.

        Raises:
            CheckpointError: It cannot be told whether a batch was committed.
            ServiceError: No broker answers, or the transactional id may not be used.
        """
        if self._options.delivery_guarantee == "exactly_once":
            cluster = cluster_of(self._options, context.loop)
            ExactlyOnce(self._options, context, cluster).recover()


def kafka_sink(
    *,
    bootstrap_servers: str | Sequence[str],
    security: Security | Callable[[], Security],
    topic: str | None = None,
    transform: Callable[[DataFrame], DataFrame] | None = None,
    sink_name: str = "kafka",
    delivery_guarantee: DeliveryGuarantee = "exactly_once",
    partitioner: Partitioner | None = None,
    transaction_timeout: float | None = None,
    transactional_id_prefix: str = "fanout",
    client_id_prefix: str = "fanout",
    producer_options: Mapping[str, Any] | None = None,
) -> KafkaSink:
    """Return a handler for `foreach_batch` that writes each batch to Kafka, exactly once.

    A batch is one transaction of Kafka, whatever Spark's tasks and the driver go through: readers
    with `isolation.level=read_committed` see all of it once, or nothing yet. Each partition is
    written by one task in the order of the rows, so that a key keeps its order.

    The DataFrame has the columns of Spark's own Kafka sink: `value` (string or binary), and where
    there are any `key` (the same), `topic`, `partition` (int), `headers`
    (`array<struct<key: string, value: binary>>`) and `timestamp`.

    Args:
        bootstrap_servers: Brokers to begin with, as `"host:port"`, several by commas or as a list.
            Spark's workers connect to them, too.
        security: How they are talked to. It travels to Spark's workers, so one with a secret is
            passed as a function that returns it, and is called where it is used.
        topic: Where everything is written; None where the rows say it in a column `topic`. It has
            to exist.
        transform: Makes of a batch what is written, for example `lambda df: df.select(...)`.
        sink_name: What the checkpoint knows the sink by; it must not change while a query lives.
        delivery_guarantee: `"exactly_once"`; `"at_least_once"`, which waits for all in-sync
            replicas, so that a batch that fails is there in part and comes again; or `"none"`,
            which waits for nobody (`acks=0`).
        partitioner: From the keys of many rows (an Arrow array of binary, null where there is
            none) and the number of partitions of their topic to an array of their partitions. None
            is Kafka's own: murmur2 of the key, and rows without one anywhere. A column
            `partition` that is not null goes before it.
        transaction_timeout: Seconds after which brokers abort the transaction of a batch; None is
            the most that they allow (`transaction.max.timeout.ms`). A batch that takes longer
            fails.
        transactional_id_prefix: What the transactional id begins with, for the brokers' ACLs; it
            goes on with the query's id and sink_name.
        client_id_prefix: What the names begin with by which brokers know this client.
        producer_options: Options of Kafka's producer by the names that Kafka users know, such as
            `{"compression.type": "zstd"}`.

    Returns:
        The handler. Called with a batch, it raises OptionError for columns that do not fit,
        BatchNotWrittenError where the batch cannot be written in three attempts or in time,
        UnwritableRecordError for a record that is too large, ServiceError where the cluster refuses
        us, CheckpointError where a newer run has taken over, and FencedError where another job
        uses the transactional id. The batch comes again with the next run of the query.

    Raises:
        OptionError: If an option is malformed or out of range, or two contradict each other.
    """
    options = KafkaSinkOptions(
        bootstrap_servers=bootstrap_servers,
        topic=topic,
        sink_name=sink_name,
        security=security,
        delivery_guarantee=delivery_guarantee,
        partitioner=partitioner,
        transaction_timeout=transaction_timeout,
        transactional_id_prefix=transactional_id_prefix,
        client_id_prefix=client_id_prefix,
        producer_options=producer_options or {},
    )
    return KafkaSink(options, transform)


def write_to_kafka(
    df: DataFrame,
    batch_id: int,
    *,
    sink_name: str,
    bootstrap_servers: str | Sequence[str],
    security: Security | Callable[[], Security],
    topic: str | None = None,
    delivery_guarantee: DeliveryGuarantee = "exactly_once",
    partitioner: Partitioner | None = None,
    transaction_timeout: float | None = None,
    transactional_id_prefix: str = "fanout",
    client_id_prefix: str = "fanout",
    producer_options: Mapping[str, Any] | None = None,
) -> None:
    """Write a DataFrame to Kafka inside a handler of `foreach_batch`, exactly once.

    A handler may write several: each under its own sink_name is a transaction of its own, and
    committed by itself. Call them in the handler's own thread. For everything else see
    `kafka_sink`.

    Args:
        df: What is written, with the columns that `kafka_sink` takes.
        batch_id: What the handler was called with.
        sink_name: What the checkpoint knows this sink by; it must not change while a query lives.
        bootstrap_servers: As for `kafka_sink`, like all that follow.
        security: How they are talked to.
        topic: Where everything is written.
        delivery_guarantee: What readers may count on.
        partitioner: From keys to partitions.
        transaction_timeout: Seconds after which brokers abort the transaction of a batch.
        transactional_id_prefix: What the transactional id begins with.
        client_id_prefix: What the names begin with by which brokers know this client.
        producer_options: Options of Kafka's producer.

    Raises:
        StreamStateError: No handler runs in this thread, the batch is another one, or sink_name
            was written to before in it.
        OptionError: If an option is malformed or out of range, or the columns do not fit.
        FanOutError: As the handler of `kafka_sink`.
    """
    options = KafkaSinkOptions(
        bootstrap_servers=bootstrap_servers,
        topic=topic,
        sink_name=sink_name,
        security=security,
        delivery_guarantee=delivery_guarantee,
        partitioner=partitioner,
        transaction_timeout=transaction_timeout,
        transactional_id_prefix=transactional_id_prefix,
        client_id_prefix=client_id_prefix,
        producer_options=producer_options or {},
    )
    write_batch(df, batch_id, options)
