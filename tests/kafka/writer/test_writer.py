"""The public writer on the real broker: what it writes, where, and when it is seen."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import fanout
from fanout.core.positions import Cursor
from fanout.errors import OptionError, PositionError, StreamStateError
from fanout.kafka import Cluster, KafkaSource, Partition, ShuffleSource, open_writer
from fanout.kafka.writing.delivery import Delivery, Part, cut_parts
from fanout.kafka.writing.sender import CLOSED
from tests.kafka.writer.read_process_write import AT_ONCE, run
from tests.kafka.writer.writers import rows, values, writing
from tests.support.kafka.brokers import HERE
from tests.support.kafka.topics import new_topic, producer
from tests.support.kafka.transacting import reported, transactions
from tests.support.kafka.writing import HEADERS, read, records

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fanout.testing.kafka.broker import KafkaBroker

PARTITIONS = 3


@pytest.fixture
async def topic(kafka_broker: KafkaBroker) -> str:
    return (await new_topic(kafka_broker, partitions=PARTITIONS)).name


async def test_keys_are_where_kafkas_own_producer_has_them_and_in_order(
    kafka_broker: KafkaBroker, topic: str
) -> None:
    keys = [b"key-%d" % (number % 17) for number in range(500)]
    async with writing(kafka_broker, topic) as writer:
        for begin in range(0, 500, 100):
            of_keys = [{"key": key, "value": key} for key in keys[begin : begin + 100]]
            await writer.write(of_keys)
    ours = await read(kafka_broker, topic, PARTITIONS)
    other = await new_topic(kafka_broker, partitions=PARTITIONS)

    def write() -> None:
        java = producer(kafka_broker, partitioner="murmur2_random")
        for key in keys:
            java.produce(other.name, key, key)
        java.flush(20)

    await asyncio.to_thread(write)
    theirs = await read(kafka_broker, other.name, PARTITIONS)
    assert {n: [one.key for one in ours[n]] for n in ours} == {
        n: [one.key for one in theirs[n]] for n in theirs
    }


async def test_rows_without_a_key_go_to_all_partitions_in_turn(
    kafka_broker: KafkaBroker, topic: str
) -> None:
    async with writing(kafka_broker, topic) as writer:
        for _ in range(6):
            await writer.write(rows("x"))
    found = await read(kafka_broker, topic, PARTITIONS)
    assert [len(found[number]) for number in range(PARTITIONS)] == [2, 2, 2]


async def test_a_record_batch_and_rows_are_written_alike(kafka_broker: KafkaBroker) -> None:
    topic = await new_topic(kafka_broker)
    at = datetime.now(UTC).replace(microsecond=4_000)  # an older one is beyond the retention
    headers = [("a", b"1"), ("b", None)]
    as_rows = [
        {"key": "k", "value": "v", "headers": headers, "timestamp": at},
        {"key": None, "value": None, "timestamp": at},
    ]
    as_batch = pa.record_batch(
        {
            "key": pa.array(["k", None]),
            "value": pa.array([b"v", None], pa.binary()),
            "headers": pa.array([headers, None], HEADERS),
            "timestamp": pa.array([at, at], pa.timestamp("us", "UTC")),
        }
    )
    async with writing(kafka_broker, topic.name) as writer:
        await writer.write(as_rows)
        await writer.write(as_batch)
    (of_rows, tombstone, *of_batch) = (await read(kafka_broker, topic.name))[0]
    assert [of_rows, tombstone] == of_batch
    assert (of_rows.key, of_rows.value, of_rows.timestamp) == (
        b"k",
        b"v",
        round(at.timestamp() * 1000),
    )
    assert of_rows.headers == (("a", b"1"), ("b", None))
    assert (tombstone.key, tombstone.value, tombstone.headers) == (None, None, ())


async def test_rows_may_name_their_topic_and_partition(
    kafka_broker: KafkaBroker, topic: str
) -> None:
    other = (await new_topic(kafka_broker, partitions=2)).name
    given = [
        {"topic": topic, "partition": 2, "value": "a"},
        {"topic": other, "partition": None, "key": "k", "value": "b"},
        {"topic": topic, "partition": 0, "value": "c"},
        {"topic": topic, "key": "user-1", "value": "d"},
    ]
    async with writing(kafka_broker) as writer:
        delivery = await writer.write(given)
        where = {placed.partition for placed in await delivery.confirmed()}
    assert {Partition(topic, 2), Partition(topic, 0)} <= where
    assert sorted(await values(kafka_broker, topic, PARTITIONS)) == [b"a", b"c", b"d"]  # type: ignore[type-var]
    assert await values(kafka_broker, other, 2) == [b"b"]


async def test_a_partitioner_of_the_users_chooses(kafka_broker: KafkaBroker, topic: str) -> None:
    def last(keys: pa.Array, count: int) -> pa.Array:
        return pa.repeat(count - 1, len(keys))

    async with writing(kafka_broker, topic, partitioner=last) as writer:
        await writer.write([{"value": "a"}, {"value": "b", "partition": 0}])
    found = await read(kafka_broker, topic, PARTITIONS)
    assert {number: [one.value for one in found[number]] for number in found} == {
        0: [b"b"],
        2: [b"a"],
    }


@pytest.mark.parametrize("limit", [{}, {"batch_size": 100}, {"cut": "2000"}])
async def test_a_delivery_says_where_each_record_is(
    kafka_broker: KafkaBroker, topic: str, limit: dict[str, Any]
) -> None:
    given = [b"%d" % number + bytes(90) for number in range(300)]
    if settings := limit.pop("cut", None):
        sizes = {"max.message.bytes": settings}
        await asyncio.to_thread(kafka_broker.alter_topic, topic, sizes)
    async with writing(kafka_broker, topic, **limit) as writer:
        written = [
            (some, await writer.write(records(topic, some, [n % 3 for n in range(len(some))])))
            for some in (given[:10], given[10:11], given[11:])
        ]
        placed = [(some, await delivery.confirmed()) for some, delivery in written]
    found = await read(kafka_broker, topic, PARTITIONS)
    for some, places in placed:
        for number in range(PARTITIONS):
            offsets = [
                offset
                for place in places
                if place.partition == Partition(topic, number) and place.first_offset is not None
                for offset in range(place.first_offset, place.first_offset + place.rows)
            ]
            assert [found[number][offset].value for offset in offsets] == some[number::3]


async def test_nothing_to_write_is_delivered_at_once(kafka_broker: KafkaBroker) -> None:
    async with writing(kafka_broker, "no-such-topic") as writer:
        assert await (await writer.write([])).confirmed() == ()


def test_the_parts_of_a_batch_are_cut_with_it() -> None:
    a, b = Delivery(3), Delivery(2)
    parts = [Part(a, 3), Part(b, 2)]
    assert cut_parts(parts, 2) == ([Part(a, 2)], [Part(a, 1), Part(b, 2)])
    assert cut_parts(parts, 3) == ([Part(a, 3)], [Part(b, 2)])
    assert cut_parts(parts, 5) == (parts, [])
    assert cut_parts([], 5) == ([], [])


async def test_leaving_the_block_waits_for_brokers(kafka_broker: KafkaBroker, topic: str) -> None:
    given = [bytes(100)] * 5_000
    async with writing(kafka_broker, topic) as writer:
        delivery = await writer.write(rows(*given))
    assert sum(placed.rows for placed in await delivery.confirmed()) == len(given)


@pytest.mark.parametrize("transactional", [False, True])
async def test_a_call_after_the_block_is_refused_at_once(
    kafka_broker: KafkaBroker,
    topic: str,
    transactional: bool,  # noqa: FBT001 - a parameter
) -> None:
    id_ = f"{topic}-closed" if transactional else None
    source = KafkaSource(cluster=Cluster(kafka_broker.bootstrap_servers, security=HERE), topics="a")
    async with writing(kafka_broker, topic, transactional_id=id_) as writer:
        await writer.write(rows("x"))
        if transactional:
            await writer.commit()
    calls: list[Callable[[], Awaitable[Any]]] = [lambda: writer.write(rows("late")), writer.flush]
    if transactional:
        calls += [writer.commit, writer.abort, lambda: writer.positions(source)]
    for call in calls:
        for _ in range(2):
            with pytest.raises(StreamStateError, match="the writer is closed"):
                await call()


@pytest.mark.parametrize("transactional", [False, True])
async def test_what_tasks_have_written_when_the_block_is_left_is_there(
    kafka_broker: KafkaBroker,
    topic: str,
    transactional: bool,  # noqa: FBT001 - a parameter
    caplog: pytest.LogCaptureFixture,
) -> None:
    written: list[bytes] = []
    begun = asyncio.Event()
    id_ = f"{topic}-tasks" if transactional else None

    async def write(value: bytes) -> None:
        await writer.write(rows(value))
        written.append(value)
        begun.set()

    async def write_on() -> None:
        while True:
            await writer.write(rows(b"on and on"))

    async with writing(kafka_broker, topic, transactional_id=id_, buffer_memory=2_000) as writer:
        given = [b"%d" % number for number in range(300)]
        tasks = [asyncio.create_task(write(value)) for value in given]
        tasks += [asyncio.create_task(write_on()) for _ in range(2)]
        await begun.wait()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [one for one in results if one is not None]
    assert len(written) + len(refused) == 302
    assert {str(one) for one in refused} == {CLOSED}
    found = await values(kafka_broker, topic, PARTITIONS)
    if transactional:
        assert found == []
        assert "are aborted" in caplog.text
        assert "could not be aborted" not in caplog.text
        await reported(kafka_broker, str(id_))
        async with transactions(kafka_broker) as calls:
            description = await calls.describe(str(id_))
        assert description is not None
        assert description.settled
    else:
        assert set(written) <= set(found)


async def test_a_flush_that_waits_when_the_block_is_left_ends(
    kafka_broker: KafkaBroker, topic: str
) -> None:
    try:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what is tested
            async with writing(kafka_broker, topic) as writer:
                await (await writer.write(rows("x"))).confirmed()
                await asyncio.to_thread(kafka_broker.pause)
                await writer.write(rows("y"))
                flushing = asyncio.create_task(writer.flush())
                await asyncio.sleep(0)
                raise ZeroDivisionError
    finally:
        await asyncio.to_thread(kafka_broker.resume)
    with pytest.raises(StreamStateError, match="the writer is closed"):
        await flushing


async def test_an_error_in_the_block_waits_for_no_broker(
    kafka_broker: KafkaBroker, topic: str
) -> None:
    try:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what is tested
            async with writing(kafka_broker, topic) as writer:
                await (await writer.write(rows("x"))).confirmed()
                await asyncio.to_thread(kafka_broker.pause)
                delivery = await writer.write(rows("y"))
                raise ZeroDivisionError
    finally:
        await asyncio.to_thread(kafka_broker.resume)
    with pytest.raises(StreamStateError, match="closed before brokers confirmed"):
        await delivery.confirmed()


async def test_readers_see_a_commit_as_a_whole_and_nothing_of_an_abort(
    kafka_broker: KafkaBroker, topic: str
) -> None:
    async with writing(kafka_broker, topic, transactional_id=f"{topic}-writer") as writer:
        await writer.write(rows("a", "b", "c"))
        await writer.flush()
        assert await values(kafka_broker, topic, PARTITIONS) == []
        await writer.commit()
        await writer.write(rows("d"))
        await writer.abort()
        await writer.write(rows("e"))
        await writer.commit()
        await writer.commit()
        await writer.abort()
    found = await eventually_read(kafka_broker, topic, 4)
    assert found == [b"a", b"b", b"c", b"e"]


async def eventually_read(broker: KafkaBroker, topic: str, count: int) -> list[bytes]:
    """Read committed values until so many are there: partitions are committed one by one."""
    found: list[Any] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            found = await values(broker, topic, PARTITIONS)
    return sorted(found)


async def test_what_was_not_committed_is_aborted_when_the_block_is_left(
    kafka_broker: KafkaBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    id_ = f"{topic}-left"
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what is tested
        async with writing(kafka_broker, topic, transactional_id=id_) as writer:
            await writer.write(rows("a"))
            raise ZeroDivisionError
    with caplog.at_level(logging.WARNING):
        async with writing(kafka_broker, topic, transactional_id=id_) as writer:
            await writer.write(rows("b"))
    assert f"records of {id_} were written and not committed" in caplog.text
    # A reader does not wait for a transaction that is open: it is none.
    async with writing(kafka_broker, topic) as plain:
        await plain.write([{"value": "c", "partition": number} for number in range(PARTITIONS)])
    assert await eventually_read(kafka_broker, topic, PARTITIONS) == [b"c"] * PARTITIONS


async def test_positions_are_committed_with_what_was_made_of_them(
    kafka_broker: KafkaBroker, topic: str
) -> None:
    source = await new_topic(kafka_broker, partitions=2)
    given = 0
    for count in (AT_ONCE + 7, 0, 5):
        await asyncio.to_thread(source.put, count, partition=given % 2)
        given += count
        await run(kafka_broker.bootstrap_servers, source.name, topic, f"{topic}-job")
        found = await eventually_read(kafka_broker, topic, given)
        assert sorted(map(int, found)) == list(range(given))


async def test_an_older_drain_is_not_committed_after_a_newer_one(
    kafka_broker: KafkaBroker, topic: str
) -> None:
    source = await new_topic(kafka_broker)
    await asyncio.to_thread(source.put, 20)
    reading, id_ = source.source(start="earliest"), f"{topic}-order"
    for resumes in (True, False):
        async with writing(kafka_broker, topic, transactional_id=id_) as writer:
            resume = await writer.positions(reading) if resumes else None
            async with fanout.open(reading, resume=resume) as stream:
                first = await stream.drain(max_records=10, first_wait=20.0)
                second = await stream.drain(max_records=10, first_wait=20.0)
                await writer.commit(second)  # without resume it is where the first run was
                with pytest.raises(
                    StreamStateError, match=r"up to offset 20, and .* offset 10, so"
                ):
                    await writer.commit(first)
    async with writing(kafka_broker, topic, transactional_id=id_) as writer:
        stored = fanout.Checkpoint.from_json(await writer.positions(reading))
    assert [state.position for state in stored.splits.values()] == [fanout.Cursor(19)]


@pytest.mark.long
@pytest.mark.fault("A topic is deleted and created again, and ends before the position")
async def test_positions_of_a_topic_that_begins_anew_are_committed_although_they_go_back(
    kafka_broker: KafkaBroker, topic: str
) -> None:
    source = await new_topic(kafka_broker)
    await asyncio.to_thread(source.put, 20)
    reading = source.source(start="earliest", on_data_loss="earliest")
    async with (
        writing(kafka_broker, topic, transactional_id=f"{topic}-anew") as writer,
        fanout.open(reading) as stream,
    ):
        for count in (20, 4):
            if count == 4:
                await asyncio.to_thread(kafka_broker.delete_topic, source.name)
                source = await new_topic(kafka_broker, name=source.name)
                await asyncio.to_thread(source.put, count)
            drained = await stream.drain(max_records=count, first_wait=20.0)
            for batch in drained.batches:
                await writer.write([{"value": each.as_py()} for each in batch.records["value"]])
            await writer.commit(drained)
        stored = fanout.Checkpoint.from_json(await writer.positions(reading))
    (position,) = (state.position for state in stored.splits.values())
    assert isinstance(position, Cursor)
    assert position.sequence == 3
    assert len(await eventually_read(kafka_broker, topic, 24)) == 24


async def test_the_positions_of_a_start_stay_however_often_the_first_run_fails(
    kafka_broker: KafkaBroker, topic: str
) -> None:
    source = await new_topic(kafka_broker)
    await asyncio.to_thread(source.put, 3)
    reading = source.source(start="latest")
    first = ""
    for _ in range(2):
        async with writing(kafka_broker, topic, transactional_id=f"{topic}-latest") as writer:
            found = await writer.positions(reading)
        first = first or found
        # The first ones have the id of the topic too, which a group does not store.
        assert fanout.Checkpoint.from_json(found) == fanout.Checkpoint.from_json(first)
        await asyncio.to_thread(source.put, 2)
    async with fanout.open(reading, resume=first) as stream:
        drained = await stream.drain(max_records=2, max_wait=20.0)
    assert [v for batch in drained.batches for v in batch.records["value"].to_pylist()] == [
        b"3",
        b"4",
    ]


async def test_a_partition_that_appears_later_is_read_from_its_beginning(
    kafka_broker: KafkaBroker, topic: str
) -> None:
    source = await new_topic(kafka_broker)
    await asyncio.to_thread(source.put, 1)
    id_ = f"{topic}-grows"
    await run(kafka_broker.bootstrap_servers, source.name, topic, id_)
    await asyncio.to_thread(kafka_broker.grow_topic, source.name, 2)
    await asyncio.to_thread(source.put, 1, partition=1)
    reading = source.source()
    async with (
        writing(kafka_broker, topic, transactional_id=id_) as writer,
        fanout.open(reading, resume=await writer.positions(reading)) as stream,
    ):
        drained = await stream.drain(max_wait=20.0, max_records=1)
        await writer.commit(drained)
    assert [batch.split.id for batch in drained.batches] == [f"{source.name}-1"]


async def test_positions_of_anything_else_are_refused(
    kafka_broker: KafkaBroker, topic: str
) -> None:
    source = (await new_topic(kafka_broker)).source()
    async with writing(kafka_broker, topic) as writer:
        for call in (writer.commit(), writer.abort(), writer.positions(source)):
            with pytest.raises(StreamStateError, match="open the writer with transactional_id="):
                await call
    shuffled: Any = ShuffleSource(source)
    async with writing(kafka_broker, topic, transactional_id=f"{topic}-other") as writer:
        with pytest.raises(OptionError, match="must be a KafkaSource, not ShuffleSource"):
            await writer.positions(shuffled)
        with pytest.raises(StreamStateError, match="these are positions of kafka:elsewhere"):
            await writer.commit(fanout.Checkpoint("kafka:elsewhere"))


@pytest.mark.long
async def test_a_source_in_another_cluster_is_refused(
    kafka_broker: KafkaBroker, mortal_broker: KafkaBroker, topic: str
) -> None:
    source = (await new_topic(mortal_broker)).source()
    async with writing(kafka_broker, topic, transactional_id=f"{topic}-far") as writer:
        with pytest.raises(PositionError, match="positions of its own cluster only"):
            await writer.positions(source)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"topic": ""}, "topic='' must be a string, and not empty"),
        ({"transactional_id": 1}, "transactional_id=1 must be a string"),
        ({"transactional_id": "w", "transaction_timeout": 0}, "transaction_timeout=0 must be"),
        ({"partitioner": "murmur2"}, "must be a function of keys and a number"),
        ({"producer_options": {"acks": 1}}, "acks"),
    ],
)
async def test_malformed_options_are_refused(
    kafka_broker: KafkaBroker, wrong: dict[str, Any], says: str
) -> None:
    cluster = Cluster(kafka_broker.bootstrap_servers, security=HERE)
    with pytest.raises(OptionError, match=says):
        async with open_writer(cluster, **wrong):
            raise AssertionError
    with pytest.raises(OptionError, match="cluster must be"):
        async with open_writer(kafka_broker.bootstrap_servers):  # type: ignore[arg-type]
            raise AssertionError
