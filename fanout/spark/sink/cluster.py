"""The cluster that a sink writes to, as the driver sees it: blocking calls, kept over batches."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar, final

from fanout.errors import OptionError
from fanout.kafka.transactions.transactions import open_transactions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable
    from typing import Any

    from fanout.kafka.transactions.transactions import Transactions
    from fanout.spark.loop_thread import LoopThread
    from fanout.spark.sink.options import KafkaSinkOptions

    _T = TypeVar("_T")

__all__ = ("Cluster", "cluster_of")


@final
class Cluster:
    """What the driver asks Kafka for a sink. Every call blocks, and may raise ServiceError.

    Args:
        loop: Where the connections are.
        transactions: The calls.
    """

    def __init__(self, loop: LoopThread, transactions: Transactions) -> None:
        self._loop = loop
        self.transactions = transactions
        self._topics: set[str] = set()
        self._longest: float | None = None

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a call in the loop and wait for its answer."""
        return self._loop.call(work)

    def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """Return how many partitions topics have now, and those that were asked for before."""
        counts = {
            topic: self.call(self.transactions.partitions(topic))
            for topic in sorted({*topics, *self._topics})
        }
        self._topics.update(counts)
        return counts

    def transaction_timeout(self, wanted: float | None) -> float:
        """Return the seconds that a transaction may take.

        Args:
            wanted: What the user says; None for the most that brokers allow.

        Raises:
            OptionError: The brokers allow less.
        """
        if self._longest is None:
            self._longest = self.call(self.transactions.max_timeout())
        if wanted is not None and wanted > self._longest:
            raise OptionError(
                f"transaction_timeout={wanted:g} seconds is longer than the brokers allow "
                f"(transaction.max.timeout.ms, which is {self._longest:g} seconds): say less, or "
                f"raise that"
            )
        return self._longest if wanted is None else wanted


def cluster_of(options: KafkaSinkOptions, loop: LoopThread) -> Cluster:
    """Return the cluster of a sink; its connections are kept until the loop ends."""
    return loop.hold((Cluster, options.sink_name), lambda: _open(options, loop))


@asynccontextmanager
async def _open(options: KafkaSinkOptions, loop: LoopThread) -> AsyncIterator[Cluster]:
    security = await asyncio.to_thread(options.make_security)
    async with open_transactions(
        options.bootstrap_servers, security=security, client_id=options.client_id_prefix
    ) as transactions:
        yield Cluster(loop, transactions)
