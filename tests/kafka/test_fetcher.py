from __future__ import annotations

import asyncio
import itertools
import weakref
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.errors import (
    KafkaConnectionError,
    LeaderNotAvailableError,
    NotLeaderForPartitionError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)

from fanout.core.limits import MemoryLimit
from fanout.core.opening import open_stream
from fanout.core.positions import Cursor
from fanout.errors import MalformedEventError
from fanout.kafka.reading.fetcher import Fetcher
from fanout.kafka.reading.subscription import HEARTBEAT, PartitionReader
from fanout.kafka.reading.transport import Fetched, PartitionFetch
from fanout.testing.virtual_time.loop import running_loop, simulate
from tests.support.kafka.scripted_cluster import ScriptedCluster, ScriptedSource
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from fanout.core.fan_out import FanOut
    from fanout.kafka.partitions import Partition
    from fanout.kafka.reading.transport import FetchAnswer

KIB = 1 << 10
MIB = 1 << 20
# How long a broker may wait for data, as a user sets it, in seconds.
MAX_WAIT = 0.5


@asynccontextmanager
async def fetching(cluster: ScriptedCluster, **options: Any) -> AsyncIterator[Fetcher]:
    """Run a fetcher with every partition of the cluster subscribed."""
    options = {"max_partition_bytes": MIB, "max_bytes_in_flight": 256 * MIB} | options
    fetcher = Fetcher(cluster, **options)
    async with fetcher.running(), AsyncExitStack() as stack:
        for partition in cluster.partitions:
            stack.enter_context(fetcher.subscribed(partition))
        yield fetcher


async def fetch(
    fetcher: Fetcher, partition: Partition, offset: int = 0, *, patience: float = 0.0
) -> Fetched:
    answer = await fetcher.fetch(
        partition, PartitionFetch(offset, MIB), patience=patience, urgent=not patience
    )
    assert isinstance(answer, Fetched)
    return answer


async def read_backlog(fetcher: Fetcher, partition: Partition) -> None:
    """Read 1000 records in 500 answers."""
    for offset in range(0, 1000, 2):
        await fetcher.fetch(partition, PartitionFetch(offset, 150), patience=60.0, urgent=True)


async def read(stream: FanOut) -> None:
    async for _ in stream:
        pass


@in_virtual_time
async def test_partitions_that_ask_together_are_asked_for_in_one_request() -> None:
    cluster = ScriptedCluster(3)
    for log in cluster.logs.values():
        log.append(2)
    async with fetching(cluster) as fetcher:
        answers = await asyncio.gather(*(fetch(fetcher, p) for p in cluster.partitions))
    assert all(answer.batches for answer in answers)
    assert [list(request.wanted) for request in cluster.fetches] == [cluster.partitions]


@in_virtual_time
async def test_each_broker_is_asked_for_what_it_leads() -> None:
    cluster = ScriptedCluster(4)
    for partition in cluster.partitions:
        cluster.leaders[partition] = cluster.known[partition] = partition.number % 2
        cluster.logs[partition].append(1)
    async with fetching(cluster) as fetcher:
        await asyncio.gather(*(fetch(fetcher, p) for p in cluster.partitions))
    asked = {request.broker: [p.number for p in request.wanted] for request in cluster.fetches}
    assert asked == {0: [0, 2], 1: [1, 3]}


@pytest.mark.fault("The consumer is slow")
@in_virtual_time
async def test_who_does_not_ask_is_not_fetched() -> None:
    cluster = ScriptedCluster(2)
    for log in cluster.logs.values():
        log.append(1)
    async with fetching(cluster) as fetcher:
        await fetch(fetcher, cluster.partitions[0])
        await asyncio.sleep(60)
    assert [list(request.wanted) for request in cluster.fetches] == [cluster.partitions[:1]]


@in_virtual_time
async def test_an_idle_partition_stays_asked_for_until_its_patience_ends() -> None:
    cluster = ScriptedCluster()
    async with fetching(cluster, max_wait=MAX_WAIT) as fetcher:
        answer = await fetch(fetcher, cluster.partitions[0], patience=5.0)
        assert not answer.batches
        assert 5.0 <= running_loop().time() < 6.0
        assert len(cluster.fetches) == 5.0 / MAX_WAIT


