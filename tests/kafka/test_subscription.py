from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.errors import NotLeaderForPartitionError, OffsetOutOfRangeError

from fanout.core.positions import Cursor, Horizon, Timestamp
from fanout.errors import DamagedFrameError
from fanout.kafka.reading.columns import NO_RECORDS, SCHEMA
from fanout.kafka.reading.fetcher import Fetcher
from fanout.kafka.reading.offsets import cursor_before, epoch_at
from fanout.kafka.reading.subscription import HEARTBEAT, PartitionReader
from fanout.kafka.reading.transport import AbortedTransaction
from fanout.testing.virtual_time.loop import running_loop
from tests.support.kafka.record_batches import ABORT, COMMIT
from tests.support.kafka.scripted_cluster import ScriptedCluster
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fanout.core.events import Batch
    from fanout.core.positions import Position

MIB = 1 << 20


class Memory:
    """Record the bytes that a subscription reserves for each event."""

    def __init__(self) -> None:
        self.reserved = 0
        self.totals: list[int] = []

    async def __call__(self, nbytes: int) -> None:
        assert nbytes > 0
        self.reserved += nbytes
        self.totals.append(self.reserved)

    def hand_over(self) -> None:
        self.reserved = 0
        self.totals = []


class Reading:
    """One subscription to the first partition, and its offsets."""

    def __init__(self, events: AsyncIterator[Batch], memory: Memory) -> None:
        self._events = events
        self.memory = memory
        self.offsets: list[int] = []

    async def event(self) -> Batch:
        self.memory.hand_over()
        batch = await anext(self._events)
        if batch.num_records:
            self.offsets += batch.records.column("offset").to_pylist()
        return batch

    async def until(self, position: int) -> Batch:
        """Read until the reader stands after an offset."""
        while True:
            batch = await self.event()
            assert isinstance(batch.range.until, Cursor)
            if batch.range.until.sequence >= position:
                return batch


@asynccontextmanager
async def reading(
    cluster: ScriptedCluster,
    position: Position = Cursor(-1),  # noqa: B008 - frozen
    *,
    stop: int | None = None,
    max_partition_bytes: int = MIB,
    poll_seconds: float = 0.005,
    **options: Any,
) -> AsyncIterator[Reading]:
    options = {"read_committed": True, "max_event_bytes": 64 * MIB} | options
    fetcher = Fetcher(
        cluster, max_partition_bytes=max_partition_bytes, max_bytes_in_flight=256 * MIB
    )
    fetcher.poll_every(poll_seconds)
    memory = Memory()
    reader = PartitionReader(cluster, fetcher, **options)
    async with (
        fetcher.running(),
        reader.subscribe(cluster.partitions[0], position, stop=stop, reserve=memory) as events,
    ):
        yield Reading(events, memory)


@in_virtual_time
async def test_a_log_is_read_from_the_position_to_its_end_and_the_last_batch_says_lag_0() -> None:
    cluster = ScriptedCluster()
    cluster.log().append(3)
    cluster.log().append(4)
    async with reading(cluster, Cursor(1)) as stream:
        batch = await stream.event()
        assert stream.offsets == [2, 3, 4, 5, 6]
        assert (batch.range.after, batch.range.until) == (Cursor(1), Cursor(6))
        assert batch.lag == 0.0
        assert str(batch.split) == "t-0"


@in_virtual_time
async def test_a_position_has_the_leader_epoch_of_the_record_before_and_a_fetch_names_it() -> None:
    cluster = ScriptedCluster()
    for epoch in (4, 6):
        cluster.log().append(3)
        base, after, data = cluster.log().batches[-1]
        raw = data[:12] + epoch.to_bytes(4) + data[16:]
        cluster.log().batches[-1] = (base, after, raw)
    async with reading(cluster, cursor_before(1, 4)) as stream:
        batch = await stream.until(5)
        assert epoch_at(batch.range.until) == 6
        cluster.log().append(1)  # as of a broker that tells no epoch
        assert epoch_at((await stream.until(6)).range.until) == 6
        await stream.event()
    epochs = [want.epoch for each in cluster.fetches for want in each.wanted.values()]
    assert (epochs[0], set(epochs[1:])) == (4, {6})


