"""Ask each broker for the partitions whose readers wait for data, and for no others.

Who does not ask is not fetched: that is the back-pressure.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from aiokafka.errors import KafkaConnectionError

from fanout.core.cancellation import cancelled_by_us
from fanout.errors import MalformedEventError
from fanout.kafka.reading.leaders import Leaders
from fanout.kafka.reading.transport import Fetched, FetchRefused, PartitionFetch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from fanout.kafka.partitions import Partition
    from fanout.kafka.reading.transport import FetchAnswer, KafkaTransport

__all__ = ("Fetcher",)

# How long a broker may wait for data while a partition does not ask, in seconds. A connection
# carries one request after the other, so a partition that asks again waits until the request before
# has been answered. While every partition asks, nobody can: then the wait is as long as the user
# lets it be, and idle partitions cost little.
_SHORT: Final = 0.01
# A partition that its consumer has held back for a second may wait a tenth of that when it asks
# again. So a busy partition beside idle ones keeps its rate, and while the consumer works on a
# batch for a minute the brokers are not asked a hundred times a second.
_PART_OF_HOLD: Final = 0.1

# While others have data, partitions that had none the last time are asked for this often, in
# seconds: to ask for hundreds of them in each request would take longer than to fetch the data.
_SELDOM: Final = 0.05

# What a partition asks for at the least, however many there are.
_LEAST_BYTES: Final = 16 * 1024


@final
@dataclass(slots=True, eq=False)
class _Ask:
    """One reader's question, until it is answered."""

    partition: Partition
    wanted: PartitionFetch
    content_at: float  # from when on the answer that there is nothing is one as well
    answer: asyncio.Future[FetchAnswer | None]  # None: another broker is to be asked
    had_nothing: bool = False


@final
class Fetcher:
    """Fetch for all partitions of a connection, with one request at a time to each broker.

    Args:
        transport: The calls.
        max_partition_bytes: About the most bytes that are asked of one partition at once.
        max_bytes_in_flight: The bound on the memory of all partitions together.
        max_wait: How long a broker may wait for data, in seconds.
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
        self._subscribed: set[Partition] = set()
        self._brokers: dict[int, _Broker] = {}
        self._tasks: asyncio.TaskGroup

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Fetch while the block runs; it is entered once, and no task outlives it."""
        # The block's own error is carried around the task group, which would wrap it in a group.
        failure: BaseException | None = None
        async with asyncio.TaskGroup() as self._tasks:
            try:
                yield
            except BaseException as raised:  # noqa: BLE001 - raised again below
                failure = raised
            for broker in self._brokers.values():
                if broker.task is not None:
                    broker.task.cancel()
        if failure is not None:
            raise failure

    @property
    def allowance(self) -> int:
        """How many bytes a partition may ask for, so that all can ask at once.

        All together ask for half of the memory at the most. A partition that is idle keeps what
        it has reserved while it waits, and would keep others from asking; the other half is for
        answers that wait for the consumer, and for those that are larger than what was asked.
        """
        share = self._max_bytes_in_flight // (2 * max(1, len(self._subscribed)))
        return min(self._max_partition_bytes, max(share, _LEAST_BYTES))

    @contextmanager
    def subscribed(self, partition: Partition) -> Iterator[None]:
        """Count a partition as one that is read, asking or held back, during a block."""
        assert partition not in self._subscribed, "a partition has one reader"
        self._subscribed.add(partition)
        leader = self._transport.leader(partition)
        if leader is not None:
            self._broker(leader).hold(partition)
        try:
            yield
        finally:
            self._subscribed.discard(partition)
            for broker in self._brokers.values():
                broker.forget(partition)

    async def fetch(
        self, partition: Partition, offset: int, max_bytes: int, *, patience: float
    ) -> Fetched:
        """Wait for what comes at an offset; one call at a time for a subscribed partition.

        Args:
            partition: The partition.
            offset: The first offset that is wanted.
            max_bytes: About how many bytes are wanted; the first batch comes whole.
            patience: Seconds after which an answer without data is one as well.

        Raises:
            KafkaError: If the broker refuses, or nobody leads the partition.
            Exception: Whatever else the transport raises, or went wrong here.

        Cancellation: what the broker sends in answer is dropped.
        """
        loop = asyncio.get_running_loop()
        wanted, content_at = PartitionFetch(offset, max_bytes), loop.time() + patience
        while True:
            broker = self._broker(await self.leaders.of(partition))
            match await self._ask(
                broker, _Ask(partition, wanted, content_at, loop.create_future())
            ):
                case Fetched() as fetched:
                    return fetched
                case FetchRefused(error):
                    # Metadata that is asked for once too often costs less than a list of all the
                    # errors that come of an old one.
                    self.leaders.doubt(partition)
                    raise error
                case None:
                    continue

    async def _ask(self, broker: _Broker, ask: _Ask) -> FetchAnswer | None:
        broker.ask(ask)
        if broker.task is None:
            broker.task = self._tasks.create_task(broker.run(), name=f"fanout {broker}")
        try:
            return await ask.answer
        finally:
            broker.withdraw(ask)

    def _broker(self, number: int) -> _Broker:
        if number not in self._brokers:
            self._brokers[number] = _Broker(number, self._transport, self._max_wait)
        return self._brokers[number]