@in_virtual_time
async def test_a_broker_waits_as_long_as_the_user_lets_it() -> None:
    for max_wait in (0.002, 2.0):
        cluster = ScriptedCluster()
        async with fetching(cluster, max_wait=max_wait) as fetcher:
            await fetch(fetcher, cluster.partitions[0], patience=1.0)
            await fetch(fetcher, cluster.partitions[0], patience=1.0)
        assert {request.max_wait for request in cluster.fetches} == {max_wait}


@in_virtual_time
async def test_a_broker_that_never_waits_is_not_asked_without_a_pause() -> None:
    times = []

    class Hasty(ScriptedCluster):
        async def fetch(
            self, broker: int, wanted: Mapping[Partition, PartitionFetch], *, max_wait: float
        ) -> Mapping[Partition, FetchAnswer]:
            assert max_wait
            times.append(running_loop().time())
            return await super().fetch(broker, wanted, max_wait=0.0)

    cluster = Hasty()
    async with fetching(cluster) as fetcher:
        await fetch(fetcher, cluster.partitions[0], patience=1.0)
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses
    assert min(pauses) > 0.005


@in_virtual_time
async def test_a_broker_waits_long_while_all_ask_and_not_while_one_is_held_back() -> None:
    cluster = ScriptedCluster(2)
    busy, idle = cluster.partitions
    cluster.logs[busy].append(1)
    async with fetching(cluster, max_wait=MAX_WAIT) as fetcher, asyncio.TaskGroup() as tasks:
        tasks.create_task(fetch(fetcher, idle, patience=30.0))
        await fetch(fetcher, busy)
        cluster.fetches.clear()
        await asyncio.sleep(0.05)
        assert cluster.fetches
        assert all(request.max_wait < MAX_WAIT for request in cluster.fetches)
        cluster.logs[busy].append(1)
        began = running_loop().time()
        await fetch(fetcher, busy, 1)
        assert running_loop().time() - began <= 0.011
        tasks.create_task(fetch(fetcher, busy, 2, patience=10.0))
        await asyncio.sleep(0.1)
        cluster.fetches.clear()
        await asyncio.sleep(5.0)
        assert {request.max_wait for request in cluster.fetches} == {MAX_WAIT}


@in_virtual_time
async def test_while_the_consumer_is_busy_for_long_idle_partitions_are_asked_for_seldom() -> None:
    cluster = ScriptedCluster(2)
    busy, idle = cluster.partitions
    cluster.logs[busy].append(1)
    async with fetching(cluster, max_wait=MAX_WAIT) as fetcher, asyncio.TaskGroup() as tasks:
        tasks.create_task(fetch(fetcher, idle, patience=90.0))
        await fetch(fetcher, busy)
        await asyncio.sleep(30)
        cluster.fetches.clear()
        await asyncio.sleep(30)
        assert len(cluster.fetches) <= 30 / MAX_WAIT + 1


@in_virtual_time
async def test_beside_a_busy_partition_idle_ones_are_asked_for_20_times_a_second() -> None:
    cluster = ScriptedCluster(200, latency=0.002)
    busy, *idle = cluster.partitions
    for _ in range(1000):
        cluster.logs[busy].append(1)
    async with fetching(cluster) as fetcher, asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(fetch(fetcher, p, patience=60.0)) for p in idle]
        await read_backlog(fetcher, busy)
        assert len(cluster.fetches) >= 500
        whole = [request for request in cluster.fetches if len(request.wanted) == 200]
        seconds = running_loop().time()
        assert 19 * seconds <= len(whole) <= 21 * seconds + 1
        # And what comes in one of them is there soon.
        cluster.logs[idle[7]].append(1)
        began = running_loop().time()
        reading = tasks.create_task(read_backlog(fetcher, busy))
        await waiting[7]
        assert running_loop().time() - began < 0.06
        reading.cancel()
        for task in waiting:
            task.cancel()


@in_virtual_time
async def test_beside_a_busy_partition_a_few_idle_ones_are_in_each_request() -> None:
    cluster = ScriptedCluster(4, latency=0.002)
    busy, *idle = cluster.partitions
    for _ in range(1000):
        cluster.logs[busy].append(1)
    async with fetching(cluster) as fetcher, asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read_backlog(fetcher, busy))
        waiting = [tasks.create_task(fetch(fetcher, p, patience=60.0)) for p in idle[1:]]
        for offset in range(10):
            arrival = tasks.create_task(fetch(fetcher, idle[0], offset, patience=60.0))
            await asyncio.sleep(0.07 + offset / 1000)
            cluster.logs[idle[0]].append(1)
            began = running_loop().time()
            await arrival
            assert running_loop().time() - began < 0.02
        assert not reading.done()
        for task in (reading, *waiting):
            task.cancel()