@in_virtual_time
async def test_a_reader_that_is_behind_does_not_let_records_gather() -> None:
    cluster = ScriptedCluster(fetch_max_bytes=1)  # each answer is a batch, far from a full one
    for _ in range(50):
        cluster.log().append(1)
    async with reading(cluster, poll_seconds=10.0) as stream:
        await stream.until(49)
        assert running_loop().time() == 0.0
        cluster.log().append(1)
        await stream.until(50)
        assert running_loop().time() == 10.0


@pytest.mark.fault("Records expire before they are read, also those of the very first position")
@in_virtual_time
async def test_the_horizon_is_told_as_the_offset_that_it_is_before_anything_is_read() -> None:
    cluster = ScriptedCluster()
    cluster.log().append(3)
    cluster.log().append(3)
    cluster.log().expire(3)
    async with reading(cluster, Horizon()) as stream:
        first = await stream.event()
        assert (first.range.after, first.range.until) == (Horizon(), Cursor(2))
        assert first.num_records == 0
        assert not cluster.fetches
        await stream.until(5)
        assert stream.offsets == [3, 4, 5]


@pytest.mark.parametrize(("millis", "first"), [(1000, 0), (1500, 1), (9999, 3)])
@in_virtual_time
async def test_a_timestamp_begins_at_the_first_record_that_is_not_older_else_at_the_end(
    millis: int, first: int
) -> None:
    cluster = ScriptedCluster()
    cluster.log().append(3)
    cluster.log().times = {0: 1000, 1: 2000, 2: 3000}
    async with reading(cluster, Timestamp(millis)) as stream:
        batch = await stream.event()
        assert batch.range.until == Cursor(first - 1)


@in_virtual_time
async def test_a_record_that_comes_during_the_look_up_is_not_lost() -> None:
    cluster = ScriptedCluster()
    cluster.log().append(3)
    cluster.after_offsets.append(lambda: cluster.log().append(1))
    async with reading(cluster, Timestamp(9999)) as stream:
        await stream.until(3)
        assert stream.offsets == [3]


@pytest.mark.fault("A topic is empty, or some of its partitions are")
@in_virtual_time
async def test_an_empty_partition_says_at_once_that_it_is_read_to_its_end() -> None:
    async with reading(ScriptedCluster()) as stream:
        batch = await stream.event()
        assert (batch.num_records, batch.lag, batch.range.until) == (0, 0.0, Cursor(-1))
        assert running_loop().time() < 1.0


@in_virtual_time
async def test_an_idle_partition_sends_a_heartbeat_now_and_then() -> None:
    async with reading(ScriptedCluster(), Cursor(-1)) as stream:
        await stream.event()
        for _ in range(3):
            began = running_loop().time()
            batch = await stream.event()
            assert batch.lag == 0.0
            assert HEARTBEAT <= running_loop().time() - began < HEARTBEAT + 1.0


@in_virtual_time
async def test_records_of_an_aborted_transaction_are_left_out_and_passed_over() -> None:
    cluster = ScriptedCluster()
    log = cluster.log()
    log.append(2, producer=7, transactional=True)
    log.end_transaction(COMMIT, 7)
    log.append(2, producer=8, transactional=True)
    log.end_transaction(ABORT, 8)
    log.aborted = [AbortedTransaction(8, 3)]
    async with reading(cluster) as stream:
        batch = await stream.event()
        assert stream.offsets == [0, 1]
        assert (batch.range.until, batch.lag) == (Cursor(5), 0.0)


@in_virtual_time
async def test_an_open_transaction_is_the_end_of_what_can_be_read() -> None:
    cluster = ScriptedCluster()
    log = cluster.log()
    log.append(2)
    log.open_from = 2
    log.append(2, producer=8, transactional=True)
    async with reading(cluster) as stream:
        batch = await stream.event()
        assert (stream.offsets, batch.lag) == ([0, 1], 0.0)
        log.end_transaction(COMMIT, 8)
        log.open_from = None
        cluster.changed()
        batch = await stream.until(4)
        assert (stream.offsets, batch.lag) == ([0, 1, 2, 3], 0.0)


