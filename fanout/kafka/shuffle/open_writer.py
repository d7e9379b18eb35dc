"""Open a writer of a shuffle: connect, and find out who it is among those before it."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from fanout.kafka.shuffle.commit_mode import AtLeastOnceMode, ExactlyOnceMode
from fanout.kafka.shuffle.frames import HelloFrame
from fanout.kafka.shuffle.topic import check_partition_count
from fanout.kafka.shuffle.writer import ShuffleWriter
from fanout.kafka.shuffle.writer_options import ShuffleWriterOptions
from fanout.kafka.transactions.transactions import open_transactions
from fanout.kafka.writing.producer_id import Idempotent, Transactional
from fanout.kafka.writing.writer import open_writer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from fanout.kafka.security import Security
    from fanout.kafka.shuffle.commit_mode import CommitMode
    from fanout.kafka.shuffle.writer_options import Chosen

__all__ = ("open_shuffle_writer",)


@asynccontextmanager
async def open_shuffle_writer(
    bootstrap_servers: str | Sequence[str],
    *,
    topic: str,
    security: Security,
    key: Chosen = "key",
    value: Chosen = "value",
    timestamp: Chosen | None = None,
    out_of_orderness: float | None = None,
    delivery_guarantee: Literal["exactly_once", "at_least_once"] = "exactly_once",
    partition_count: int | None = None,
    producer: int = 0,
    producers: int = 1,
    generation: int | None = None,
    idle_after: float | None = 10.0,
    transaction_timeout: float | None = None,
    transactional_id_prefix: str = "fanout",
    client_id_prefix: str = "fanout",
    producer_options: Mapping[str, Any] | None = None,
) -> AsyncIterator[ShuffleWriter]:
    """Open a producer of a shuffle.

    Leaving the block tells readers that the producer is idle, unless it has ended. What was not
    committed is aborted, or with `"at_least_once"` waited for; where the block raises, neither is
    told nor waited for.

    Args:
        bootstrap_servers: Brokers to begin with, as `"host:port"`, several by commas or as a list.
        topic: The topic of the shuffle. It has to exist.
        security: How brokers are talked to.
        key: The column of the keys, string or binary, or a function that returns it.
        value: The column of the values, likewise.
        timestamp: The column of the times, with a time zone, likewise; None where there are none.
        out_of_orderness: Seconds by which a record may be earlier than one before it. Each commit
            tells the watermark that follows. None where `watermark` is called.
        delivery_guarantee: `"exactly_once"`, where a commit is a transaction; or `"at_least_once"`,
            where records are seen as they come, and come again where a user writes them again.
        partition_count: How many partitions the topic must have; None for any number.
        producer: The number of this producer, from 0 on.
        producers: How many there are.
        generation: What they share; a higher one takes the place of all lower ones. None, for a
            single producer, is the time in milliseconds, and with `"exactly_once"` above that of
            the last writer whatever clocks say.
        idle_after: Seconds without a call after which readers are told not to wait for the
            producer, and again each time; at least 0.1. None for never.
        transaction_timeout: Seconds after which brokers abort what was not committed; None is the
            most that they allow.
        transactional_id_prefix: What the transactional id begins with, for the brokers' ACLs; it
            goes on with the topic and the producer.
        client_id_prefix: What the names begin with by which brokers know this client.
        producer_options: Options of Kafka's producer by the names that Kafka users know.

    Raises:
        OptionError: If an option is malformed or out of range, or two contradict each other.
        ServiceError: The topic does not exist, has another number of partitions, or the cluster
            cannot be reached, or refuses us.
    """
    options = ShuffleWriterOptions(
        bootstrap_servers=bootstrap_servers,
        topic=topic,
        security=security,
        key=key,
        value=value,
        timestamp=timestamp,
        out_of_orderness=out_of_orderness,
        delivery_guarantee=delivery_guarantee,
        partition_count=partition_count,
        producer=producer,
        producers=producers,
        generation=generation,
        idle_after=idle_after,
        transaction_timeout=transaction_timeout,
        transactional_id_prefix=transactional_id_prefix,
        client_id_prefix=client_id_prefix,
        producer_options=producer_options or {},
    )
    async with AsyncExitStack() as stack:
        delivery, hello = await _open(options, stack)
        writer = ShuffleWriter(options, delivery, hello)
        async with writer.running():
            yield writer


async def _open(
    options: ShuffleWriterOptions, stack: AsyncExitStack
) -> tuple[CommitMode, HelloFrame]:
    """Connect, and find out who this producer is."""
    client_id = f"{options.client_id_prefix}-shuffle"
    transactions = await stack.enter_async_context(
        open_transactions(options.bootstrap_servers, security=options.security, client_id=client_id)
    )
    count = await transactions.partitions(options.topic)
    check_partition_count(options.topic, count, options.partition_count)
    first = int(datetime.now(UTC).timestamp() * 1000)
    exact = options.delivery_guarantee == "exactly_once"
    mode: Transactional | Idempotent = Idempotent()
    marker_group = f"{options.transactional_id}-marker"
    timeout = 0.0
    if exact:
        timeout = options.transaction_timeout or await transactions.max_timeout()
        incarnation = await transactions.begin(options.transactional_id, timeout)
        mode = Transactional(options.transactional_id, incarnation)
        marked = await transactions.marked(marker_group)
        # Each commit counts on from here, so that the next writer is above all of them.
        first = max(first, -1 if marked is None else marked + 1)
    writer = await stack.enter_async_context(
        open_writer(
            options.bootstrap_servers,
            security=options.security,
            mode=mode,
            options=options.producing,
            client_id=client_id,
        )
    )
    generation = first if options.generation is None else options.generation
    hello = HelloFrame(options.producer, generation, options.producers, count)
    if isinstance(mode, Idempotent):
        return AtLeastOnceMode(writer), hello
    return ExactlyOnceMode(
        writer, transactions, mode, marker_group=marker_group, timeout=timeout, number=first
    ), hello