@pytest.mark.parametrize(("seconds", "apart"), [(None, 0.001), (0.02, 0.02)])
@in_virtual_time
async def test_at_the_end_of_all_partitions_records_gather_at_the_broker(
    seconds: float | None, apart: float
) -> None:
    cluster = ScriptedCluster(2, latency=0.001)
    appended: dict[Partition, list[float]] = {partition: [] for partition in cluster.partitions}
    ages: list[float] = []

    async def read(fetcher: Fetcher, partition: Partition) -> None:
        offset = 0
        while True:
            fetched = await fetch(fetcher, partition, offset, patience=60.0)
            now, end = running_loop().time(), fetched.high_watermark
            ages.extend(now - then for then in appended[partition][offset:end])
            offset = end

    async with fetching(cluster) as fetcher, asyncio.TaskGroup() as tasks:
        reading = [tasks.create_task(read(fetcher, p)) for p in cluster.partitions]
        await asyncio.sleep(0)
        if seconds is not None:
            fetcher.poll_every(seconds)
        for number in range(1000):
            await asyncio.sleep(0.001)
            partition = cluster.partitions[number % 2]
            cluster.logs[partition].append(1)
            appended[partition].append(running_loop().time())
            cluster.changed()
        await asyncio.sleep(0.1)
        for task in reading:
            task.cancel()
    assert len(ages) == 1000
    assert 0.9 / apart < len(cluster.fetches) <= 1 / apart + 2
    assert max(ages) < apart + 0.002


@in_virtual_time
async def test_a_stream_polls_as_often_as_its_consumer_wants() -> None:
    async def fetches(seconds: float | None) -> int:
        cluster = ScriptedCluster(latency=0.0002)
        async with open_stream(ScriptedSource(cluster)) as stream:
            if seconds is not None:
                assert stream.capabilities.polling is not None
                stream.capabilities.polling.poll_every(seconds)
            reading = asyncio.create_task(read(stream))
            for _ in range(4000):
                await asyncio.sleep(0.00025)
                cluster.log().append(1)
                cluster.changed()
            reading.cancel()
            await asyncio.wait([reading])
        return len(cluster.fetches)

    assert 900 < await fetches(None) < 1100
    assert 45 < await fetches(0.02) < 55


@in_virtual_time
async def test_a_partition_whose_last_records_are_compacted_lets_records_gather() -> None:
    cluster = ScriptedCluster(2)
    cluster.log(0).append(3)
    cluster.log(0).compact(10)
    async with open_stream(ScriptedSource(cluster, start="earliest")) as stream:
        assert stream.capabilities.polling is not None
        stream.capabilities.polling.poll_every(0.1)
        reading = asyncio.create_task(read(stream))
        for _ in range(round((HEARTBEAT + 1.0) / 0.01)):
            await asyncio.sleep(0.01)
            cluster.log(1).append(1)
            cluster.changed()
            if running_loop().time() < HEARTBEAT:
                cluster.fetches.clear()
        reading.cancel()
        await asyncio.wait([reading])
    assert len(cluster.fetches) < 15


@in_virtual_time
async def test_a_reader_that_is_behind_and_rare_records_do_not_wait() -> None:
    cluster = ScriptedCluster()
    (partition,) = cluster.partitions
    for _ in range(100):
        cluster.log().append(1)
    async with fetching(cluster) as fetcher:
        fetcher.poll_every(0.02)
        began = running_loop().time()
        for offset in range(100):
            fetched = await fetcher.fetch(
                partition, PartitionFetch(offset, 1), patience=60.0, urgent=True
            )
            assert isinstance(fetched, Fetched)
            assert fetched.batches
        assert running_loop().time() == began
        for offset in range(100, 110):
            waiting = asyncio.create_task(fetch(fetcher, partition, offset, patience=60.0))
            await asyncio.sleep(0.03)
            cluster.log().append(1)
            cluster.changed()
            began = running_loop().time()
            assert (await waiting).batches
            assert running_loop().time() == began


