"""Fetch from each broker the partitions whose readers wait for records, and no others.

A partition whose reader does not wait is not fetched: that is the back-pressure.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from aiokafka.errors import KafkaConnectionError

from fanout.core.cancellation import TaskScope, cancelled_by_us
from fanout.errors import MalformedEventError
from fanout.kafka.reading.leaders import Leaders
from fanout.kafka.reading.transport import Fetched, FetchRefused, PartitionFetch, Throttled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from fanout.kafka.partitions import Partition
    from fanout.kafka.reading.transport import FetchAnswer, KafkaTransport

# How long a broker may wait for records while a partition is held back, in seconds. A connection
# carries one request after the other, so a partition that is fetched again waits for the answer to
# the request before. While no partition is held back, the wait is as long as the user allows, and
# idle partitions cost little.
_SHORT: Final = 0.01
# A partition that its consumer held back for a second may wait a tenth of that when it is fetched
# again. So a busy partition among idle ones keeps its rate, and while the consumer works on a batch
# for a minute the brokers do not get a hundred requests a second.
_PART_OF_HOLD: Final = 0.1

# While other partitions have records, partitions that had none the last time are fetched this
# often, in seconds: hundreds of them in each request would take longer than the records. A few
# cost little, and their records would wait.
_SELDOM: Final = 0.05
_FEW: Final = 16

# While all readers have read to the end, requests to a broker begin at least this far apart, in
# seconds, so that records gather there: an answer takes several times as long as a record in it.
# A request that has waited for longer has no pause behind it. A consumer that collects records sets
# more.
_POLL_SECONDS: Final = 0.001

# While a broker throttles, readers whose patience ends are answered this often, in seconds.
_THROTTLE_STEP: Final = 0.25

# The least bytes that a partition requests, however many partitions there are.
_LEAST_BYTES: Final = 16 * 1024


@final
@dataclass(slots=True, eq=False)
class _PendingFetch:
    """The fetch of one partition for which its reader waits."""

    partition: Partition
    request: PartitionFetch
    empty_at: float  # from then on an answer without records is delivered too
    urgent: bool  # its request is sent without a pause
    answer: asyncio.Future[FetchAnswer | None]  # None: fetch from another broker
    was_empty: bool = False


@final
class Fetcher:
    """Fetch for all partitions of a connection, with one request at a time to each broker.

    Args:
        max_partition_bytes: About the most bytes that are fetched of one partition at once.
        max_bytes_in_flight: The memory limit of all partitions together.
        max_wait: How long a broker may wait for records, in seconds.
    """

    def __init__(
        self,
        transport: KafkaTransport,
        *,
        max_partition_bytes: int,
        max_bytes_in_flight: int,
        max_wait: float = 0.5,
    ) -> None:
        self.leaders = Leaders(transport)
        self._transport = transport
        self._max_partition_bytes = max_partition_bytes
        self._max_bytes_in_flight = max_bytes_in_flight
        self._max_wait = max_wait
        self._poll_seconds = _POLL_SECONDS
        self._subscribed: set[Partition] = set()
        self._brokers: dict[int, _Broker] = {}
        self._tasks = TaskScope()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Fetch while the block runs; it is entered once, and no task outlives it."""
        async with self._tasks:
            yield

    @property
    def allowance(self) -> int:
        """How many bytes a partition may request, so that all can request at once.

        All together request at most half of the memory limit. An idle partition keeps its
        reservation while it waits, and would block others; the other half is for answers that
        wait for the consumer, and for answers that are larger than requested.
        """
        share = self._max_bytes_in_flight // (2 * max(1, len(self._subscribed)))
        return min(self._max_partition_bytes, max(share, _LEAST_BYTES))

    def poll_every(self, seconds: float) -> None:
        """Set how far apart requests to a broker begin while all readers have read to the end."""
        self._poll_seconds = seconds
        for broker in self._brokers.values():
            broker.poll_seconds = seconds

    def poll_now(self) -> bool:
        """Send the requests at once that wait for records to gather; return whether one did."""
        sent = [broker.poll_now() for broker in self._brokers.values()]
        return any(sent)

    @contextmanager
    def subscribed(self, partition: Partition) -> Iterator[None]:
        """Count a partition as subscribed, fetched or held back, during a block."""
        assert partition not in self._subscribed, "a partition has one reader"
        self._subscribed.add(partition)
        leader = self._transport.leader(partition)
        if leader is not None:
            self._broker(leader).hold(partition, asyncio.get_running_loop().time())
        try:
            yield
        finally:
            self._subscribed.discard(partition)
            for broker in self._brokers.values():
                broker.forget(partition)

    async def fetch(
        self,
        partition: Partition,
        request: PartitionFetch,
        *,
        patience: float,
        urgent: bool,
    ) -> Fetched | Throttled:
        """Wait for the records from an offset; one call at a time for a subscribed partition.

        After `patience` seconds an answer without records is returned too, or `Throttled` where a
        quota keeps them back for longer. An `urgent` request is sent without a pause; it is not
        where the reader has read to the end of the partition, as the last answer named it. A
        cancellation drops the broker's answer.

        Raises:
            KafkaError: If the broker refuses, or the partition has no leader.
            Exception: Any other error of the transport.
        """
        loop = asyncio.get_running_loop()
        empty_at = loop.time() + patience
        while True:
            broker = self._broker(await self.leaders.of(partition))
            match await self._wait(
                broker, _PendingFetch(partition, request, empty_at, urgent, loop.create_future())
            ):
                case Fetched() | Throttled() as answer:
                    return answer
                case FetchRefused(error):
                    # One metadata request too many costs less than a list of all the errors that
                    # stale metadata causes.
                    self.leaders.mark_stale(partition)
                    raise error
                case None:
                    urgent = True

    async def _wait(self, broker: _Broker, pending: _PendingFetch) -> FetchAnswer | None:
        broker.add(pending)
        if broker.task is None:
            broker.task = self._tasks.spawn(broker.run(), f"fanout {broker}")
        try:
            return await pending.answer
        finally:
            broker.withdraw(pending)

    def _broker(self, number: int) -> _Broker:
        if number not in self._brokers:
            self._brokers[number] = _Broker(
                number, self._transport, self._max_wait, poll_seconds=self._poll_seconds
            )
        return self._brokers[number]


