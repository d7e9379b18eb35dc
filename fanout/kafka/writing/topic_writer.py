"""Write to topics of Kafka from asyncio: at least once, or in transactions."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, final

from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.drain import Drained
from fanout.core.membership import SharedSplits
from fanout.core.opening import resolved_start
from fanout.core.option_checks import check_text
from fanout.core.positions import Cursor
from fanout.core.statistics import Origin
from fanout.core.user_functions import check_function
from fanout.errors import OptionError, PositionError, StreamStateError
from fanout.kafka.cluster import check_cluster
from fanout.kafka.group.member import ConsumerMember
from fanout.kafka.group.transactional import MemberPositions
from fanout.kafka.partitions import Partition
from fanout.kafka.reading.kafka_source import KafkaSource
from fanout.kafka.transactions.transactions import open_transactions
from fanout.kafka.writing import writer as partition_writer
from fanout.kafka.writing.delivery import Delivery
from fanout.kafka.writing.own_transactions import OwnTransactions
from fanout.kafka.writing.partitioner import place_rows, to_batch, topics_of
from fanout.kafka.writing.producer_id import Idempotent, Transactional
from fanout.kafka.writing.sender import CLOSED
from fanout.kafka.writing.write_options import ProducerOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    import pyarrow as pa

    from fanout.core.statistics import WriterStatistics
    from fanout.kafka.cluster import Cluster
    from fanout.kafka.writing.partitioner import Partitioner
    from fanout.kafka.writing.writer import KafkaWriter

# Kafka's default of transaction.timeout.ms. Until then readers wait for a writer that was killed.
_TRANSACTION_TIMEOUT: Final = 60.0


@asynccontextmanager
async def open_writer(
    cluster: Cluster,
    topic: str | None = None,
    *,
    transactional_id: str | None = None,
    transaction_timeout: float = _TRANSACTION_TIMEOUT,
    partitioner: Partitioner | None = None,
    producer_options: Mapping[str, str | int] | None = None,
) -> AsyncIterator[TopicWriter]:
    """Open a writer to topics of Kafka.

    Without a transactional id each record is written at least once: all in-sync replicas have it,
    and only records that the caller writes again are there twice. With one, records are written in
    transactions: readers with `isolation.level=read_committed` see all of a commit, or none.

    Leaving the block waits until all records are confirmed. Records of a transaction that was not
    committed are aborted. If the block raises, records that are not confirmed are dropped. Calls of
    other tasks that have not begun to write by then raise StreamStateError.

    Args:
        cluster: The brokers.
        topic: The topic of all records; None where a column `topic` names it. It has to exist.
        transactional_id: The name of the writer's transactions. It stays the same when the writer
            is started again. Opening a writer fences every older one with the same name: aborts its
            open transaction, and lets it write no more.
        transaction_timeout: Seconds after which brokers abort a transaction that is not committed.
        partitioner: From the keys of many rows (an Arrow array of binary, null where there is none)
            and the number of partitions of their topic to an array of their partitions. None is
            Kafka's own: murmur2 of the key, and rows without a key to all partitions in turn.
        producer_options: Options of Kafka's producer by Kafka's names, such as
            `{"compression.type": "zstd"}`.

    Raises:
        OptionError: If an option is malformed, or brokers do not allow the timeout.
        ServiceError: If the cluster cannot be reached, or refuses the client.

    Cancellation: every connection is closed before the block is left.
    """
    check_cluster(cluster)
    check_text("topic", topic)
    check_text("transactional_id", transactional_id)
    if partitioner is not None:
        kind = "a function of keys and a number"
        check_function("partitioner", partitioner, kind, arguments=2)
    options = ProducerOptions.parse_for_writer(producer_options or {})
    cluster = cluster.named("writer")
    async with AsyncExitStack() as stack:
        transactions = mode = None
        if transactional_id is not None:
            transactions = await stack.enter_async_context(open_transactions(cluster))
            incarnation = await transactions.begin(transactional_id, transaction_timeout)
            mode = Transactional(transactional_id, incarnation)
        opening = partition_writer.open_writer(cluster, mode=mode or Idempotent(), options=options)
        writer = await stack.enter_async_context(opening)
        own = None
        if transactions is not None and mode is not None:
            own = OwnTransactions(writer, transactions, mode, timeout=transaction_timeout)
        topic_writer = TopicWriter(writer, own, topic=topic, partitioner=partitioner)
        async with topic_writer._open():  # noqa: SLF001 - in its module
            yield topic_writer


@final
class TopicWriter:
    """Writes records to topics; made by `open_writer`. Any task may call it.

    An error of the cluster is final: every later call raises it as well. A write that is refused
    before anything of it is sent, with UnwritableRecordError or for a topic that does not exist,
    leaves the writer as it was.

    Args:
        writer: Writes to given partitions.
        transactions: The transactions of the writer; None without them.
        topic: The topic of all records; None where they name it.
        partitioner: The user's partitioner; None for Kafka's own.
    """

    def __init__(
        self,
        writer: KafkaWriter,
        transactions: OwnTransactions | None,
        *,
        topic: str | None,
        partitioner: Partitioner | None,
    ) -> None:
        self._writer = writer
        self._transactions = transactions
        self._topic = topic
        self._partitioner = partitioner
        self._rows = 0
        self._lock = asyncio.Lock()
        self._is_closed = False

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        """Take calls while the block runs, and finish what they have begun."""
        try:
            yield
        finally:
            self._is_closed = True
            if self._transactions is not None:
                await self._transactions.close(self._lock)
        if self._transactions is None:
            async with self._lock:  # the call that is under way ends before
                await self._writer.flush()

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Let one call write at a time, and none when the block has ended."""
        async with self._lock:
            if self._is_closed:
                raise StreamStateError(CLOSED)
            yield

    async def write(self, records: pa.RecordBatch | Sequence[Mapping[str, Any]]) -> Delivery:
        """Write records; each partition gets its records in the order of the rows.

        It returns when all of them have room in `buffer.memory`. `flush`, `commit` and
        `Delivery.confirmed` wait for brokers.

        Args:
            records: Records with the columns of Spark's own sink: `value` (string or binary; null
                is a tombstone), and optionally `key` (the same), `topic`, `partition` (int),
                `headers` (a list of structs of `key` and `value`) and `timestamp` (now, if it is
                null). Or rows as mappings, with the headers of each as pairs.

        Returns:
            The delivery, to ask for the partitions and offsets of the records.

        Raises:
            UnwritableRecordError: If a record is too large, or Kafka cannot hold a value.
            ServiceError: If a topic or partition does not exist, or the cluster refuses a request.
            FencedError: If a newer writer has taken over, or brokers have aborted the transaction.
            WriteTimeoutError: If the cluster does not confirm records in time.

        Cancellation: some of the records may be written. A transaction is then aborted; its commit
        raises StreamStateError.
        """
        batch = to_batch(records)
        delivery = Delivery(len(batch))
        if not len(batch):
            return delivery
        topics = topics_of(batch, self._topic)
        async with self._turn():
            counts = {topic: await self._writer.partition_count(topic) for topic in topics}
            rows = place_rows(batch, counts, partitioner=self._partitioner, first_row=self._rows)
            self._rows += len(batch)
            if self._transactions is None:
                await self._writer.write(rows, delivery)
            else:
                await self._transactions.write(rows, delivery)
        return delivery

    async def flush(self) -> None:
        """Wait until brokers have confirmed all written records.

        Records of a transaction are seen after its commit only, which flushes by itself.

        Raises:
            FanOutError: As for `write`.

        Cancellation: nothing is lost; call it again.
        """
        async with self._turn():
            await self._writer.flush()

    async def commit(self, positions: Drained | Checkpoint | None = None) -> None:
        """Commit the records since the last commit, and the positions of a source with them.

        Args:
            positions: What was drained from a stream of a `KafkaSource`, or its `delivered`
                positions: the records up to there count as processed, if the commit succeeds, and
                only then. None leaves the positions as they are. Where the stream is a member of a
                `ConsumerGroup`, that group has the positions, and they need no `acknowledge`.

        Raises:
            StreamStateError: If the writer has no transactional id, the positions are of another
                cluster, or before what it has committed, in this run or an earlier one, or a write
                was cancelled in the middle. The transaction stays open.
            FencedError: If a newer writer has taken over.
            BatchNotWrittenError: If brokers have aborted the transaction after its timeout.
            SplitLostError: If a partition of the stream went to another member of its group before
                the commit. The transaction is aborted, and the stream delivers again what its
                process still has of it.
            ServiceError: If the group of the positions may not be used, or it is not known whether
                the transaction was committed. `positions` of the next writer tells.
            FanOutError: As for `write`.

        Cancellation: the transaction may be committed; call it again to finish it.
        """
        transactions = self._own_transactions("commit")
        checkpoint = positions.positions if isinstance(positions, Drained) else positions
        cursors = {} if checkpoint is None else self._cursors(checkpoint)
        member = None if checkpoint is None else _of_member(checkpoint)
        async with self._turn():
            if member is None:
                await transactions.commit(cursors, anew=_anew(checkpoint))
            else:
                await transactions.commit_delivered(member)

    async def abort(self) -> None:
        """Abort the records since the last commit; readers with `read_committed` never see them.

        A stream of a group goes on where it is: write again what was delivered since that commit,
        or open the stream anew.

        Raises:
            StreamStateError: If the writer has no transactional id.
            FanOutError: As for `commit`.

        Cancellation: the transaction may be aborted; call it again.
        """
        transactions = self._own_transactions("abort")
        async with self._turn():
            await transactions.abort()

    async def positions(self, source: KafkaSource) -> str:
        """Return the positions of the last commit, for `fanout.open(source, resume=...)`.

        The first call of all finds where the source begins, and commits that: "latest" stays the
        moment of that call, however often the first run fails. A partition that appears later is
        read from its beginning. Brokers keep the positions as the offsets of a consumer group with
        the name of the transactional id, for `offsets.retention.minutes` after the last commit.

        Args:
            source: What is read; a topic of the cluster that is written to.

        Raises:
            StreamStateError: If the writer has no transactional id, or a transaction is open.
            OptionError: If the source is no `KafkaSource`.
            PositionError: If the source is another cluster.
            ServiceError: If the group may not be used, or the source does not exist.

        Cancellation: nothing is lost; call it again.
        """
        transactions = self._own_transactions("positions")
        if not isinstance(source, KafkaSource):
            raise OptionError(
                f"source must be a KafkaSource, not {type(source).__name__}: Kafka keeps positions "
                f"of its own partitions only"
            )
        async with self._turn():
            positions = await transactions.positions()
        if positions:
            splits = {
                str(each): SplitPosition(each.split, at) for each, at in sorted(positions.items())
            }
            return Checkpoint(self._identity, splits).to_json()
        checkpoint = await resolved_start(source)
        if checkpoint.source != self._identity:
            raise PositionError(
                f"the source reads {checkpoint.source}, but the writer writes to {self._identity}: "
                f"a transaction holds positions of its own cluster only"
            )
        await self.commit(checkpoint)
        return checkpoint.to_json()

    def statistics(self) -> WriterStatistics:
        """Return the counters since the writer was opened; any thread may call it."""
        own = self._transactions
        return replace(
            self._writer.statistics(),
            transactions=None if own is None else own.statistics(),
            origin=Origin("kafka", self._topic or ""),
        )

    @property
    def _identity(self) -> str:
        """The identity of sources in the cluster that is written to."""
        return f"kafka:{self._writer.cluster_id}"

    def _own_transactions(self, call: str) -> OwnTransactions:
        if self._transactions is None:
            raise StreamStateError(
                f"{call} needs transactions: open the writer with transactional_id="
            )
        return self._transactions

    def _cursors(self, checkpoint: Checkpoint) -> dict[Partition, Cursor]:
        if checkpoint.source != self._identity:
            raise StreamStateError(
                f"these are positions of {checkpoint.source}, not of {self._identity}: a "
                f"transaction holds positions of its own cluster only"
            )
        return {
            Partition.of(id_): state.position
            for id_, state in checkpoint.splits.items()
            if isinstance(state.position, Cursor)
        }


def _anew(checkpoint: Checkpoint | None) -> set[Partition]:
    """Return the partitions that were lost, and are read from their beginning again."""
    splits = {} if checkpoint is None else checkpoint.splits
    return {Partition.of(id_) for id_, state in splits.items() if state.anew}


def _of_member(checkpoint: Checkpoint) -> MemberPositions | None:
    """Return positions as those that a member of a group has delivered; None without a group."""
    shared = checkpoint.shared
    if not isinstance(shared, SharedSplits) or not isinstance(shared.membership, ConsumerMember):
        return None
    positions = {id_: state.position for id_, state in checkpoint.splits.items()}
    return MemberPositions(shared, shared.membership, positions)
