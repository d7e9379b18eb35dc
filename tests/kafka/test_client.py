from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka.errors import (
    InvalidTopicError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from fanout.core.positions import Cursor
from fanout.errors import OptionError
from fanout.kafka.cluster import Cluster
from fanout.kafka.partitions import Partition
from fanout.kafka.reading.transport import Fetched, FetchRefused, OffsetSpec, PartitionFetch
from tests.support.kafka.brokers import (
    HERE,
    connect,
    create,
    fetch,
    open_client,
    persist,
    produce,
    produce_batch,
)
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from fanout.kafka.reading.transport import KafkaTransport
    from fanout.testing.kafka.broker import KafkaBroker

BATCH_HEAD = 61  # the bytes of a record batch before its first record


async def test_a_topic_is_listed_with_its_partitions_and_who_leads_them(
    kafka_broker: KafkaBroker,
) -> None:
    first = await create(kafka_broker, "listed", 3)
    async with connect(kafka_broker) as transport:
        assert transport.cluster_id
        assert transport.leader(first) is None
        assert await transport.describe(["listed"]) == {"listed": [0, 1, 2]}
        assert transport.leader(first) == 1
        assert transport.leader(Partition("listed", 3)) is None
        assert (await transport.topics())["listed"] == [0, 1, 2]
        assert await transport.describe([]) == {}
        # What it is about is another topic, and leaves this one.
        assert transport.leader(first) == 1


@pytest.mark.fault("A topic or a partition that is named does not exist")
@pytest.mark.fault("Metadata")
@pytest.mark.long
async def test_a_topic_that_does_not_exist_has_its_own_error_and_is_not_created(
    start_kafka_broker: Any,
) -> None:
    settings = {"auto.create.topics.enable": "true"}
    broker = await asyncio.to_thread(start_kafka_broker, settings=settings)
    await create(broker, "real")
    async with connect(broker) as transport:
        reported = await transport.describe(["unreal", "real", "not a name"])
        assert reported["real"] == [0]
        assert isinstance(reported["unreal"], UnknownTopicOrPartitionError)
        assert "unreal" in str(reported["unreal"])
        assert isinstance(reported["not a name"], InvalidTopicError)
        with pytest.raises(UnknownTopicOrPartitionError):
            await transport.offsets({Partition("unreal", 0): OffsetSpec.LATEST})
        assert "unreal" not in await transport.topics()


async def test_a_topic_that_is_deleted_is_led_by_nobody(kafka_broker: KafkaBroker) -> None:
    first = await create(kafka_broker, "deleted")
    async with connect(kafka_broker) as transport:
        await transport.describe(["deleted"])
        await asyncio.to_thread(kafka_broker.delete_topic, "deleted")
        (reported,) = (await transport.describe(["deleted"])).values()
        assert isinstance(reported, UnknownTopicOrPartitionError)
        assert transport.leader(first) is None


async def test_offsets_are_found_by_edge_and_by_time(kafka_broker: KafkaBroker) -> None:
    first = await create(kafka_broker, "offsets", 2)
    second = Partition("offsets", 1)
    keep = {"retention.ms": "-1"}  # however old the records say they are
    await asyncio.to_thread(kafka_broker.alter_topic, "offsets", keep)
    for stamp in (1_000, 2_000, 3_000):
        await produce(kafka_broker, first, b"x", stamp=stamp)
    await asyncio.to_thread(kafka_broker.delete_records, "offsets", 0, 1)
    async with connect(kafka_broker) as transport:
        ends = await transport.offsets({first: OffsetSpec.EARLIEST, second: OffsetSpec.LATEST})
        assert ends == {first: 1, second: 0}
        assert await transport.offsets({first: OffsetSpec.LATEST}) == {first: 3}
        assert await transport.offsets({first: 1_500}) == {first: 1}
        assert await transport.offsets({first: 2_001, second: 0}) == {first: 2, second: None}
        assert await transport.offsets({first: 3_001}) == {first: None}


async def test_the_offset_of_a_partition_that_does_not_exist_is_an_error(
    kafka_broker: KafkaBroker,
) -> None:
    await create(kafka_broker, "short")
    async with connect(kafka_broker) as transport:
        with pytest.raises(UnknownTopicOrPartitionError, match="short-1"):
            await transport.offsets({Partition("short", 1): OffsetSpec.LATEST})


async def test_an_open_transaction_ends_what_is_committed(kafka_broker: KafkaBroker) -> None:
    first = await create(kafka_broker, "open")
    await produce(kafka_broker, first, b"before", b"before")
    options = {"bootstrap.servers": kafka_broker.bootstrap_servers, "transactional.id": "open"}
    producer = Producer(options)
    await asyncio.to_thread(producer.init_transactions)
    producer.begin_transaction()
    producer.produce("open", b"within", partition=0)
    assert await asyncio.to_thread(producer.flush, 30) == 0
    async with (
        connect(kafka_broker) as committed,
        connect(kafka_broker, isolation_level="read_uncommitted") as everything,
    ):
        assert await committed.offsets({first: OffsetSpec.LATEST}) == {first: 2}
        assert await everything.offsets({first: OffsetSpec.LATEST}) == {first: 3}
        await asyncio.to_thread(producer.abort_transaction)
        await end_is(committed, first, 4)
        answer = await fetch(committed, first, 0)
        assert (answer.last_stable_offset, answer.high_watermark) == (4, 4)
        assert [aborted.first_offset for aborted in answer.aborted] == [2]
        assert (await fetch(everything, first, 0)).aborted == []


async def end_is(transport: KafkaTransport, partition: Partition, offset: int) -> None:
    """Wait until a partition ends there; the marker of a transaction is written after its end."""
    while True:
        if await transport.offsets({partition: OffsetSpec.LATEST}) == {partition: offset}:
            return


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_record_batches_come_as_they_are_stored(
    kafka_broker: KafkaBroker, codec: str
) -> None:
    first = await create(kafka_broker, f"codec-{codec}")
    value = b"canary" * 100
    await produce_batch(kafka_broker, first, value, value, codec=codec)
    async with connect(kafka_broker) as transport:
        await transport.describe([first.topic])
        answer = await fetch(transport, first, 1)
        assert (answer.high_watermark, answer.log_start_offset) == (2, 0)
        # The batch comes whole, from before the offset that is wanted.
        assert answer.batches[:8] == bytes(8)
        assert len(answer.batches) > BATCH_HEAD
        assert (bytes(answer.batches).count(value) == 2) is (codec == "none")
        assert (await fetch(transport, first, 2)).batches == b""


async def test_each_partition_of_a_fetch_has_its_own_answer(kafka_broker: KafkaBroker) -> None:
    first = await create(kafka_broker, "mixed", 2)
    await produce(kafka_broker, first, b"value")
    wanted = {
        first: PartitionFetch(0, 1000),
        Partition("mixed", 1): PartitionFetch(5, 1000),
        Partition("mixed", 2): PartitionFetch(0, 1000),
        Partition("gone", 0): PartitionFetch(0, 1000),
    }
    async with connect(kafka_broker) as transport:
        await transport.describe(["mixed"])
        answers = await transport.fetch(1, wanted, max_wait=5.0)
    assert isinstance(answers[first], Fetched)
    errors = {
        partition: type(answer.error)
        for partition, answer in answers.items()
        if isinstance(answer, FetchRefused)
    }
    assert errors == {
        Partition("mixed", 1): OffsetOutOfRangeError,
        Partition("mixed", 2): UnknownTopicOrPartitionError,
        Partition("gone", 0): UnknownTopicOrPartitionError,
    }


async def test_an_answer_has_about_as_many_bytes_as_are_wanted(kafka_broker: KafkaBroker) -> None:
    first = await create(kafka_broker, "bytes")
    for _ in range(4):
        await produce(kafka_broker, first, bytes(10_000))
    async with connect(kafka_broker) as transport:
        await transport.describe(["bytes"])
        for max_bytes, batches in ((1, 1), (25_000, 3), (1_000_000, 4)):
            answer = await fetch(transport, first, 0, max_bytes=max_bytes)
            assert (len(answer.batches) + 9_999) // 10_000 >= batches
    async with connect(kafka_broker, fetch_max_bytes=1) as transport:
        await transport.describe(["bytes"])
        assert len((await fetch(transport, first, 0)).batches) < 20_000


async def test_a_broker_waits_for_as_many_bytes_as_the_options_say(
    kafka_broker: KafkaBroker,
) -> None:
    first = await create(kafka_broker, "patience")
    await produce(kafka_broker, first, b"little")
    clock = asyncio.get_running_loop().time
    async with connect(kafka_broker, fetch_min_bytes=1_000_000) as transport:
        await transport.describe(["patience"])
        begun = clock()
        await fetch(transport, first, 0, max_wait=0.4)
        assert clock() - begun > 0.35


async def test_a_connection_that_is_idle_for_as_long_as_the_options_say_is_closed(
    kafka_broker: KafkaBroker,
) -> None:
    async with connect(kafka_broker, connections_max_idle=0.05) as transport:
        others = asyncio.all_tasks() - {asyncio.current_task()}  # the reader of the connection
        assert len(others) == 1
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait(others)
        assert (await transport.describe(["nowhere"])).keys() == {"nowhere"}


@pytest.mark.fault("OffsetCommit")
async def test_what_a_group_commits_is_seen_by_other_clients(kafka_broker: KafkaBroker) -> None:
    first = await create(kafka_broker, "commits", 2)
    second = Partition("commits", 1)
    group = "lag-tools"
    async with connect(kafka_broker) as transport:
        nothing = await persist(lambda: transport.committed(group, [first, second]))
        assert nothing == {first: None, second: None}
        behind = Cursor(6, state="epoch 3")
        assert await transport.commit(group, {first: behind}) == {}
        assert await transport.committed(group, [first, second]) == {first: behind, second: None}
        failed = await transport.commit(
            group, {second: Cursor(-1), Partition("gone", 0): Cursor(0)}
        )
        assert list(failed) == [Partition("gone", 0)]
        assert isinstance(failed[Partition("gone", 0)], UnknownTopicOrPartitionError)
    asked = ConsumerGroupTopicPartitions(group)
    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})
    listed = admin.list_consumer_group_offsets([asked])[group]
    found = (await asyncio.to_thread(listed.result, 10)).topic_partitions
    assert {(place.partition, place.offset, place.leader_epoch) for place in found} == {
        (0, 7, 3),
        (1, 0, None),
    }


async def test_what_another_client_commits_is_found(kafka_broker: KafkaBroker) -> None:
    first = await create(kafka_broker, "others")
    consumer = Consumer({"bootstrap.servers": kafka_broker.bootstrap_servers, "group.id": "others"})
    place = TopicPartition("others", 0, 42)
    await asyncio.to_thread(consumer.commit, offsets=[place], asynchronous=False)
    await asyncio.to_thread(consumer.close)
    async with connect(kafka_broker) as transport:
        assert await persist(lambda: transport.committed("others", [first])) == {first: Cursor(41)}


async def test_a_server_that_would_be_used_without_tls_is_not_even_connected_to() -> None:
    with pytest.raises(OptionError, match=r"10\.0\.0\.1 would be used without TLS"):
        async with open_client(Cluster("10.0.0.1", security=HERE)):
            pass
