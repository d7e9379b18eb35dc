"""A broker drops what it has delivered too often: the last delivery reaches the consumer.

The broker is a model, and the time is virtual.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing, asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from fanout.core.backoff import Backoff, FullJitter
from fanout.core.events import Batch, Split
from fanout.core.lending.acknowledgements import SharedState
from fanout.core.lending.dedup import Dedup
from fanout.core.lending.delivery import MemberDelivery
from fanout.core.lending.member_locks import MemberLocks
from fanout.core.lending.seam import Settlement
from fanout.core.user_decode import UserDecode
from fanout.errors import AcknowledgementError, RetryLaterError
from fanout.kafka.reading.columns import PLACES
from fanout.kafka.share.naming import OffsetNaming
from fanout.kafka.share.poll_columns import NO_RECORDS
from tests.kafka.share.test_decode import polled
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence

    from fanout.core.lending.acquired import ExpiredRecords
    from fanout.kafka.partitions import Partition
    from fanout.kafka.share.offset_ranges import OffsetRange
    from fanout.kafka.share.poll_columns import PolledRecords

LOCK, MOST = 30.0, 5
MEMBER = Split("member-0")


class Broker:
    """A broker with records 0, 1, ... that were delivered so often before, and its one member.

    It locks them when a poll begins, and each poll takes so many seconds.
    """

    fetching = True
    polls_ahead = False

    def __init__(self, count: int, *, before: int = 0, seconds: float = 0.0) -> None:
        self.polls = 0
        self.answers = True
        self.accepted: set[int] = set()
        self.dropped: set[int] = set()
        self._seconds = seconds
        self._deliveries = dict.fromkeys(range(count), before)
        self._locked_until = dict.fromkeys(range(count), 0.0)

    async def poll(self) -> PolledRecords | None:
        began = asyncio.get_running_loop().time()
        self.polls += 1
        free = [number for number, until in self._locked_until.items() if until <= began]
        for number in free:
            self._drop(number)
        taken = [number for number in free if number in self._locked_until]
        for number in taken:
            self._deliveries[number] += 1
            self._locked_until[number] = began + LOCK
        await asyncio.sleep(max(self._seconds, 0.1))
        if not taken:
            return None
        assert taken == list(range(len(taken)))
        records = cast("PolledRecords", polled(len(taken), began))
        records.delivery_counts[:] = [self._deliveries[number] for number in taken]
        return records

    def acknowledge(
        self, ranges: Sequence[OffsetRange], kind: Settlement
    ) -> asyncio.Future[Mapping[Partition, Exception]]:
        errors: dict[Partition, Exception] = {}
        now = asyncio.get_running_loop().time()
        for partition, begin, end in ranges:
            for number in range(begin, end):
                if now >= self._locked_until.get(number, 0.0):
                    errors[partition] = ValueError("the record state is invalid")
                elif kind is Settlement.RELEASE:
                    self._locked_until[number] = 0.0
                    self._drop(number)
                else:
                    del self._locked_until[number]
                    self.accepted.add(number)
        response = asyncio.get_running_loop().create_future()
        if self.answers:
            response.set_result(errors)
        return response

    def _drop(self, number: int) -> None:
        if self._deliveries[number] >= MOST:
            del self._locked_until[number]
            self.dropped.add(number)


class Stream:
    """A member of the broker, and its batches as a subscriber gets them."""

    def __init__(self, broker: Broker, decode: Callable[[Any], Any] | None) -> None:
        function = None if decode is None else UserDecode(decode, NO_RECORDS, PLACES)
        options: Any = SimpleNamespace(
            user_decode=function, on_bad_record="fail", max_deliveries=None
        )
        naming = OffsetNaming("group", cast("Any", None))
        jitter, dedup = FullJitter(Backoff(), Random(1)), Dedup(LOCK, naming.new_set)
        self.shared = SharedState(options, LOCK, naming, dedup, None, jitter, MOST)
        self.locks = MemberLocks(self.shared)
        expired: ExpiredRecords[OffsetRange] = self.locks.expired(MEMBER.id)
        member = cast("Any", broker)
        self._delivery = MemberDelivery(MEMBER, 0, member, expired, self.shared)
        self.locks.begin_delivery(MEMBER.id, self._delivery)

    @asynccontextmanager
    async def batches(self) -> AsyncIterator[AsyncGenerator[Batch]]:
        async def reserve(nbytes: int) -> None:
            del nbytes

        async with aclosing(self._delivery.batches(reserve)) as batches:
            yield batches

    async def acknowledge(self, batch: Batch) -> None:
        await self.locks.acknowledge({MEMBER.id: batch.range.until})


@pytest.mark.fault("A record of a share group waits beyond its lock each time")
@in_virtual_time
async def test_what_always_comes_too_late_is_delivered_before_it_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "fanout")
    broker = Broker(3, seconds=0.6 * LOCK)
    stream = Stream(broker, None)
    async with stream.batches() as batches, asyncio.timeout(100 * LOCK):
        batch = await anext(batches)
        assert stream.locks.keeps(batch)
        await stream.acknowledge(batch)
    assert broker.accepted == {0, 1, 2}
    counts = stream.shared.counts
    assert (counts.acquired, counts.released, counts.last_deliveries) == (15, 12, 3)
    assert (
        "member-0 gets 3 records for the last time, beginning with t-0 offsets 0 to 2: after 5 "
        "deliveries the service drops a record that is not accepted"
    ) in caplog.text


@in_virtual_time
async def test_a_last_delivery_without_a_lock_is_delivered_and_its_acknowledgement_refused() -> (
    None
):
    broker = Broker(3, seconds=1.2 * LOCK)
    stream = Stream(broker, None)
    async with stream.batches() as batches, asyncio.timeout(100 * LOCK):
        batch = await anext(batches)
        assert batch.num_records == 3
        assert stream.locks.keeps(batch)
        with pytest.raises(AcknowledgementError, match="t-0 offsets 0 to 2"):
            await stream.acknowledge(batch)


@pytest.mark.fault("A record of a share group waits beyond its lock each time")
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("waited", [0.6, 1.5], ids=["too little left", "expired"])
@in_virtual_time
async def test_what_waited_for_the_consumer_for_too_long_is_handed_out_if_it_is_the_last_time(
    waited: float, *, last: bool
) -> None:
    broker = Broker(3, before=MOST - 1 if last else 0)
    stream = Stream(broker, None)
    async with stream.batches() as batches:
        batch = await anext(batches)
        polling = asyncio.create_task(anext(batches))
        await asyncio.sleep(waited * LOCK)
        assert stream.locks.keeps(batch) is last
        if last and waited < 1:
            await stream.acknowledge(batch)
            assert broker.accepted == {0, 1, 2}
        polling.cancel()
        await asyncio.wait([polling])


@pytest.mark.fault("A record of a share group waits beyond its lock each time")
@pytest.mark.parametrize("last", [False, True])
@in_virtual_time
async def test_what_a_member_had_when_it_failed_is_handed_out_if_it_is_the_last_time(
    *, last: bool
) -> None:
    stream = Stream(Broker(3, before=MOST - 1 if last else 0), None)
    async with stream.batches() as batches:
        batch = await anext(batches)
    stream.locks.end_delivery(MEMBER.id)
    assert stream.locks.keeps(batch) is last
    if last:
        with pytest.raises(AcknowledgementError):
            await stream.acknowledge(batch)


@pytest.mark.fault("A record of a share group waits beyond its lock each time")
@in_virtual_time
async def test_what_cannot_be_decoded_for_long_is_delivered_before_it_is_dropped() -> None:
    ready = asyncio.get_running_loop().time() + 10 * LOCK

    def decode(records: Any) -> Any:
        if records.num_rows and asyncio.get_running_loop().time() < ready:
            raise RetryLaterError("the registry is away")
        return records

    stream = Stream(Broker(3, before=MOST - 1), decode)
    async with stream.batches() as batches, asyncio.timeout(20 * LOCK):
        assert (await anext(batches)).num_records == 3


@pytest.mark.fault("ShareAcknowledge")
@in_virtual_time
async def test_nothing_is_locked_for_a_consumer_that_waits_for_an_answer() -> None:
    broker = Broker(3)
    stream = Stream(broker, None)
    async with stream.batches() as batches:
        batch, broker.answers = await anext(batches), False
        polling = asyncio.create_task(anext(batches))
        acknowledging = asyncio.create_task(stream.acknowledge(batch))
        await asyncio.sleep(LOCK)
        assert broker.polls == 1
        stream.locks.begin_wait()  # it waits for records instead
        await asyncio.sleep(1)
        assert broker.polls > 1
        for task in (acknowledging, polling):
            task.cancel()
            await asyncio.wait([task])
