"""The driver's connection to the cluster of a sink: blocking calls, kept from batch to batch."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar, final

from fanout.errors import OptionError
from fanout.kafka.shuffle.topic import check_partition_count
from fanout.kafka.transactions.transactions import open_transactions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable
    from typing import Any

    from fanout.kafka.cluster import Cluster
    from fanout.kafka.transactions.transactions import Transactions
    from fanout.spark.sinks.kafka.options import SinkTarget
    from fanout.spark.workers.loop_thread import LoopThread

    _T = TypeVar("_T")


@final
class SinkConnection:
    """The driver's calls to the cluster of a sink.

    Every call blocks, and may raise ServiceError.
    """

    def __init__(self, loop: LoopThread, transactions: Transactions) -> None:
        self._loop = loop
        self.transactions = transactions
        self._topics: set[str] = set()
        self._longest: float | None = None

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a call in the loop and wait for its answer."""
        return self._loop.call(work)

    def check(self, target: SinkTarget) -> None:
        """Check that the topic exists and fits, and that brokers allow the transaction timeout.

        Raises:
            OptionError: The brokers allow less than transaction_timeout.
            ServiceError: The topic does not exist, or has another number of partitions.
        """
        options = target.options
        if options.topic is not None:
            count = self.partitions([options.topic])[options.topic]
            if target.framing is not None:
                check_partition_count(options.topic, count, target.framing.options.partition_count)
        if options.delivery_guarantee == "exactly_once":
            self.transaction_timeout(options.transaction_timeout)

    def partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the number of partitions of topics, and of those of earlier calls.

        A topic of an earlier call that does not exist any more is forgotten.
        """
        wanted = set(topics)
        if not wanted | self._topics:
            return {}
        counts = self.call(self.transactions.partition_counts(wanted, self._topics - wanted))
        self._topics = set(counts)
        return counts

    def transaction_timeout(self, wanted: float | None) -> float:
        """Return the seconds for a transaction: those wanted, or the most that brokers allow.

        Raises:
            OptionError: The brokers allow less.
        """
        if self._longest is None:
            self._longest = self.call(self.transactions.max_timeout())
        if wanted is not None and wanted > self._longest:
            raise OptionError(
                f"transaction_timeout={wanted:g} seconds is longer than the brokers allow "
                f"(transaction.max.timeout.ms, which is {self._longest:g} seconds): pass less, or "
                f"raise that"
            )
        return self._longest if wanted is None else wanted


def connect(target: SinkTarget, loop: LoopThread) -> SinkConnection:
    """Return the connection of a sink; it is kept until the loop ends."""
    return loop.hold((SinkConnection, target.name), lambda: _open(target.options.cluster, loop))


@asynccontextmanager
async def _open(cluster: Cluster, loop: LoopThread) -> AsyncIterator[SinkConnection]:
    async with open_transactions(cluster) as transactions:
        yield SinkConnection(loop, transactions)