@in_virtual_time
async def test_uncommitted_records_are_read_up_to_the_high_watermark() -> None:
    cluster = ScriptedCluster(read_committed=False)
    log = cluster.log()
    log.append(1, value=bytes(100_000))
    log.open_from = 1
    log.append(1, value=bytes(100_000), producer=8, transactional=True)
    async with reading(cluster, read_committed=False, max_event_bytes=150_000) as stream:
        assert [(await stream.event()).lag for _ in range(2)] == [None, 0.0]
        assert stream.offsets == [0, 1]


@pytest.mark.fault("A stop lies behind an aborted transaction, its marker or an open one")
@pytest.mark.parametrize("kind", [ABORT, COMMIT])
@in_virtual_time
async def test_a_bounded_read_ends_behind_the_marker_of_a_transaction(kind: int) -> None:
    cluster = ScriptedCluster()
    log = cluster.log()
    log.append(2)
    log.append(2, producer=8, transactional=True)
    log.end_transaction(kind, 8)
    log.aborted = [AbortedTransaction(8, 2)] if kind == ABORT else []
    async with reading(cluster, stop=5) as stream:
        batch = await stream.until(4)
        assert batch.lag == 0.0
        assert stream.offsets == ([0, 1] if kind == ABORT else [0, 1, 2, 3])


@in_virtual_time
async def test_nothing_at_or_beyond_the_stop_is_delivered_and_the_subscription_stays_open() -> None:
    cluster = ScriptedCluster()
    cluster.log().append(10)
    async with reading(cluster, stop=4) as stream:
        batch = await stream.event()
        assert (stream.offsets, batch.range.until, batch.lag) == ([0, 1, 2, 3], Cursor(3), 0.0)
        requests = len(cluster.fetches)
        for _ in range(4):
            batch = await stream.event()
            assert (batch.num_records, batch.range.until, batch.lag) == (0, Cursor(3), 0.0)
        assert running_loop().time() >= 3 * HEARTBEAT
        assert len(cluster.fetches) == requests


@pytest.mark.fault("A read begins at its stop, or beyond it")
@in_virtual_time
async def test_a_bounded_read_that_begins_at_its_stop_is_caught_up_at_once() -> None:
    cluster = ScriptedCluster()
    cluster.log().append(10)
    async with reading(cluster, Cursor(3), stop=4) as stream:
        batch = await stream.event()
        assert (batch.num_records, batch.lag, batch.range.until) == (0, 0.0, Cursor(3))
    assert not cluster.fetches


@pytest.mark.fault("A read begins at its stop, or beyond it")
@in_virtual_time
async def test_a_position_beyond_the_stop_is_caught_up_if_the_partition_has_it() -> None:
    cluster = ScriptedCluster()
    cluster.log().append(10)
    async with reading(cluster, Cursor(7), stop=4) as stream:
        batch = await stream.event()
        assert (batch.num_records, batch.lag, batch.range.until) == (0, 0.0, Cursor(7))
    async with reading(cluster, Cursor(10), stop=4) as stream:
        with pytest.raises(OffsetOutOfRangeError):
            await stream.event()


@in_virtual_time
async def test_a_position_beyond_the_stop_is_caught_up_when_no_quota_keeps_the_answer_back() -> (
    None
):
    cluster = ScriptedCluster()
    cluster.log().append(10)
    cluster.throttles.append(12.0)
    async with reading(cluster, Cursor(7), stop=4) as stream:
        lags: list[float | None] = []
        while not lags or lags[-1] is None:
            lags.append((await stream.event()).lag)
        assert lags == [None, None, None, 0.0]
        assert running_loop().time() == pytest.approx(12.0, abs=0.1)
    cluster.throttles.append(12.0)
    async with reading(cluster, Cursor(10), stop=4) as stream:
        for _ in range(3):
            assert (await stream.event()).lag is None
        with pytest.raises(OffsetOutOfRangeError):
            await stream.event()


@in_virtual_time
async def test_a_hole_that_compaction_has_left_moves_the_position() -> None:
    cluster = ScriptedCluster()
    cluster.log().append(2)
    cluster.log().compact(7)
    cluster.log().append(1)
    async with reading(cluster) as stream:
        await stream.until(7)
        assert stream.offsets == [0, 1, 7]