@in_virtual_time
async def test_a_poll_that_waits_for_records_is_sent_when_they_are_wanted() -> None:
    cluster = ScriptedCluster()
    (partition,) = cluster.partitions
    cluster.log().append(1)
    async with fetching(cluster) as fetcher:
        fetcher.poll_every(10.0)
        await fetch(fetcher, partition)
        waiting = asyncio.create_task(fetch(fetcher, partition, 1, patience=60.0))
        await asyncio.sleep(1.0)
        cluster.log().append(1)
        began = running_loop().time()
        assert fetcher.poll_now()
        assert (await waiting).batches
        waiting = asyncio.create_task(fetch(fetcher, partition, 2, patience=60.0))
        await asyncio.sleep(0)
        assert fetcher.poll_now()
        await asyncio.sleep(0)
        assert not fetcher.poll_now()  # the broker has the request, and waits for records
        cluster.log().append(1)
        cluster.changed()
        assert (await waiting).batches
        assert running_loop().time() == began


@in_virtual_time
async def test_an_urgent_fetch_does_not_wait_while_others_let_records_gather() -> None:
    cluster = ScriptedCluster(2)
    first, second = cluster.partitions
    cluster.logs[first].append(1)
    async with fetching(cluster) as fetcher:
        fetcher.poll_every(10.0)
        await fetch(fetcher, first)
        waiting = asyncio.create_task(fetch(fetcher, first, 1, patience=60.0))
        await asyncio.sleep(1.0)
        cluster.logs[second].append(1)
        began = running_loop().time()
        assert (await fetch(fetcher, second)).batches
        assert running_loop().time() == began
        waiting.cancel()


@in_virtual_time
async def test_a_fetch_that_becomes_urgent_during_a_request_does_not_wait_after_it() -> None:
    cluster = ScriptedCluster(2)
    first, second = cluster.partitions
    fetcher = Fetcher(cluster, max_partition_bytes=MIB, max_bytes_in_flight=256 * MIB)
    fetcher.poll_every(10.0)
    async with fetcher.running():
        with fetcher.subscribed(first):
            waiting = asyncio.create_task(fetch(fetcher, first, patience=60.0))
            await asyncio.sleep(0.1)
            with fetcher.subscribed(second):
                cluster.logs[second].append(1)
                urgent = asyncio.create_task(fetch(fetcher, second))
                await asyncio.sleep(0.1)
                cluster.logs[first].append(1)
                cluster.changed()
                began = running_loop().time()
                assert (await waiting).batches
                assert (await urgent).batches
                assert running_loop().time() == began


@in_virtual_time
async def test_an_urgent_fetch_that_finds_the_end_lets_records_gather_from_then_on() -> None:
    cluster = ScriptedCluster(2)
    first, second = cluster.partitions

    async def read(fetcher: Fetcher) -> None:
        for offset in itertools.count():
            await fetch(fetcher, second, offset, patience=60.0)

    async with fetching(cluster) as fetcher:
        fetcher.poll_every(0.1)
        waiting = asyncio.create_task(
            fetcher.fetch(
                first, PartitionFetch(0, MIB), patience=60.0, urgent=True
            )  # as after a change of leaders
        )
        reading = asyncio.create_task(read(fetcher))
        for _ in range(1000):
            await asyncio.sleep(0.001)
            cluster.logs[second].append(1)
            cluster.changed()
        assert len(cluster.fetches) < 15
        for task in (waiting, reading):
            task.cancel()


@in_virtual_time
async def test_a_wanted_poll_is_of_all_partitions_and_only_where_a_reader_waits() -> None:
    cluster = ScriptedCluster(40)
    busy, *idle = cluster.partitions
    async with fetching(cluster, max_wait=0.01) as fetcher:
        fetcher.poll_every(10.0)
        waiting = [asyncio.create_task(fetch(fetcher, p, patience=60.0)) for p in idle]
        await asyncio.sleep(0.1)
        cluster.logs[busy].append(1)
        await fetch(fetcher, busy)
        waiting.append(asyncio.create_task(fetch(fetcher, busy, 1, patience=60.0)))
        await asyncio.sleep(0.01)
        cluster.fetches.clear()
        assert fetcher.poll_now()
        await asyncio.sleep(0)
        assert [len(request.wanted) for request in cluster.fetches] == [40]
        for task in waiting:
            task.cancel()
    async with fetching(cluster) as fetcher:
        fetcher.poll_every(10.0)
        await fetch(fetcher, busy)
        await asyncio.sleep(0.1)
        assert not fetcher.poll_now()
        cluster.logs[busy].append(1)
        began = running_loop().time()
        assert (await fetch(fetcher, busy, 1, patience=60.0)).batches
        assert running_loop().time() == began


