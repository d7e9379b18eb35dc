"""Open a writer of a shuffle: connect, and find out who it is among those before it."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fanout.kafka.shuffle.commit_mode import AtLeastOnceMode, ExactlyOnceMode
from fanout.kafka.shuffle.frames import HelloFrame
from fanout.kafka.shuffle.topic import check_partition_count
from fanout.kafka.shuffle.writer import ShuffleWriter
from fanout.kafka.transactions.transactions import open_transactions
from fanout.kafka.writing.producer_id import Idempotent, Transactional
from fanout.kafka.writing.writer import open_writer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fanout.kafka.shuffle.commit_mode import CommitMode
    from fanout.kafka.shuffle.writer_options import ShuffleWriterOptions

__all__ = ("open_shuffle_writer",)


@asynccontextmanager
async def open_shuffle_writer(options: ShuffleWriterOptions) -> AsyncIterator[ShuffleWriter]:
    """Open a producer of a shuffle.

    Leaving the block announces that the producer is idle, unless it has ended. What was not
    committed is aborted, or with `"at_least_once"` waited for; where the block raises, neither is
    announced nor waited for.

    Args:
        options: The topic, the columns and the guarantee.

    Raises:
        ServiceError: The topic does not exist, has another number of partitions, or the cluster
            cannot be reached or refuses the client.
    """
    async with AsyncExitStack() as stack:
        delivery, hello = await _open(options, stack)
        writer = ShuffleWriter(options, delivery, hello)
        async with writer.running():
            yield writer


async def _open(
    options: ShuffleWriterOptions, stack: AsyncExitStack
) -> tuple[CommitMode, HelloFrame]:
    """Connect, and find out who this producer is."""
    cluster = options.cluster.named("shuffle")
    transactions = await stack.enter_async_context(open_transactions(cluster))
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
        open_writer(cluster, mode=mode, options=options.producing)
    )
    generation = first if options.generation is None else options.generation
    hello = HelloFrame(options.producer, generation, options.producers, count)
    if isinstance(mode, Idempotent):
        return AtLeastOnceMode(writer), hello
    return ExactlyOnceMode(
        writer, transactions, mode, marker_group=marker_group, timeout=timeout, number=first
    ), hello
