"""Send batches to the leaders of their partitions, each partition's in order, until confirmed."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, final

from aiokafka.errors import LeaderNotAvailableError

from fanout.kafka.writing.policy import TOO_LARGE, final_error
from fanout.kafka.writing.produce_requests import PartitionQueue, ProduceBatch
from fanout.kafka.writing.topic_metadata import wait_for_leaders, write_timeout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

    import pyarrow as pa
    from aiokafka.errors import KafkaError

    from fanout.core.backoff import FullJitter
    from fanout.kafka.partitions import Partition
    from fanout.kafka.writing.produce_requests import ProduceRequests
    from fanout.kafka.writing.producer_options import ProducerOptions
    from fanout.kafka.writing.topic_metadata import TopicMetadata

__all__ = ("Sender",)

# While a broker works on one request, the next is on its way. They are of different partitions.
_IN_FLIGHT: Final = 2


@final
class Sender:
    """Send batches, and send them again where that may help.

    Each partition has one batch on its way at a time, so that its records keep their order through
    every failure. A request holds batches of as many partitions as fit. What is final ends the
    sending, and is raised by all that waits.

    Args:
        requests: Sends one request.
        topology: Knows the leaders.
        options: Sizes and times.
        jitter: How long to wait between two attempts.
    """

    def __init__(
        self,
        requests: ProduceRequests,
        topology: TopicMetadata,
        *,
        options: ProducerOptions,
        jitter: FullJitter,
    ) -> None:
        self._requests = requests
        self._topology = topology
        self._options = options
        self._jitter = jitter
        self._queues: dict[Partition, PartitionQueue] = {}
        # Those with something to send of which nothing is on its way; the first has waited longest.
        self._ready: dict[PartitionQueue, None] = {}
        self._in_flight: Counter[int] = Counter()
        self._waiting = 0
        self._progress = asyncio.Event()
        self._failure: Exception | None = None
        self._group: asyncio.TaskGroup
        self._tasks: set[asyncio.Task[None]] = set()
        self.rows = 0
        self.bytes = 0
        self.partitions: Counter[Partition] = Counter()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Send while the block runs; what has not been sent at its end is dropped."""
        # The block's own error is carried around the task group, which would wrap it in a group.
        failure: BaseException | None = None
        async with asyncio.TaskGroup() as self._group:
            try:
                yield
            except BaseException as raised:  # noqa: BLE001 - raised again below
                failure = raised
            for task in self._tasks:
                task.cancel()
        if failure is not None:
            raise failure

    async def locate(self, partitions: Collection[Partition]) -> None:
        """Make sure that partitions exist, and that there is no failure yet.

        Raises:
            FanOutError: A partition cannot be written to, or the sending has failed.
        """
        self._check()
        new = [each for each in partitions if each not in self._queues]
        if any(self._topology.leader(each) is None for each in new):
            await wait_for_leaders(
                self._topology, new, deadline=self._deadline(), jitter=self._jitter
            )
        for each in new:
            self._queues[each] = PartitionQueue(each)

    async def put(self, partition: Partition, rows: pa.RecordBatch, nbytes: int) -> None:
        """Take rows for a partition that was located, once there is room for them.

        Args:
            partition: The partition.
            rows: The rows, as `encode` takes them.
            nbytes: The most bytes that they take.

        Raises:
            FanOutError: The sending has failed.
        """
        while self._waiting and self._waiting + nbytes > self._options.buffer_memory:
            await self._move()
        queue = self._queues[partition]
        if not queue.batches:
            self._ready[queue] = None
        queue.batches.append(ProduceBatch(rows, nbytes, self._deadline()))
        self._waiting += nbytes

    def start(self) -> None:
        """Send what can be sent now."""
        chosen: defaultdict[int, list[PartitionQueue]] = defaultdict(list)
        room: defaultdict[int, int] = defaultdict(lambda: self._options.max_request_size)
        homeless = []
        for queue in self._ready:
            leader = self._topology.leader(queue.partition)
            if leader is None:
                homeless.append(queue)
            elif self._in_flight[leader] < _IN_FLIGHT:
                queue.shape_first(self._options.batch_size)
                nbytes = queue.batches[0].nbytes
                if nbytes <= room[leader] or not chosen[leader]:
                    chosen[leader].append(queue)
                    room[leader] -= nbytes
        for leader, queues in chosen.items():
            self._in_flight[leader] += 1
            self._run(partial(self._send, leader, queues), queues)
        if homeless:
            nobody = LeaderNotAvailableError("partitions have no leader")
            self._run(partial(self._recover, homeless, nobody), homeless)

    async def flush(self) -> None:
        """Wait until everything that was put is confirmed.

        Raises:
            FanOutError: The sending has failed.
        """
        while self._waiting:
            await self._move()
        self._check()
        await self._requests.settle()

    def next_transaction(self) -> None:
        """Go on in a new transaction, after the one before was ended."""
        self._requests.next_transaction()

    async def _move(self) -> None:
        """Wait until something was confirmed."""
        self.start()
        self._check()
        self._progress.clear()
        await self._progress.wait()
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self, work: Callable[[], Awaitable[None]], queues: Sequence[PartitionQueue]) -> None:
        for queue in queues:
            del self._ready[queue]
        task = self._group.create_task(self._guard(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, work: Callable[[], Awaitable[None]]) -> None:
        """Have what is final raised by all that waits."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - raised by those who wait
            if self._failure is None:
                self._failure = error
            self._ready.clear()
        else:
            if self._failure is None:
                self.start()
        self._progress.set()

    async def _send(self, leader: int, queues: Sequence[PartitionQueue]) -> None:
        batches = {queue.partition: queue.batches[0] for queue in queues}
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
        # What succeeded goes on meanwhile.
        self.start()
        if failure is not None:
            await self._recover(failed, failure)

    def _confirm(self, queue: PartitionQueue) -> None:
        batch = queue.batches.popleft()
        queue.failures = 0
        self._waiting -= batch.nbytes
        assert batch.data is not None
        self.rows += len(batch.rows)
        self.bytes += len(batch.data)
        self.partitions[queue.partition] += len(batch.rows)
        if queue.batches:
            self._ready[queue] = None

    async def _recover(self, queues: Sequence[PartitionQueue], error: KafkaError) -> None:
        """Find out who leads partitions now, after a pause that grows with their failures."""
        deadline = min(queue.batches[0].deadline for queue in queues)
        if asyncio.get_running_loop().time() >= deadline:
            raise write_timeout(error) from error
        await asyncio.sleep(self._jitter.delay(max(queue.failures for queue in queues)))
        for queue in queues:
            queue.failures += 1
        partitions = [queue.partition for queue in queues]
        await wait_for_leaders(self._topology, partitions, deadline=deadline, jitter=self._jitter)
        self._ready.update(dict.fromkeys(queues))

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._options.delivery_timeout
