"""Send batches to the leaders of their partitions, in order, until they are confirmed."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, final

from aiokafka.errors import KafkaError, LeaderNotAvailableError, UnknownTopicOrPartitionError

from fanout.core.cancellation import TaskScope
from fanout.core.statistics import WriterStatistics
from fanout.errors import ServiceError, StreamStateError, WriteTimeoutError
from fanout.kafka.intervals import KAFKA_INTERVALS
from fanout.kafka.partitions import Partition
from fanout.kafka.writing.delivery import Part
from fanout.kafka.writing.policy import TOO_LARGE, final_error
from fanout.kafka.writing.produce_requests import (
    PartitionQueue,
    ProduceBatch,
    RetainedBytes,
    WriteBuffers,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

    import pyarrow as pa

    from fanout.core.backoff import FullJitter
    from fanout.kafka.protocol.cluster_metadata import ClusterMetadata
    from fanout.kafka.writing.delivery import Delivery
    from fanout.kafka.writing.produce_requests import ProduceRequests
    from fanout.kafka.writing.write_options import ProducerOptions

# Requests to one broker at a time, for different partitions: while the broker handles one, the next
# is sent.
_IN_FLIGHT: Final = 2
CLOSED: Final = "the writer is closed; use it inside its `async with` block"
"""The error of a call to a writer whose block has ended."""


@final
class Sender:
    """Send batches, and send them again after errors that may pass.

    Each partition has one batch in flight at a time, so that its records keep their order through
    every failure. A request holds batches of as many partitions as fit. A final error ends the
    sending, and every waiting call raises it.
    """

    def __init__(
        self,
        requests: ProduceRequests,
        metadata: ClusterMetadata,
        *,
        options: ProducerOptions,
        jitter: FullJitter,
    ) -> None:
        self._requests = requests
        self._metadata = metadata
        self._options = options
        self._jitter = jitter
        self._queues: dict[Partition, PartitionQueue] = {}
        # The queues with batches and none in flight; the first has waited longest.
        self._ready: dict[PartitionQueue, None] = {}
        # Those whose batch was sent last, until the batch behind it was encoded.
        self._sent: dict[PartitionQueue, None] = {}
        self._in_flight: Counter[int] = Counter()
        self._waiting = 0
        self._retained = RetainedBytes()
        self._latest: WriteBuffers | None = None
        self._progress = asyncio.Event()
        self._failure: Exception | None = None
        self._tasks = TaskScope()
        self.queued = 0
        self.rows = 0
        self.bytes = 0
        self.partitions: Counter[Partition] = Counter()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send while the block runs; batches that are not sent at its end are dropped."""
        async with self._tasks:
            try:
                yield
            finally:
                self._failure = self._failure or StreamStateError(CLOSED)
                dropped = StreamStateError("the writer was closed before brokers confirmed")
                self._fail_deliveries(dropped)
                self._progress.set()

    async def locate(self, partitions: Collection[Partition]) -> None:
        """Check that partitions can be written to, and that the sending has not failed."""
        self._check()
        new = [each for each in partitions if each not in self._queues]
        if any(self._metadata.leader(each) is None for each in new):
            await self._wait_for_leaders(new, self._deadline())
        for each in new:
            self._queues[each] = PartitionQueue(each)

    @property
    def cluster_id(self) -> str:
        """The id of the cluster."""
        return self._metadata.cluster_id

    async def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic had when it was first located."""
        await self.locate([Partition(topic, 0)])
        return self._metadata.partition_count(topic)

    def begin_write(self, size: int, encoded: int) -> WriteBuffers:
        """Return the buffers of the rows that are put next, and take this many bytes encoded.

        Rows of earlier writes are copied if they keep more confirmed rows in memory than
        `buffer.memory`: small ones wait for a leader, and the other partitions go on. The latest
        write is usually still under way.
        """
        under_way = 0 if self._latest is None else self._latest.retained
        retained = self._retained.nbytes - under_way
        if retained > self._options.buffer_memory:
            for queue in self._queues.values():
                for batch in queue.batches:
                    if batch.buffers is not self._latest:
                        batch.copy_rows()
        self._latest = WriteBuffers(self._retained, size, encoded)
        return self._latest

    async def put(
        self,
        partition: Partition,
        rows: pa.RecordBatch,
        nbytes: int,
        *,
        delivery: Delivery | None,
        buffers: WriteBuffers,
        records: Callable[[], pa.Buffer] | None = None,
    ) -> None:
        """Queue rows for a located partition, when `buffer.memory` has room for them.

        The rows are as `encode_record_batch` takes them, and take at most `nbytes` when encoded.
        `records` is that of the batch.
        """
        self._check()
        while self._waiting and self._waiting + nbytes > self._options.buffer_memory:
            await self._wait_for_progress()
        queue = self._queues[partition]
        if not queue.batches:
            self._ready[queue] = None
        parts = [] if delivery is None else [Part(delivery, len(rows))]
        batch = ProduceBatch(
            rows, nbytes, self._deadline(), parts=parts, buffers=buffers, records=records
        )
        buffers.slices += 1
        queue.batches.append(batch)
        self._waiting += nbytes
        self.queued += len(rows)

    def start(self) -> None:
        """Send what can be sent now."""
        chosen: defaultdict[int, list[PartitionQueue]] = defaultdict(list)
        room: defaultdict[int, int] = defaultdict(lambda: self._options.max_request_size)
        leaderless = []
        for queue in self._ready:
            leader = self._metadata.leader(queue.partition)
            if leader is None:
                leaderless.append(queue)
            elif self._in_flight[leader] < _IN_FLIGHT:
                queue.shape_first(self._options.batch_size)
                nbytes = queue.batches[0].nbytes
                if nbytes <= room[leader] or not chosen[leader]:
                    chosen[leader].append(queue)
                    room[leader] -= nbytes
        for leader, queues in chosen.items():
            self._in_flight[leader] += 1
            self._run(partial(self._send, leader, queues), queues)
        if leaderless:
            no_leader = LeaderNotAvailableError("partitions have no leader")
            self._run(partial(self._recover, leaderless, no_leader), leaderless)

    async def flush(self) -> None:
        """Wait until all queued rows are confirmed."""
        while self._waiting:
            await self._wait_for_progress()
        self._check()
        await self._requests.settle()

    def next_transaction(self) -> None:
        """Go on in a new transaction, after the one before was ended."""
        self._requests.next_transaction()

    def statistics(self) -> WriterStatistics:
        """Return the counters, without transactions."""
        return WriterStatistics(
            records=self.rows,
            bytes=self.bytes,
            requests=self._requests.sent,
            retries=self._requests.sent_again,
            throttled=self._requests.throttled,
            waiting_bytes=self._waiting,
        )

    async def _wait_for_progress(self) -> None:
        """Wait until a batch is confirmed or fails; encode meanwhile what is sent next."""
        self._check()
        self.start()
        self._progress.clear()
        await asyncio.sleep(0)  # the requests begin now
        if not self._progress.is_set():
            sent, self._sent = self._sent, {}
            with suppress(Exception):  # what sends it raises the error again
                for queue in sent:
                    queue.encode_second(self._options.batch_size)
        await self._progress.wait()
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self, work: Callable[[], Awaitable[None]], queues: Sequence[PartitionQueue]) -> None:
        for queue in queues:
            del self._ready[queue]
        self._tasks.spawn(self._guard(work))

    async def _guard(self, work: Callable[[], Awaitable[None]]) -> None:
        """Store a final error, which every waiting call raises."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - the waiting calls raise it
            if self._failure is None:
                self._failure = error
            self._ready.clear()
            self._fail_deliveries(self._failure)
        else:
            if self._failure is None:
                self.start()
        self._progress.set()

    async def _send(self, leader: int, queues: Sequence[PartitionQueue]) -> None:
        batches = {queue.partition: queue.batches[0] for queue in queues}
        self._sent.update(dict.fromkeys(queues))
        try:
            answers = await self._requests.send(leader, batches)
        finally:
            self._in_flight[leader] -= 1
        failed: list[PartitionQueue] = []
        failure: KafkaError | None = None
        for queue in queues:
            error = answers[queue.partition]
            if error is None:
                self._confirm(queue)
            elif isinstance(error, TOO_LARGE) and len(queue.batches[0].rows) > 1:
                queue.max_bytes = queue.batches[0].nbytes // 2
                self._ready[queue] = None
            elif (final := final_error(error)) is not None:
                raise final from error
            else:
                failed.append(queue)
                failure = error
        # Partitions that succeeded go on meanwhile.
        self.start()
        if failure is not None:
            await self._recover(failed, failure)

    def _confirm(self, queue: PartitionQueue) -> None:
        batch = queue.batches.popleft()
        queue.failures = 0
        self._waiting -= batch.nbytes
        batch.release()
        assert batch.data is not None
        self.rows += len(batch.rows)
        self.bytes += sum(map(len, batch.data))
        self.partitions[queue.partition] += len(batch.rows)
        batch.report(queue.partition)
        if queue.batches:
            self._ready[queue] = None

    async def _recover(self, queues: Sequence[PartitionQueue], error: KafkaError) -> None:
        """Refresh the leaders of partitions, after a pause that grows with their failures."""
        deadline = min(queue.batches[0].deadline for queue in queues)
        if asyncio.get_running_loop().time() >= deadline:
            raise _timed_out(error) from error
        await asyncio.sleep(self._jitter.delay(max(queue.failures for queue in queues)))
        for queue in queues:
            queue.failures += 1
        partitions = [queue.partition for queue in queues]
        await self._wait_for_leaders(partitions, deadline)
        self._ready.update(dict.fromkeys(queues))

    async def _wait_for_leaders(self, partitions: Collection[Partition], deadline: float) -> None:
        """Refresh the metadata until every partition has a leader, or until a deadline.

        A broker that has just started may report topics as unknown for a while.
        """
        clock = asyncio.get_running_loop().time
        unknown_since = None
        attempts = 0
        while (error := await self._refresh(partitions)) is not None:
            self._check()
            if (final := final_error(error)) is not None:
                raise final from error
            if not isinstance(error, UnknownTopicOrPartitionError):
                unknown_since = None
            elif unknown_since is None:
                unknown_since = clock()
            elif clock() - unknown_since >= KAFKA_INTERVALS.current.topic_missing_after:
                raise ServiceError(
                    f"the cluster has no such topic or partition: {error}; create it before it is "
                    "written to"
                ) from error
            if clock() >= deadline:
                raise _timed_out(error) from error
            await asyncio.sleep(self._jitter.delay(attempts))
            attempts += 1

    async def _refresh(self, partitions: Collection[Partition]) -> KafkaError | None:
        """Refresh the metadata; return why a partition has no leader, a final error first."""
        try:
            await self._metadata.refresh(partition.topic for partition in partitions)
        except KafkaError as error:
            return error
        metadata = self._metadata
        errors = [metadata.error(each) for each in partitions if metadata.leader(each) is None]
        return min(errors, key=lambda error: bool(error.retriable), default=None)

    def _fail_deliveries(self, error: Exception) -> None:
        for queue in self._queues.values():
            for batch in queue.batches:
                for part in batch.parts:
                    part.delivery.fail(error)

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._options.delivery_timeout


def _timed_out(error: Exception) -> WriteTimeoutError:
    return WriteTimeoutError(
        "the cluster did not confirm records within delivery.timeout.ms; the error of the last "
        f"attempt: {error}; check that its brokers are up, or raise the timeout"
    )