@pytest.mark.fault("A batch is damaged")
@in_virtual_time
async def test_a_damaged_batch_is_an_error_and_what_comes_before_it_is_delivered_once() -> None:
    cluster = ScriptedCluster()
    log = cluster.log()
    log.append(2)
    log.append(2)
    base, after, data = log.batches[1]
    log.batches[1] = (base, after, data[:-1] + bytes([data[-1] ^ 1]))
    async with reading(cluster) as stream:
        assert (await stream.event()).range.until == Cursor(1)
        with pytest.raises(DamagedFrameError):
            await stream.event()
        assert stream.offsets == [0, 1]


@pytest.mark.fault("The consumer is slow")
@in_virtual_time
async def test_what_is_asked_for_is_reserved_before_and_a_larger_answer_before_it_is_decoded() -> (
    None
):
    cluster = ScriptedCluster()
    cluster.log().append(1, value=bytes(3 * MIB))
    async with reading(cluster) as stream:
        batch = await stream.event()
        size = len(cluster.log().batches[0][2])
        assert stream.memory.reserved >= size + batch.nbytes
        assert cluster.fetches[0].wanted[cluster.partitions[0]].max_bytes == MIB


@in_virtual_time
async def test_memory_is_reserved_before_it_is_taken_for_as_much_as_the_answers_grew_before() -> (
    None
):
    cluster = ScriptedCluster()
    log = cluster.log()
    for _ in range(2):
        log.append(200, value=bytes(1000), codec="zstd")
    sizes = [len(data) for _, _, data in log.batches]
    async with reading(cluster, max_partition_bytes=1000) as stream:
        batch = await stream.event()
        assert stream.memory.totals == [1000, 2 * sizes[0], sizes[0] + batch.nbytes]
        growth = batch.nbytes / sizes[0]
        assert growth > 20
        await stream.event()
        assert stream.memory.totals == [1000, int(sizes[1] * (1 + growth))]


@in_virtual_time
async def test_an_answer_larger_than_one_event_may_be_comes_in_parts_each_reserved() -> None:
    cluster = ScriptedCluster()
    for _ in range(8):
        cluster.log().append(1, value=bytes(100_000))
    async with reading(cluster, max_event_bytes=250_000) as stream:
        events = 0
        while len(stream.offsets) < 8:
            batch = await stream.event()
            events += 1
            assert stream.memory.reserved >= batch.nbytes
        assert stream.offsets == list(range(8))
        assert events >= 4
        assert len(cluster.fetches) == 1


@pytest.mark.fault("A request fails, or one partition of it")
@in_virtual_time
async def test_a_refusal_ends_the_subscription_and_the_next_one_goes_on_where_it_stood() -> None:
    cluster = ScriptedCluster()
    cluster.log().append(2)
    async with reading(cluster) as stream:
        last = await stream.event()
        cluster.leaders[cluster.partitions[0]] = 2
        cluster.log().append(2)
        cluster.changed()
        with pytest.raises(NotLeaderForPartitionError):
            await stream.event()
    async with reading(cluster, last.range.until) as stream:
        cluster.known = dict(cluster.leaders)
        await stream.event()
        assert stream.offsets == [2, 3]


@pytest.mark.fault("A leader is elected anew, here or on another broker")
@in_virtual_time
async def test_a_look_up_that_is_refused_asks_for_the_leader_anew() -> None:
    cluster = ScriptedCluster()
    fetcher = Fetcher(cluster, max_partition_bytes=MIB, max_bytes_in_flight=256 * MIB)
    reader = PartitionReader(cluster, fetcher, read_committed=True, max_event_bytes=MIB)
    cluster.offset_faults.append(NotLeaderForPartitionError())
    async with fetcher.running():
        for refused in (True, False):
            subscribing = reader.subscribe(
                cluster.partitions[0], Horizon(), stop=None, reserve=Memory()
            )
            if refused:
                with pytest.raises(NotLeaderForPartitionError):
                    await subscribing.__aenter__()
            else:
                async with subscribing as events:
                    await anext(aiter(events))
    assert len(cluster.looks) == 1


@in_virtual_time
async def test_cancelling_a_subscription_that_waits_leaves_nothing_behind() -> None:
    async with reading(ScriptedCluster()) as stream:
        await stream.event()
        waiting = asyncio.create_task(stream.event())
        await asyncio.sleep(1.0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


def test_without_a_decode_of_the_users_the_schema_is_that_of_kafka() -> None:
    assert NO_RECORDS.schema == SCHEMA
