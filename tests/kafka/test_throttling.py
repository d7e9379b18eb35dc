"""Answers by which brokers slow a client down for a quota (KIP-124, KIP-219)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.errors import RequestTimedOutError
from aiokafka.protocol.admin import ApiVersionResponse_v0
from aiokafka.protocol.fetch import FetchResponse_v11
from aiokafka.protocol.metadata import MetadataRequest, MetadataResponse_v5

from fanout.core.opening import open_stream
from fanout.core.statistics import SplitState
from fanout.kafka import open_writer
from fanout.kafka.cluster import Cluster, Server
from fanout.kafka.doctor.lag import read_partition_backlogs
from fanout.kafka.partitions import Partition
from fanout.kafka.protocol.connections import Connections, Lane, open_connections
from fanout.kafka.reading.client import start_client
from fanout.kafka.reading.consumer_options import ConsumerOptions
from fanout.kafka.reading.fetcher import Fetcher
from fanout.kafka.reading.transport import Fetched, PartitionFetch, Throttled
from fanout.testing.virtual_time.loop import running_loop, simulate
from tests.kafka.protocol.listeners import ChangingTimeouts, listening
from tests.kafka.protocol.peer import frame
from tests.support.kafka.brokers import HERE
from tests.support.kafka.scripted_cluster import ScriptedCluster, ScriptedSource
from tests.support.kafka.topics import new_topic
from tests.support.kafka.transacting import reported
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.testing.kafka.broker import KafkaBroker

MIB = 1 << 20
TOPIC = Partition("t", 0)


@pytest.mark.fault("A broker throttles for a quota")
@pytest.mark.fault("Fetch: no topics (throttled)")
async def test_an_answer_without_topics_is_throttled() -> None:
    """A broker answers a throttled fetch without any partition."""
    connections: Any = SimpleNamespace(send_to_any=_metadata, set_brokers=lambda _: None)

    async def send(*_: object) -> Any:
        return FetchResponse_v11(2500, 0, 0, [])

    connections.send = send
    client = await start_client(connections, ConsumerOptions())
    wanted = {TOPIC: PartitionFetch(0, MIB), Partition("u", 0): PartitionFetch(0, MIB)}
    assert await client.fetch(1, wanted, max_wait=0.5) == dict.fromkeys(wanted, Throttled(2.5))


@pytest.mark.fault("A broker throttles for a quota")
async def test_an_answer_that_throttles_and_has_records_delivers_them() -> None:
    """Compatible brokers, such as Redpanda, answer with the records and slow down after them."""
    connections: Any = SimpleNamespace(send_to_any=_metadata, set_brokers=lambda _: None)

    async def send(*_: object) -> Any:
        return FetchResponse_v11(2500, 0, 0, [("t", [(0, 0, 9, 9, 0, None, -1, b"records")])])

    connections.send = send
    client = await start_client(connections, ConsumerOptions())
    (answer,) = (await client.fetch(1, {TOPIC: PartitionFetch(0, MIB)}, max_wait=0.5)).values()
    assert isinstance(answer, Fetched)
    assert answer.batches == b"records"


async def _metadata(*_: object) -> Any:
    return MetadataResponse_v5(0, [], "scripted", -1, [])


@in_virtual_time
async def test_a_throttled_fetch_is_made_again_when_its_time_is_over_and_not_before() -> None:
    cluster = ScriptedCluster()
    cluster.log().append(5)
    cluster.throttles.extend([3.0, 0.001, 90.0, 7.0])
    async with open_stream(ScriptedSource(cluster, start="earliest")) as stream:
        batch = await anext(stream)
        totals = stream.statistics().totals
        assert batch.num_records == 5
        assert running_loop().time() == pytest.approx(100.001, abs=0.1)
        assert len(cluster.fetches) == 5
        assert totals.throttled == 4
        assert totals.resubscriptions == {}


@pytest.mark.fault("A broker throttles for a quota")
@in_virtual_time
async def test_other_brokers_go_on_while_one_throttles() -> None:
    cluster = ScriptedCluster(2)
    slow, busy = cluster.partitions
    cluster.leaders[busy] = cluster.known[busy] = 2
    for log in cluster.logs.values():
        log.append(1)
    cluster.throttles.append(50.0)
    async with open_stream(ScriptedSource(cluster, start="earliest")) as stream:
        first = await anext(stream)
        assert running_loop().time() < 1.0
        cluster.logs[Partition.of(first.split.id)].append(1)
        cluster.changed()
        assert (await anext(stream)).split == first.split
        assert running_loop().time() < 1.0
        last = await anext(stream)
        assert {str(first.split), str(last.split)} == {str(slow), str(busy)}
        assert running_loop().time() == pytest.approx(50.0, abs=0.1)


@pytest.mark.fault("A broker throttles for a quota")
@in_virtual_time
async def test_a_partition_that_is_throttled_for_long_is_not_silent() -> None:
    cluster = ScriptedCluster()
    cluster.log().append(1)
    cluster.throttles.append(600.0)
    source = ScriptedSource(cluster, start="earliest", silence_timeout=36.0)
    async with open_stream(source) as stream:
        reading = asyncio.create_task(anext(stream))
        await asyncio.sleep(599.0)
        (split,) = stream.statistics().splits.values()
        assert (split.state, split.subscriptions) == (SplitState.LIVE, 1)
        assert not stream.caught_up
        assert (await reading).num_records == 1
        assert len(cluster.fetches) == 2


@in_virtual_time
async def test_a_bounded_stream_ends_when_its_throttled_partition_is_read() -> None:
    cluster = ScriptedCluster()
    cluster.log().append(2)
    cluster.throttles.extend([20.0, 20.0])
    source = ScriptedSource(cluster, start="earliest", stop="latest")
    async with open_stream(source) as stream:
        assert [batch.num_records async for batch in stream] == [2]


@pytest.mark.parametrize("after", [0.1, 4.9, 5.1, 30.0])
def test_closing_and_cancelling_do_not_wait_for_a_throttle(after: float) -> None:
    async def main() -> float:
        cluster = ScriptedCluster()
        cluster.throttles.append(600.0)
        async with open_stream(ScriptedSource(cluster, start="earliest")) as stream:
            reading = asyncio.create_task(anext(stream))
            await asyncio.sleep(after)
            reading.cancel()
            await asyncio.wait([reading])
            assert reading.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return running_loop().time()

    assert simulate(main) < after + 0.01


@in_virtual_time
async def test_a_reader_that_comes_while_a_broker_throttles_is_answered_without_a_fetch() -> None:
    cluster = ScriptedCluster(2)
    cluster.throttles.append(60.0)
    fetcher = Fetcher(cluster, max_partition_bytes=MIB, max_bytes_in_flight=64 * MIB)
    one, two = cluster.partitions
    async with fetcher.running():
        with fetcher.subscribed(one), fetcher.subscribed(two):
            answers = [
                await fetcher.fetch(partition, PartitionFetch(0, MIB), patience=0.0, urgent=True)
                for partition in (one, two, one)
            ]
    assert all(isinstance(answer, Throttled) for answer in answers)
    assert len(cluster.fetches) == 1


async def test_the_doctor_says_that_a_broker_throttles() -> None:
    cluster = ScriptedCluster()
    cluster.log().append(3)
    cluster.throttles.append(1.0)
    backlogs = await read_partition_backlogs(cluster, {TOPIC: 1})
    assert backlogs["t-0"].obstacle == "broker 1 throttles this client, for a quota"


@pytest.mark.fault("A broker throttles for a quota")
@pytest.mark.fault("Every request: a throttle")
async def test_a_request_waits_until_the_broker_reads_it() -> None:
    """A request in the socket of a muted connection would use up its timeout there."""
    arrived: list[float] = []
    loop = asyncio.get_running_loop()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
            kind, number = int.from_bytes(request[:2]), int.from_bytes(request[4:8])
            if kind == MetadataRequest.API_KEY:
                arrived.append(loop.time())
                throttle = 300 if len(arrived) == 1 else 60_000
                answer = MetadataResponse_v5(throttle, [], "scripted", -1, [])
            else:
                answer = ApiVersionResponse_v0(0, [(MetadataRequest.API_KEY, 0, 5), (18, 0, 0)])
            writer.write(frame(number, answer.encode()))

    timeouts = ChangingTimeouts(30.0)
    async with listening(serve) as server:
        cluster = Cluster(f"{server.host}:{server.port}", security=HERE)
        async with open_connections(cluster, timeouts) as connections:
            for _ in range(2):
                await connections.send_to_any(MetadataRequest([]))
            assert arrived[1] - arrived[0] >= 0.29
            timeouts.request_timeout = 0.5
            with pytest.raises(RequestTimedOutError, match=r"exceeded a quota") as caught:
                await connections.send_to_any(MetadataRequest([]))
            assert "accepts no request for another" in str(caught.value)
            assert connections.throttled == 2
    assert len(arrived) == 2


@pytest.mark.fault("A broker throttles for a quota")
@pytest.mark.long
@pytest.mark.parametrize(
    "quota", [{"consumer_byte_rate": 100_000.0}, {"request_percentage": 0.5}], ids=list
)
async def test_a_real_broker_that_throttles_is_read_without_a_resubscription(
    start_kafka_broker: Callable[..., KafkaBroker], quota: dict[str, float]
) -> None:
    window = {"quota.window.num": "2", "quota.window.size.seconds": "1"}
    broker = await asyncio.to_thread(start_kafka_broker, settings=window)
    topic = await new_topic(broker, partitions=2)
    await asyncio.to_thread(broker.set_quotas, **quota)
    async with topic.reading() as reader, asyncio.timeout(60):
        throttled = 0
        while throttled < 2:
            for partition in range(2):
                values = [{"value": b"x" * 1000} for _ in range(50)]
                await asyncio.to_thread(topic.write, values, partition)
            await asyncio.sleep(0.1)
            throttled = reader.stream.statistics().totals.throttled
        # One request of a busy machine takes more than the quota: its broker answers none of them.
        await asyncio.to_thread(broker.set_quotas, **dict.fromkeys(quota))
        await reader.has(topic.written)
    assert reader.log == topic.log
    assert reader.causes == []


@pytest.mark.fault("Every request: a throttle")
@pytest.mark.long
async def test_a_writer_that_is_throttled_writes_each_record_once(
    start_kafka_broker: Callable[..., KafkaBroker],
) -> None:
    window = {"quota.window.num": "2", "quota.window.size.seconds": "1"}
    broker = await asyncio.to_thread(start_kafka_broker, settings=window)
    topic = await new_topic(broker, partitions=2)
    await asyncio.to_thread(broker.set_quotas, producer_byte_rate=100_000.0)
    cluster = Cluster(broker.bootstrap_servers, security=HERE)
    written = 0
    async with open_writer(cluster, topic.name, transactional_id="throttled") as writer:
        while not writer.statistics().throttled:
            rows = [{"key": f"{written + row}", "value": "x" * 1000} for row in range(200)]
            await writer.write(rows)
            await writer.commit()
            written += len(rows)
        await writer.write([{"key": f"{written}", "value": "last"}])
        await writer.commit()
    await reported(broker, "throttled")
    reader = await topic.read()
    keys = [key for batch in reader.batches for key in batch.records["key"].to_pylist()]
    assert sorted(map(int, keys)) == [*range(written + 1)]


@in_virtual_time
async def test_a_request_that_waits_sees_that_the_time_becomes_longer() -> None:
    """An answer to a request that was sent before may throttle further."""
    loop, here = asyncio.get_running_loop(), Server("broker", 9092)
    any_: Any = None
    options = ConsumerOptions(request_timeout=30.0)
    connections = Connections(
        (), security=any_, context=any_, client_id="c", options=options, scope=any_
    )
    connections._note_throttle(here, Lane.CALLS, SimpleNamespace(throttle_time_ms=3000))
    loop.call_later(
        1.0,
        connections._note_throttle,
        here,
        Lane.CALLS,
        SimpleNamespace(throttle_time_ms=9000),
    )
    began = loop.time()
    await connections._wait_for_quota(here, Lane.CALLS)
    assert loop.time() - began == pytest.approx(10.0)