@in_virtual_time
async def test_leaving_the_block_and_a_cancelled_reader_do_not_wait_for_the_next_poll() -> None:
    cluster = ScriptedCluster()
    (partition,) = cluster.partitions
    cluster.log().append(1)
    async with fetching(cluster) as fetcher:
        fetcher.poll_every(10.0)
        await fetch(fetcher, partition)
        for _ in range(2):  # a cancelled fetch leaves room for the next one
            waiting = asyncio.create_task(fetch(fetcher, partition, 1, patience=60.0))
            await asyncio.sleep(1.0)
            waiting.cancel()
            await asyncio.wait([waiting])
        assert not fetcher.poll_now()
        cluster.log().append(1)
        await fetch(fetcher, partition, 1)
        waiting = asyncio.create_task(fetch(fetcher, partition, 2, patience=60.0))
        await asyncio.sleep(1.0)
    assert running_loop().time() == 3.0
    waiting.cancel()


@in_virtual_time
async def test_the_memory_of_an_answer_is_free_while_records_gather() -> None:
    cluster = ScriptedCluster()
    cluster.log().append(1)
    answers: list[weakref.ref[memoryview]] = []
    fetch_bytes = cluster.fetch

    async def fetch_view(*request: Any, **how: Any) -> Mapping[Partition, FetchAnswer]:
        found: dict[Partition, FetchAnswer] = {}
        for partition, answer in (await fetch_bytes(*request, **how)).items():
            assert isinstance(answer, Fetched)
            view = memoryview(answer.batches)
            answers.append(weakref.ref(view))
            found[partition] = answer._replace(batches=view)
        return found

    cluster.fetch = fetch_view  # type: ignore[method-assign]
    async with fetching(cluster) as fetcher:
        fetcher.poll_every(10.0)
        await fetch(fetcher, cluster.partitions[0])
        await asyncio.sleep(1.0)
        assert [answer() for answer in answers] == [None]


@in_virtual_time
async def test_a_partition_with_an_open_transaction_is_not_asked_for_in_haste() -> None:
    cluster = ScriptedCluster(2)
    open_one, idle = cluster.partitions
    cluster.logs[open_one].append(5)
    cluster.logs[open_one].open_from = 0
    async with fetching(cluster, max_wait=MAX_WAIT) as fetcher:
        await asyncio.gather(*(fetch(fetcher, p, patience=10.0) for p in (open_one, idle)))
    assert len(cluster.fetches) <= 10 / MAX_WAIT + 1


@in_virtual_time
async def test_a_partition_that_is_not_read_any_more_holds_nobody_up() -> None:
    cluster = ScriptedCluster(2)
    busy, idle = cluster.partitions
    cluster.logs[busy].append(1)
    fetcher = Fetcher(cluster, max_partition_bytes=MIB, max_bytes_in_flight=256 * MIB)
    async with fetcher.running():
        with fetcher.subscribed(idle):
            with fetcher.subscribed(busy):
                await fetch(fetcher, busy)
            cluster.fetches.clear()
            await fetch(fetcher, idle, patience=2.0)
    assert {request.max_wait for request in cluster.fetches} == {0.5}


@pytest.mark.fault("Busy partitions fill every answer")
@in_virtual_time
async def test_no_partition_starves_behind_others_that_fill_every_answer() -> None:
    cluster = ScriptedCluster(4, fetch_max_bytes=64 * KIB, latency=0.001)
    for log in cluster.logs.values():
        for _ in range(60):
            log.append(1, value=bytes(60 * KIB))
    served = dict.fromkeys(cluster.partitions, 0)

    async def read(fetcher: Fetcher, partition: Partition) -> None:
        while sum(served.values()) < 40:
            await fetch(fetcher, partition, served[partition], patience=60.0)
            served[partition] += 1

    async with fetching(cluster) as fetcher, asyncio.TaskGroup() as tasks:
        for partition in cluster.partitions:
            tasks.create_task(read(fetcher, partition))
    assert max(served.values()) - min(served.values()) <= 1


