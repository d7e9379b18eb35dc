"""One member of a stream that reads a queue: many receivers, whose records stay hidden."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final

from fanout.core.backoff import retrying
from fanout.core.cancellation import TaskScope, finished
from fanout.core.error_text import text_of
from fanout.core.lending.seam import Settlement
from fanout.core.policy import Phase, Retry
from fanout.errors import AcknowledgementError, ServiceError
from fanout.kinesis.policy import judge
from fanout.kinesis.queue.client import tens
from fanout.kinesis.queue.records import HeldRecord, to_columns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from fanout.core.backoff import FullJitter
    from fanout.core.lending.acknowledgements import MemberCounts
    from fanout.core.lending.dedup import Dedup
    from fanout.kinesis.queue.client import QueueClient, QueueDescription
    from fanout.kinesis.queue.records import PolledQueueRecords

log = logging.getLogger(__name__)

# Seconds that one poll waits for records.
_POLL_SECONDS: Final = 1.0
# Seconds for which a call is repeated that the service refuses for now.
_PATIENCE: Final = 60.0
# Of a visibility timeout: how much may be gone before it is extended, and how often one looks.
_EXTEND_BELOW: Final = 0.8
_LOOK_EVERY: Final = 0.125
# Seconds for which a record is hidden at most, one extension after another: the service's own limit
# of one timeout. Whoever has not acknowledged it by then has forgotten it.
_MAX_HELD: Final = 43_200
# Seconds for which a call may still bring records when the stream closes.
_GRACE: Final = 1.0
# Seconds in which the service hears that a call was cut off.
_CUT_OFF: Final = 0.1
# Seconds for which giving records back may take then.
_CLOSING: Final = 10.0
_MAX_WAIT: Final = 20  # seconds, the service's limit


@final
@dataclass(frozen=True, slots=True)
class Receiving:
    """What the members of one stream share.

    `held` has what any member has received and not settled, by record id; `rejected` has the
    records that were refused and are not dead letters yet.
    """

    client: QueueClient
    queue: QueueDescription
    stream: str
    visibility_timeout: int
    max_records: int
    max_bytes: int
    jitter: FullJitter
    counts: MemberCounts
    fetching: asyncio.Event
    dedup: Dedup[str]
    held: dict[str, HeldRecord] = field(default_factory=dict)
    rejected: set[str] = field(default_factory=set)

    @property
    def wait_seconds(self) -> int:
        """How long a call waits for records: after a long wait little would be left of a lock."""
        return max(1, min(self.visibility_timeout // 4, _MAX_WAIT))


@asynccontextmanager
async def open_receivers(receiving: Receiving, receivers: int) -> AsyncIterator[QueueMember]:
    """Begin to receive. Leaving the context makes what is not settled visible again, at once."""
    async with TaskScope() as tasks:
        member = QueueMember(receiving, tasks, receivers)
        loops = [tasks.spawn(member.receive()) for _ in range(receivers)]
        loops.append(tasks.spawn(member.extend()))
        try:
            yield member
        finally:
            await finished(tasks.spawn(member.close(loops)))


@final
class QueueMember:
    """Receive, settle and keep hidden; it implements `LendingMember` of `fanout.core.lending`."""

    def __init__(self, receiving: Receiving, tasks: TaskScope, receivers: int) -> None:
        self._receiving = receiving
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._calls = asyncio.Semaphore(receivers)
        self._under_way: set[asyncio.Task[Any] | None] = set()
        self._settling: set[asyncio.Task[None]] = set()
        self._buffer: deque[HeldRecord] = deque()
        self._buffered_bytes = 0
        self._held: dict[str, HeldRecord] = {}
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._error: Exception | None = None
        self._left = False

    @property
    def fetching(self) -> bool:
        """Whether records are there, or a call for some is under way."""
        return bool(self._buffer or self._under_way)

    @property
    def polls_ahead(self) -> bool:
        """Whether to poll although settlements are under way: what is held stays hidden."""
        return True

    async def poll(self) -> PolledQueueRecords | None:
        """Return what has been received, or None after a moment without records."""
        if not self._buffer and self._error is None:
            self._arrived.clear()
            try:
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._arrived.wait()
            except TimeoutError:
                return None
        if not self._buffer:
            assert self._error is not None
            raise self._error
        taken = [self._buffer.popleft() for _ in range(len(self._buffer))]
        self._buffered_bytes = 0
        self._room.set()
        return to_columns(taken, self._receiving.stream, self._receiving.queue.name)

    def acknowledge(
        self, pieces: Sequence[str], kind: Settlement, /
    ) -> asyncio.Future[Mapping[Any, Exception]]:
        """Settle records; the result is why the service did not confirm it, by record."""
        response: asyncio.Future[Mapping[Any, Exception]] = self._loop.create_future()
        if self._left:
            gone = AcknowledgementError("the member has been closed", tuple(pieces))
            response.set_result(dict.fromkeys(pieces, gone))
            return response
        held = self._take([piece for piece in pieces if piece in self._held])
        task = self._tasks.spawn(self._settle(held, kind, response))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return response

    async def receive(self) -> None:
        """Receive for ever, while there is room for more."""
        receiving = self._receiving
        while self._error is None and not self._left:
            await self._room.wait()
            await receiving.fetching.wait()
            self._under_way.add(asyncio.current_task())
            try:
                await self._receive_once()
            except Exception as error:  # noqa: BLE001 - the next poll raises it
                self._error = error
                self._arrived.set()
            finally:
                self._under_way.discard(asyncio.current_task())

    async def extend(self) -> None:
        """Keep hidden for ever what is not settled."""
        lock = self._receiving.visibility_timeout
        while True:
            await asyncio.sleep(_LOOK_EVERY * lock)
            now = self._loop.time()
            for piece in self._held:
                # It may have come before the answer that confirmed it.
                self._receiving.dedup.lent_again(piece)
            due = [
                each
                for each in self._held.values()
                if each.deadline - now < _EXTEND_BELOW * lock
                and now - each.received_at < _MAX_HELD - lock
            ]
            async with asyncio.TaskGroup() as tasks:
                for some in tens(due):
                    tasks.create_task(self._extend(some))

    async def close(self, loops: Sequence[asyncio.Task[None]]) -> None:
        """End the loops, make visible again what is held, and settle what is under way."""
        self._left = True
        calls = [each for each in loops if each in self._under_way]
        for each in loops:
            if each not in calls:
                each.cancel()
        # What a call brings that is cut off comes back only after its visibility timeout.
        if calls:
            _, late = await asyncio.wait(calls, timeout=_GRACE)
            for each in late:
                each.cancel()
            if late:
                await asyncio.wait(late)
                # A call that the service still serves would take what is given back.
                await asyncio.sleep(_CUT_OFF)
        rest = self._take([*self._held])
        try:
            async with asyncio.timeout(_CLOSING):
                # Before that is waited for which the service may refuse for as long as it likes.
                await self._settle(rest, Settlement.RELEASE, self._loop.create_future())
                if self._settling:
                    await asyncio.wait(self._settling)
        except TimeoutError:
            log.warning(
                "%d records are not given back in time; they come again after %d s at most",
                len(rest),
                self._receiving.visibility_timeout,
            )

    def _take(self, pieces: Sequence[str]) -> list[HeldRecord]:
        """Hold records no longer, as they are being settled."""
        taken = [self._held.pop(piece) for piece in pieces]
        for record in taken:
            record.settled = True
            del self._receiving.held[record.record.record_id]
        return taken

    async def _receive_once(self) -> None:
        receiving, began = self._receiving, 0.0

        async def call() -> Sequence[Any]:
            nonlocal began
            began = self._loop.time()
            return await receiving.client.receive(
                receiving.queue.arn,
                wait=receiving.wait_seconds,
                visible_after=receiving.visibility_timeout,
            )

        records = await retrying(call, receiving.jitter, _may_pass, patience=_PATIENCE)
        deadline, refused = began + receiving.visibility_timeout, []
        for record in records:
            held = HeldRecord(record, record.receipt_handle, deadline, began)
            known = receiving.held.get(record.record_id)
            if record.record_id in receiving.rejected:
                refused.append(held)
            elif known is not None:
                # Its lock was lost, and taken again: the newer handle settles it.
                known.receipt, known.deadline = held.receipt, deadline
                receiving.counts.repeated += 1
            else:
                receiving.dedup.lent_again(record.record_id)
                self._held[record.record_id] = receiving.held[record.record_id] = held
                self._buffer.append(held)
                self._buffered_bytes += len(record.data)
        if refused:
            await self._settle(refused, Settlement.RELEASE, self._loop.create_future())
        if self._buffer:
            self._arrived.set()
        full = len(self._buffer) >= receiving.max_records
        if full or self._buffered_bytes >= receiving.max_bytes:
            self._room.clear()

    async def _extend(self, some: Sequence[HeldRecord]) -> None:
        receiving, began = self._receiving, self._loop.time()
        by_receipt = {each.receipt: each for each in some if not each.settled}
        if not by_receipt:
            return
        try:
            async with self._calls:
                began = self._loop.time()
                failed = await receiving.client.set_visibility(
                    receiving.queue.arn, [*by_receipt], receiving.visibility_timeout
                )
        except Exception as error:  # noqa: BLE001 - it is tried again soon
            log.warning(
                "the visibility of %d records is not extended: %s", len(some), text_of(error)
            )
            return
        for receipt, held in by_receipt.items():
            if receipt not in failed and held.receipt == receipt:
                held.deadline = began + receiving.visibility_timeout

    async def _settle(
        self,
        held: Sequence[HeldRecord],
        kind: Settlement,
        response: asyncio.Future[Mapping[Any, Exception]],
    ) -> None:
        errors: dict[str, Exception] = {}
        try:
            async with asyncio.TaskGroup() as tasks:
                for some in tens(held):
                    tasks.create_task(self._settle_some(some, kind, errors))
        finally:
            if not response.done():
                response.set_result(errors)

    async def _settle_some(
        self, some: Sequence[HeldRecord], kind: Settlement, errors: dict[str, Exception]
    ) -> None:
        """Settle up to ten records, again and again while the service refuses it for now."""
        left = {each.receipt: each for each in some}
        unanswered: Exception = ServiceError("the call was cancelled")
        errors |= {each.record.record_id: unanswered for each in some}
        if kind is Settlement.REJECT and self._receiving.queue.max_receive_count is not None:
            # Before the call: it may come again before the call is answered.
            self._receiving.rejected.update(errors)
        deadline = min(each.deadline for each in some)
        attempts = 0
        while left:
            failed = await self._settle_once([*left], kind)
            late = self._loop.time() >= deadline
            for receipt in [*left]:
                error = failed.get(receipt)
                if error is None:
                    self._count_dead(left[receipt], kind)
                if error is None or late or not _may_pass(error):
                    held = left.pop(receipt)
                    errors.pop(held.record.record_id, None)
                    if error is not None:
                        errors[held.record.record_id] = error
            if left:
                await asyncio.sleep(self._receiving.jitter.delay(attempts))
                attempts += 1

    async def _settle_once(
        self, receipts: Sequence[str], kind: Settlement
    ) -> Mapping[str, Exception]:
        client, arn = self._receiving.client, self._receiving.queue.arn
        try:
            async with self._calls:
                if kind is Settlement.ACCEPT:
                    return await client.acknowledge(arn, receipts)
                return await client.set_visibility(arn, receipts, 0)
        except Exception as error:  # noqa: BLE001 - whoever settles gets it, by record
            return dict.fromkeys(receipts, error)

    def _count_dead(self, held: HeldRecord, kind: Settlement) -> None:
        """Note a record that the queue makes a dead letter."""
        most, record = self._receiving.queue.max_receive_count, held.record
        if kind is Settlement.ACCEPT or most is None:
            return
        if record.receive_count >= most:
            self._receiving.counts.dead_letters += 1
            self._receiving.rejected.discard(record.record_id)


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, Exception) and isinstance(judge(error, Phase.STREAM), Retry)
