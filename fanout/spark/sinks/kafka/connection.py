"""The settings of a sink, and the driver's connection to its cluster."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, final

from fanout.core.statistics import Origin
from fanout.core.user_functions import check_function
from fanout.errors import OptionError
from fanout.kafka.shuffle.topic import check_partition_count
from fanout.kafka.transactions.transactions import open_transactions
from fanout.spark.query.batch_context import check_sink_name
from fanout.spark.sinks.sink_batch import SinkCounts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable
    from typing import Any

    from fanout.core.statistics import SinkStatistics
    from fanout.kafka.cluster import Cluster
    from fanout.kafka.transactions.transactions import Transactions
    from fanout.kafka.writing.partitioner import Partitioner
    from fanout.kafka.writing.write_options import WriteOptions
    from fanout.spark.sinks.kafka.owned_rows import ArrowTransform
    from fanout.spark.sinks.kafka.shuffle_frames import ShuffleFraming
    from fanout.spark.workers.loop_thread import LoopThread

    _T = TypeVar("_T")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SinkTarget:
    """The settings of a sink, which are checked."""

    name: str  # the sink's in the checkpoint
    options: WriteOptions  # the topic, the guarantee and the transactions
    partitioner: Partitioner | None = None  # the user's; None for Kafka's own
    transform: ArrowTransform | None = None  # makes of Arrow records what is written
    framing: ShuffleFraming | None = None  # encodes the rows as frames of a shuffle
    counts: SinkCounts = field(default_factory=SinkCounts, compare=False, repr=False)

    def __post_init__(self) -> None:
        _ = self.options.cluster.for_workers()  # checks its security
        check_sink_name(self.name)
        if self.partitioner is not None:
            kind = "a function of keys and a number"
            check_function("partitioner", self.partitioner, kind, arguments=2)

    def statistics(self) -> SinkStatistics:
        """Return what the sink has counted."""
        return self.counts.statistics(
            Origin("kafka", self.options.topic or ""),
            transactional=self.options.delivery_guarantee == "exactly_once",
        )

    def transactional_id(self, query_id: str) -> str:
        """Return the transactional id of the sink in a query."""
        return f"{self.options.transactional_id_prefix}-{query_id}-{self.name}"

    def marker_group(self, query_id: str) -> str:
        """Return the consumer group in which the sink of a query marks committed batches."""
        return f"{self.transactional_id(query_id)}-marker"


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