@pytest.mark.fault("A value has 10 MiB, more than is asked for at once")
@in_virtual_time
async def test_a_batch_larger_than_what_was_asked_comes_in_the_end() -> None:
    cluster = ScriptedCluster(3, latency=0.001)
    *busy, large = cluster.partitions
    for partition in busy:
        for _ in range(50):
            cluster.logs[partition].append(1, value=bytes(MIB // 2))
    cluster.logs[large].append(1, value=bytes(5 * MIB))

    async def read(fetcher: Fetcher, partition: Partition) -> None:
        for offset in range(50):
            await fetch(fetcher, partition, offset, patience=60.0)

    async with fetching(cluster) as fetcher, asyncio.TaskGroup() as tasks:
        for partition in busy:
            tasks.create_task(read(fetcher, partition))
        answer = await fetch(fetcher, large, patience=60.0)
        assert len(answer.batches) > 5 * MIB
        assert len(cluster.fetches) <= 5


@pytest.mark.fault("A request fails, or one partition of it")
@pytest.mark.parametrize("error", [KafkaConnectionError(), RequestTimedOutError(), ValueError()])
@in_virtual_time
async def test_a_request_that_fails_is_the_error_of_all_who_asked_and_the_next_one_is_sent(
    error: Exception,
) -> None:
    cluster = ScriptedCluster(3)
    for log in cluster.logs.values():
        log.append(1)
    cluster.fetch_faults.append(error)
    async with fetching(cluster) as fetcher:
        failed = await asyncio.gather(
            *(fetch(fetcher, p) for p in cluster.partitions), return_exceptions=True
        )
        assert failed == [error] * 3
        answers = await asyncio.gather(*(fetch(fetcher, p) for p in cluster.partitions))
        assert all(answer.batches for answer in answers)


@in_virtual_time
async def test_a_request_that_is_cancelled_by_somebody_else_is_an_error_of_those_who_asked() -> (
    None
):
    def cancelled() -> None:
        raise asyncio.CancelledError

    cluster = ScriptedCluster()
    cluster.fetch_faults.append(cancelled)
    async with fetching(cluster) as fetcher:
        with pytest.raises(KafkaConnectionError, match="not by us"):
            await fetch(fetcher, cluster.partitions[0])


@pytest.mark.fault("A request fails, or one partition of it")
@pytest.mark.fault("Fetch: a nearer replica")
@in_virtual_time
async def test_a_partition_without_an_answer_is_an_error() -> None:
    class Forgetful(ScriptedCluster):
        async def fetch(self, *_: Any, **__: Any) -> Mapping[Partition, FetchAnswer]:
            return {}

    cluster = Forgetful()
    async with fetching(cluster) as fetcher:
        with pytest.raises(MalformedEventError, match="no answer for t-0"):
            await fetch(fetcher, cluster.partitions[0])


@pytest.mark.fault("A request fails, or one partition of it")
@in_virtual_time
async def test_an_error_of_one_partition_is_told_to_it_alone() -> None:
    cluster = ScriptedCluster(2)
    bad, good = cluster.partitions
    cluster.logs[good].append(1)
    cluster.leaders[bad] = 2
    async with fetching(cluster) as fetcher:
        failed, answer = await asyncio.gather(
            fetch(fetcher, bad), fetch(fetcher, good), return_exceptions=True
        )
        assert isinstance(failed, NotLeaderForPartitionError)
        assert answer.batches  # type: ignore[union-attr]


@pytest.mark.fault("A leader is elected anew, here or on another broker")
@in_virtual_time
async def test_a_leader_that_has_moved_is_found_with_one_look_for_all_partitions() -> None:
    cluster = ScriptedCluster(100)
    for partition in cluster.partitions:
        cluster.leaders[partition] = 2
        cluster.logs[partition].append(1)
    async with fetching(cluster) as fetcher:
        failed = await asyncio.gather(
            *(fetch(fetcher, p) for p in cluster.partitions), return_exceptions=True
        )
        assert {type(error) for error in failed} == {NotLeaderForPartitionError}
        await asyncio.gather(*(fetch(fetcher, p) for p in cluster.partitions))
        assert [topics for _, topics in cluster.looks] == [["t"]]
        assert {request.broker for request in cluster.fetches} == {1, 2}


@pytest.mark.fault("A leader sends us to a replica that is near")
@in_virtual_time
async def test_a_partition_that_another_broker_is_to_be_asked_for_is_asked_for_there() -> None:
    cluster = ScriptedCluster(2)
    near, idle = cluster.partitions
    async with fetching(cluster) as fetcher, asyncio.TaskGroup() as tasks:
        tasks.create_task(fetch(fetcher, idle, patience=5.0))
        asking = tasks.create_task(fetch(fetcher, near, patience=5.0))
        await asyncio.sleep(0.6)
        # The leader answers with nothing but the name of a replica.
        cluster.replicas[near] = {2}
        cluster.known[near] = 2
        await asyncio.sleep(0.6)
        cluster.logs[near].append(1)
        cluster.changed()
        assert (await asking).batches
        assert running_loop().time() < 1.3
    assert {(r.broker, p) for r in cluster.fetches for p in r.wanted} == {
        (1, near),
        (1, idle),
        (2, near),
    }


@pytest.mark.fault("A partition has no leader for a while")
@in_virtual_time
async def test_while_nobody_leads_the_cluster_is_asked_at_most_every_half_second() -> None:
    cluster = ScriptedCluster(10)
    for partition in cluster.partitions:
        cluster.leaders[partition] = cluster.known[partition] = None

    async def insist(fetcher: Fetcher, partition: Partition) -> None:
        while running_loop().time() < 10:
            with pytest.raises(LeaderNotAvailableError):
                await fetch(fetcher, partition)

    async with fetching(cluster) as fetcher, asyncio.TaskGroup() as tasks:
        for partition in cluster.partitions:
            tasks.create_task(insist(fetcher, partition))
    assert not cluster.fetches
    assert len(cluster.looks) <= 22


@in_virtual_time
async def test_a_look_that_fails_is_the_error_of_all_who_wait_for_it() -> None:
    cluster = ScriptedCluster(3, latency=0.1)
    error = KafkaConnectionError()
    cluster.known = {}
    cluster.look_faults.append(error)
    async with fetching(cluster) as fetcher:
        failed = await asyncio.gather(
            *(fetch(fetcher, p) for p in cluster.partitions), return_exceptions=True
        )
        assert failed == [error] * 3
        assert len(cluster.looks) == 1
        await asyncio.gather(*(fetch(fetcher, p) for p in cluster.partitions))


@in_virtual_time
async def test_who_waits_for_a_look_makes_it_where_the_one_who_made_it_is_cancelled() -> None:
    cluster = ScriptedCluster(2, latency=1.0)
    cluster.known = {}
    async with fetching(cluster) as fetcher, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(fetch(fetcher, cluster.partitions[0]))
        second = tasks.create_task(fetch(fetcher, cluster.partitions[1]))
        await asyncio.sleep(0.5)
        first.cancel()
        assert not (await second).batches
    assert len(cluster.looks) == 2


@in_virtual_time
async def test_a_look_that_fails_because_it_is_cancelled_stays_a_cancellation() -> None:
    class Broken(ScriptedCluster):
        async def describe(self, _: Sequence[str]) -> Mapping[str, Any]:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise KafkaConnectionError from None
            return {}

    cluster = Broken()
    cluster.known = {}
    async with fetching(cluster) as fetcher:
        asking = asyncio.create_task(fetch(fetcher, cluster.partitions[0]))
        await asyncio.sleep(1.0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking


@in_virtual_time
async def test_a_topic_that_the_cluster_does_not_know_is_the_error_of_its_partitions() -> None:
    cluster = ScriptedCluster(1)
    async with fetching(cluster) as fetcher:
        cluster.logs.clear()
        cluster.known.clear()
        with pytest.raises(UnknownTopicOrPartitionError):
            await fetch(fetcher, cluster.partitions[0])


@in_virtual_time
async def test_an_answer_to_a_question_that_was_withdrawn_is_not_given_to_the_next_one() -> None:
    cluster = ScriptedCluster()
    (partition,) = cluster.partitions
    async with fetching(cluster) as fetcher, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(fetch(fetcher, partition, 0, patience=60.0))
        await asyncio.sleep(0.1)
        first.cancel()
        await asyncio.sleep(0)
        second = tasks.create_task(fetch(fetcher, partition, 3, patience=60.0))
        await asyncio.sleep(0)
        cluster.logs[partition].append(3)
        cluster.logs[partition].append(2)
        cluster.changed()
        answer = await second
        assert answer.batches == cluster.logs[partition].batches[1][2]


@in_virtual_time
async def test_an_error_of_the_block_passes_unchanged_and_no_task_is_left() -> None:
    async def fail() -> None:
        cluster = ScriptedCluster()
        async with fetching(cluster) as fetcher:
            asking = asyncio.create_task(fetch(fetcher, cluster.partitions[0], patience=60.0))
            await asyncio.sleep(0.1)
            asking.cancel()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


@pytest.mark.fault("A stream is cancelled or closed anywhere")
@in_virtual_time
async def test_leaving_the_block_ends_all_requests_however_often_somebody_asks_again() -> None:
    cluster = ScriptedCluster()
    (partition,) = cluster.partitions

    async def insist(fetcher: Fetcher) -> None:
        while True:
            with suppress(KafkaConnectionError):
                await fetch(fetcher, partition, patience=60.0)

    async with fetching(cluster) as fetcher:
        asking = asyncio.create_task(insist(fetcher))
        await asyncio.sleep(0.1)
    assert running_loop().time() == 0.1
    asking.cancel()
    await asyncio.wait([asking])


@pytest.mark.fault("The consumer is slow")
@in_virtual_time
async def test_the_allowances_of_all_partitions_take_half_of_the_memory_at_the_most() -> None:
    for count in (1, 100, 1000):
        cluster = ScriptedCluster(count)
        async with fetching(cluster) as fetcher:
            assert 16 * KIB <= fetcher.allowance <= MIB
            assert count * fetcher.allowance <= 128 * MIB


@pytest.mark.fault("Busy partitions fill every answer")
@pytest.mark.long
def test_a_busy_partition_among_a_thousand_idle_ones_keeps_its_rate_and_all_are_heard_of() -> None:
    async def test() -> None:
        cluster = ScriptedCluster(1000, latency=0.001)
        busy = cluster.partitions[500]
        for _ in range(300):
            cluster.logs[busy].append(1, value=bytes(100 * KIB))
        budget = MemoryLimit(256 * MIB)
        fetcher = Fetcher(cluster, max_partition_bytes=MIB, max_bytes_in_flight=256 * MIB)
        reader = PartitionReader(cluster, fetcher, read_committed=True, max_event_bytes=64 * MIB)
        events = dict.fromkeys(cluster.partitions, 0)
        records = dict.fromkeys(cluster.partitions, 0)
        done: list[float] = []

        async def follow(partition: Partition) -> None:
            reserved = 0

            async def reserve(nbytes: int) -> None:
                nonlocal reserved
                budget.release(reserved)
                total, reserved = reserved + nbytes, 0
                await budget.reserve(total)
                reserved = total

            subscribing = reader.subscribe(partition, Cursor(-1), stop=None, reserve=reserve)
            async with subscribing as batches:
                async for batch in batches:
                    budget.release(reserved)
                    reserved = 0
                    events[partition] += 1
                    records[partition] += batch.num_records
                    if records[partition] == 300 and not done:
                        done.append(running_loop().time())

        async with fetcher.running(), asyncio.TaskGroup() as tasks:
            following = [tasks.create_task(follow(partition)) for partition in cluster.partitions]
            await asyncio.sleep(4 * HEARTBEAT)
            for task in following:
                task.cancel()
        assert records[busy] == 300
        assert done[0] < 4.0
        assert min(events.values()) >= 3

    simulate(test)


@pytest.mark.fault("A value has 10 MiB, more than is asked for at once")
def test_an_event_larger_than_half_of_the_memory_is_let_through_by_idle_partitions() -> None:
    async def test() -> None:
        cluster = ScriptedCluster(50)
        large = cluster.partitions[7]
        cluster.logs[large].append(1, value=bytes(9 * MIB))
        budget = MemoryLimit(10 * MIB)
        fetcher = Fetcher(cluster, max_partition_bytes=MIB, max_bytes_in_flight=10 * MIB)
        reader = PartitionReader(cluster, fetcher, read_committed=True, max_event_bytes=64 * MIB)
        came = asyncio.Event()

        async def follow(partition: Partition) -> None:
            reserved = 0

            async def reserve(nbytes: int) -> None:
                nonlocal reserved
                budget.release(reserved)
                total, reserved = reserved + nbytes, 0
                await budget.reserve(total)
                reserved = total

            subscribing = reader.subscribe(partition, Cursor(-1), stop=None, reserve=reserve)
            async with subscribing as batches:
                async for batch in batches:
                    budget.release(reserved)
                    reserved = 0
                    if batch.num_records:
                        came.set()

        async with fetcher.running(), asyncio.TaskGroup() as tasks:
            following = [tasks.create_task(follow(partition)) for partition in cluster.partitions]
            async with asyncio.timeout(3 * HEARTBEAT):
                await came.wait()
            for task in following:
                task.cancel()

    simulate(test)