@final
class _Broker:
    """Send fetch requests to one broker for as long as readers wait for its partitions.

    `task` runs it while readers wait; else it is None. `max_wait` and `poll_seconds` are Fetcher's.
    """

    def __init__(
        self, number: int, transport: KafkaTransport, max_wait: float, *, poll_seconds: float
    ) -> None:
        self.task: asyncio.Task[None] | None = None
        self.poll_seconds = poll_seconds
        self._pause: asyncio.Event | None = None  # while records gather; set to go on
        self._number = number
        self._transport = transport
        self._max_wait = max_wait
        # The longest wait comes first. A broker fills its answer in this order until it is full,
        # and returns a batch larger than requested only for the first partition that has records
        # (KIP-74): a partition that was left out moves to the front.
        self._pending: dict[Partition, _PendingFetch] = {}
        # The subscribed partitions whose readers do not wait, the latest last, and since when.
        self._held: dict[Partition, float] = {}
        self._all_fetched_at = -_SELDOM
        self._throttled_until = 0.0

    def __str__(self) -> str:
        return f"broker {self._number}"

    def add(self, pending: _PendingFetch) -> None:
        """Add a fetch, to be sent with the next request."""
        assert pending.partition not in self._pending, "a partition has one fetch at a time"
        self._held.pop(pending.partition, None)
        self._pending[pending.partition] = pending
        if pending.urgent and self._pause is not None:
            self._pause.set()

    def withdraw(self, pending: _PendingFetch) -> None:
        """Remove a fetch, if it has not been answered yet."""
        self._pending.pop(pending.partition, None)

    def hold(self, partition: Partition, since: float) -> None:
        """Note since when the reader of a subscribed partition does not wait."""
        self._held[partition] = since

    def forget(self, partition: Partition) -> None:
        """Note that a partition is not subscribed any more."""
        self._held.pop(partition, None)

    async def run(self) -> None:
        """Fetch until no reader waits; readers get the errors of their fetches."""
        while self._pending:
            await self._round()
        self.task = None  # no await in between: the next fetch starts another task

    async def _round(self) -> None:
        """Send one request, and distribute its answers."""
        now = asyncio.get_running_loop().time
        began = now()
        if (left := self._throttled_until - began) > 0:
            await asyncio.sleep(min(left, _THROTTLE_STEP))
            self._hand_out_throttled()
            return
        answered = await self._request()
        waited = now() - began
        if answered:
            await self._let_records_gather(self.poll_seconds - waited)
        else:
            # The broker should have waited; a broker that did not wait gets a pause.
            await asyncio.sleep(0 if waited >= _SHORT else _SHORT)

    async def _request(self) -> int:
        """Send one request; return how many fetches it has answered, and keep no answer."""
        chosen, max_wait = self._choose()
        return self._hand_out(chosen, await self._fetch(chosen, max_wait))

    async def _let_records_gather(self, seconds: float) -> None:
        await asyncio.sleep(0)  # readers that got an answer may fetch again in this turn
        if self._is_urgent():
            return
        await asyncio.sleep(0)  # the consumer comes first, as there is no other record yet
        if seconds <= 0 or self._is_urgent():
            return
        self._pause = asyncio.Event()
        timer = asyncio.get_running_loop().call_later(seconds, self._pause.set)
        try:
            await self._pause.wait()
        finally:
            timer.cancel()
            self._pause = None

    def _is_urgent(self) -> bool:
        return any(one.urgent for one in self._pending.values())

    def poll_now(self) -> bool:
        """End a pause in which records gather; return whether it delayed a request."""
        if self._pause is None:
            return False
        self._pause.set()
        self._all_fetched_at = -_SELDOM
        return bool(self._pending)

    async def _fetch(
        self, chosen: Sequence[_PendingFetch], max_wait: float
    ) -> Mapping[Partition, FetchAnswer]:
        """Send one request; if it fails, its error is the answer for every partition.

        A reader that raises an error drops the frames that it passed through, so they stay here.
        """
        fetches = {pending.partition: pending.request for pending in chosen}
        try:
            return await self._transport.fetch(self._number, fetches, max_wait=max_wait)
        except asyncio.CancelledError as error:
            if cancelled_by_us():
                raise
            lost = KafkaConnectionError(f"a request to {self} was cancelled, but not by us")
            lost.__cause__ = error
            return dict.fromkeys(fetches, FetchRefused(lost))
        except Exception as error:  # noqa: BLE001 - the readers raise it
            return dict.fromkeys(fetches, FetchRefused(error))

    def _choose(self) -> tuple[Sequence[_PendingFetch], float]:
        """Return the fetches of the next request, and how long the broker may wait."""
        now = asyncio.get_running_loop().time()
        pending = tuple(self._pending.values())
        likely = tuple(one for one in pending if not one.was_empty)
        unlikely = len(pending) - len(likely)
        if likely and unlikely > _FEW and now - self._all_fetched_at < _SELDOM:
            return likely, _SHORT
        self._all_fetched_at = now
        if not self._held:
            return pending, self._max_wait
        held = now - next(reversed(self._held.values()))
        return pending, min(self._max_wait, max(_SHORT, held * _PART_OF_HOLD))

    def _hand_out(
        self, chosen: Sequence[_PendingFetch], answers: Mapping[Partition, FetchAnswer]
    ) -> int:
        """Answer the fetches whose wait is over; return their number."""
        now = asyncio.get_running_loop().time()
        answered = 0
        for pending in chosen:
            answer: FetchAnswer | None = answers.get(pending.partition) or FetchRefused(
                MalformedEventError(f"{self} has sent no answer for {pending.partition}")
            )
            if isinstance(answer, Throttled):
                self._throttled_until = max(self._throttled_until, now + answer.seconds)
                continue
            if pending.answer.done():
                continue
            if isinstance(answer, Fetched) and not answer.batches and now < pending.empty_at:
                # A leader may name a nearer replica instead of records (KIP-392).
                if self._transport.leader(pending.partition) in {None, self._number}:
                    # Where there are records, the answer was full before it reached this partition.
                    pending.was_empty = answer.last_stable_offset <= pending.request.offset
                    pending.urgent = pending.urgent and not pending.was_empty
                    continue
                answer = None
            self.withdraw(pending)
            if isinstance(answer, Fetched):
                self.hold(pending.partition, now)
            pending.answer.set_result(answer)
            answered += 1
        return answered

    def _hand_out_throttled(self) -> None:
        """Answer the fetches whose patience ends while the broker throttles."""
        now = asyncio.get_running_loop().time()
        for pending in tuple(self._pending.values()):
            if now >= pending.empty_at and not pending.answer.done():
                self.withdraw(pending)
                pending.answer.set_result(Throttled(max(0.0, self._throttled_until - now)))