@final
class _Broker:
    """Ask one broker again and again, for as long as somebody wants something of it.

    `task` is what runs it, while somebody asks.

    Args:
        number: The broker.
        transport: The calls.
        max_wait: How long it may wait for data, in seconds.
    """

    def __init__(self, number: int, transport: KafkaTransport, max_wait: float) -> None:
        self.task: asyncio.Task[None] | None = None
        self._number = number
        self._transport = transport
        self._max_wait = max_wait
        # Who has waited longest comes first. A broker fills its answer in this order until it is
        # full, and gives only the first that has data a batch that is larger than what was asked
        # (KIP-74): whoever was left out moves to the front.
        self._asks: dict[Partition, _Ask] = {}
        # Who was answered and has not asked again, the latest last, and since when.
        self._held: dict[Partition, float] = {}
        self._all_asked_at = -_SELDOM

    def __str__(self) -> str:
        return f"broker {self._number}"

    def ask(self, ask: _Ask) -> None:
        """Take a question."""
        assert ask.partition not in self._asks, "a partition asks once at a time"
        self._held.pop(ask.partition, None)
        self._asks[ask.partition] = ask

    def withdraw(self, ask: _Ask) -> None:
        """Forget a question; nothing happens where it was answered."""
        self._asks.pop(ask.partition, None)

    def hold(self, partition: Partition) -> None:
        """Note that a partition that is read does not ask from now on."""
        self._held[partition] = asyncio.get_running_loop().time()

    def forget(self, partition: Partition) -> None:
        """Note that a partition is not read any more."""
        self._held.pop(partition, None)

    async def run(self) -> None:
        """Fetch until nobody asks any more; what goes wrong is told to those who asked."""
        while self._asks:
            await self._round()
        self.task = None  # no await in between: whoever asks from here on starts another

    async def _round(self) -> None:
        """Send one request, and hand the answers out."""
        now = asyncio.get_running_loop().time
        began = now()
        asks, max_wait = self._choose()
        answered = self._hand_out(asks, await self._fetch(asks, max_wait))
        # Those who were answered may ask again in this very turn of the loop. Where nobody was,
        # the broker should have waited; one that does not is not asked without a pause.
        waited = now() - began >= _SHORT
        await asyncio.sleep(0 if answered or waited else _SHORT)

    async def _fetch(
        self, asks: Sequence[_Ask], max_wait: float
    ) -> Mapping[Partition, FetchAnswer]:
        """Send one request; what goes wrong is the answer to everyone.

        Whoever gets an error clears the frames that it came through, so it leaves them here.
        """
        wanted = {ask.partition: ask.wanted for ask in asks}
        try:
            return await self._transport.fetch(self._number, wanted, max_wait=max_wait)
        except asyncio.CancelledError as error:
            if cancelled_by_us():
                raise
            lost = KafkaConnectionError(f"a request to {self} was cancelled, but not by us")
            lost.__cause__ = error
            return dict.fromkeys(wanted, FetchRefused(lost))
        except Exception as error:  # noqa: BLE001 - those who asked raise it
            return dict.fromkeys(wanted, FetchRefused(error))

    def _choose(self) -> tuple[Sequence[_Ask], float]:
        """Return who is asked for in a request, and how long the broker may wait."""
        now = asyncio.get_running_loop().time()
        asks = tuple(self._asks.values())
        likely = tuple(ask for ask in asks if not ask.had_nothing)
        if likely and len(likely) < len(asks) and now - self._all_asked_at < _SELDOM:
            return likely, _SHORT
        self._all_asked_at = now
        if not self._held:
            return asks, self._max_wait
        held = now - next(reversed(self._held.values()))
        return asks, min(self._max_wait, max(_SHORT, held * _PART_OF_HOLD))

    def _hand_out(self, asks: Sequence[_Ask], answers: Mapping[Partition, FetchAnswer]) -> int:
        """Answer those whose wait is over; return how many they are."""
        now = asyncio.get_running_loop().time()
        answered = 0
        for ask in asks:
            answer: FetchAnswer | None = answers.get(ask.partition) or FetchRefused(
                MalformedEventError(f"{self} has sent no answer for {ask.partition}")
            )
            if ask.answer.done():
                continue
            if isinstance(answer, Fetched) and not answer.batches and now < ask.content_at:
                # A leader may answer that a replica near us is to be read (KIP-392).
                if self._transport.leader(ask.partition) in {None, self._number}:
                    # Where there is something, the answer was full before it came to that.
                    ask.had_nothing = answer.last_stable_offset <= ask.wanted.offset
                    continue
                answer = None
            self.withdraw(ask)
            if isinstance(answer, Fetched):
                self.hold(ask.partition)
            ask.answer.set_result(answer)
            answered += 1
        return answered
