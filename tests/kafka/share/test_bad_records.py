from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fanout.decoding import Avro, SchemaRegistry
from fanout.errors import (
    AcknowledgementError,
    BadRecordError,
    DecodeFailedError,
    FanOutError,
    OptionError,
    RetryLaterError,
    ServiceError,
    SplitFailedError,
)
from fanout.kafka.cluster import Cluster
from fanout.kafka.share.dead_letters import DeadLetters
from fanout.kafka.writing.producer_id import Idempotent
from fanout.kafka.writing.writer import open_writer
from tests.support.avro_records import ORDER, ORDERS, framed, written
from tests.support.kafka.sharing import (
    LONG,
    SHORT,
    deliveries,
    first,
    lent,
    locks,
    new_group,
    nothing_comes,
    offsets,
    until,
)
from tests.support.kafka.topics import PLAINTEXT, new_topic
from tests.support.patience import PATIENCE
from tests.support.schema_registry import embedded_registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.testing.kafka.broker import KafkaBroker
    from tests.support.kafka.sharing import Group
    from tests.support.kafka.topics import Topic


async def letters(topic: Topic) -> list[tuple[int, dict[str, Any]]]:
    """Return the partition and the record of each dead letter, with its headers by their keys."""
    reader = await topic.read()
    rows = [row for batch in reader.batches for row in batch.records.to_pylist()]
    for row in rows:
        row["headers"] = {pair["key"]: pair["value"] for pair in row["headers"]}
    return [(row["partition"], row) for row in rows]


def numbers(records: pa.RecordBatch) -> pa.RecordBatch:
    """Parse the values as numbers; raise for other text, and leave nulls out."""
    records = records.filter(pc.is_valid(records.column("value")))
    value = records.column("value").cast(pa.string()).cast(pa.int64())
    fields = [*records.schema]
    return pa.RecordBatch.from_arrays(
        [records.column("topic"), records.column("partition"), records.column("offset"), value],
        names=[*(field.name for field in fields[2:5]), "number"],
    )


def none_at_all(records: pa.RecordBatch) -> pa.RecordBatch:
    if records.num_rows:
        raise ValueError("no such record")
    return records


async def with_a_bad_one(broker: KafkaBroker) -> Group:
    group = await new_group(broker, partitions=2)
    values = [b"0", b"canary", None, b"3"]
    records: list[dict[str, Any]] = [
        {"value": value, "key": b"k", "headers": [("own", b"x")]} for value in values
    ]
    await asyncio.to_thread(group.topic.write, records, 1)
    return group


async def test_a_record_that_cannot_be_decoded_goes_to_a_topic_with_the_reason(
    kafka_broker: KafkaBroker,
) -> None:
    group = await with_a_bad_one(kafka_broker)
    topic = await new_topic(kafka_broker)
    async with group.open(
        decode=numbers, on_bad_record="dead_letter", dead_letter_topic=topic.name
    ) as stream:
        batch = await first(stream)
        assert batch.records.column("number").to_pylist() == [0, 3]
        await stream.acknowledge(batch)
        assert (lent(stream).accepted, lent(stream).rejected) == (3, 1)
    ((partition, letter),) = await letters(topic)
    assert (partition, letter["key"], letter["value"]) == (0, b"k", b"canary")
    reason = letter["headers"].pop("fanout.reason").decode()
    assert f"decode failed for {group.topic.name}-1 from offset 1 to 1" in reason
    assert letter["headers"] == {
        "own": b"x",
        "fanout.group": group.id.encode(),
        "fanout.topic": group.topic.name.encode(),
        "fanout.partition": b"1",
        "fanout.offset": b"1",
        "fanout.deliveryCount": b"1",
    }


async def test_schemas_come_from_a_registry_and_a_record_of_none_is_bad(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker)
    topic = await new_topic(kafka_broker)
    with embedded_registry() as embedded:
        number = embedded.register("orders-value", ORDER)
        payloads = framed(number, written(ORDER, ORDERS))
        payloads[3:3] = framed(77, written(ORDER, ORDERS[:1]))
        await asyncio.to_thread(group.topic.write, [{"value": each} for each in payloads])
        decode = Avro(ORDER, registry=SchemaRegistry(embedded.url))
        async with group.open(
            decode=decode, on_bad_record="dead_letter", dead_letter_topic=topic.name
        ) as stream:
            batch = await first(stream)
            assert batch.records.select(list(ORDERS[0])).to_pylist() == ORDERS
            await stream.acknowledge(batch)
    ((_, letter),) = await letters(topic)
    assert letter["value"] == payloads[3]


async def test_a_record_that_cannot_be_decoded_ends_the_stream_otherwise(
    kafka_broker: KafkaBroker,
) -> None:
    group = await with_a_bad_one(kafka_broker)
    async with group.open(decode=numbers) as stream:
        with pytest.raises(SplitFailedError) as caught:
            await first(stream)
    assert isinstance(caught.value.__cause__, DecodeFailedError)
    assert "canary" not in str(caught.value)


async def test_rows_are_refused_by_hand_and_the_others_acknowledged(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker, 4)
    topic = await new_topic(kafka_broker)
    async with group.open(dead_letter_topic=topic.name) as stream:
        batch = await first(stream)
        await stream.lending.reject(batch, [1, 3], reason="too old")
        await stream.acknowledge(batch)
        assert (lent(stream).accepted, lent(stream).rejected) == (2, 2)
        await group.put(1)
        assert offsets(await first(stream)) == [4]
    found = [letter for _, letter in await letters(topic)]
    assert [letter["value"] for letter in found] == [b"1", b"3"]
    assert {letter["headers"]["fanout.reason"] for letter in found} == {b"too old"}


async def test_a_record_is_not_refused_before_the_topic_has_it(kafka_broker: KafkaBroker) -> None:
    group = await new_group(kafka_broker)
    await asyncio.to_thread(group.topic.write, [{"value": b"x" * 1000}])
    small = await new_topic(kafka_broker, configs={"max.message.bytes": "200"})
    async with group.open(dead_letter_topic=small.name) as stream:
        batch = await first(stream)
        with pytest.raises(FanOutError, match=r"max\.message\.bytes|cannot take"):
            await stream.lending.reject(batch, [0], reason="bad")
        assert lent(stream).rejected == 0
    async with group.open() as stream:
        assert deliveries(await first(stream)) == {2}


async def test_a_refusal_that_the_group_does_not_take_is_made_again(
    kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, topic = await new_group(kafka_broker, 1), await new_topic(kafka_broker)
    write, late = DeadLetters.write, asyncio.Event()

    async def write_past_the_lock(
        self: DeadLetters, records: pa.RecordBatch, reasons: Sequence[str]
    ) -> None:
        await write(self, records, reasons)
        if not late.is_set():
            late.set()
            await asyncio.sleep(3.5)

    monkeypatch.setattr(DeadLetters, "write", write_past_the_lock)
    async with group.open(
        decode=none_at_all,
        on_bad_record="dead_letter",
        dead_letter_topic=topic.name,
        group_settings=SHORT,
    ) as stream:
        locks(stream).remember("")
        async with asyncio.timeout(PATIENCE):
            await late.wait()
        await group.lengthen_locks(stream)
        await until(stream, lambda counts: counts.rejected == 1)
        assert lent(stream).expired == 1
    assert len(await letters(topic)) == 2


async def test_a_refusal_that_comes_too_late_names_the_records(kafka_broker: KafkaBroker) -> None:
    group = await new_group(kafka_broker, 3)
    async with group.open(group_settings=SHORT) as stream:
        batch = await first(stream)
        await until(stream, lambda counts: counts.expired == 3)
        with pytest.raises(AcknowledgementError, match="rejected too late") as caught:
            await stream.lending.reject(batch, [0, 2], reason="bad")
        assert caught.value.records == (
            f"{group.topic.name}-0 offset 0",
            f"{group.topic.name}-0 offset 2",
        )
        assert lent(stream).rejected == 0


async def test_a_record_is_taken_out_before_the_broker_drops_it(kafka_broker: KafkaBroker) -> None:
    group = await new_group(kafka_broker, 2)
    topic = await new_topic(kafka_broker)
    options = {
        "max_deliveries": 2,
        "on_bad_record": "dead_letter",
        "dead_letter_topic": topic.name,
    }
    async with group.open(**options) as stream:
        for times in (1, 2):
            batch = await first(stream)
            assert deliveries(batch) == {times}
            await stream.lending.release(batch)
        await until(stream, lambda counts: counts.rejected == 2)
        assert await nothing_comes(stream, 0.3)
    found = [letter["headers"] for _, letter in await letters(topic)]
    assert {headers["fanout.reason"] for headers in found} == {
        b"delivered 3 times, max_deliveries=2"
    }


async def test_the_broker_drops_a_record_that_reaches_the_limit_of_the_group(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker, 1)
    async with group.open(group_settings=LONG | {"share.delivery.count.limit": "2"}) as stream:
        for times in (1, 2):
            batch = await first(stream)
            assert deliveries(batch) == {times}
            await stream.lending.release(batch)
        await group.put(1)
        assert offsets(await first(stream)) == [1]


async def test_a_record_that_was_delivered_too_often_ends_the_stream_otherwise(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker, 1)
    async with group.open(max_deliveries=1) as stream:
        await stream.lending.release(await first(stream))
        with pytest.raises(SplitFailedError, match="delivered 2 times") as caught:
            await first(stream)
    assert isinstance(caught.value.__cause__, BadRecordError)


async def put_with_a_header_that_is_no_text(group: Group) -> None:
    ends = pa.py_buffer(b"\0\0\0\0\2\0\0\0")
    key = pa.StringArray.from_buffers(1, ends, pa.py_buffer(b"\xff\xfe"))
    pairs = pa.StructArray.from_arrays([key, pa.array([b"v"])], names=["key", "value"])
    headers = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), pairs)
    number = pa.array([0], pa.int32())
    columns = {"topic": [group.topic.name], "partition": number, "value": [b"x"]}
    async with open_writer(
        Cluster(group.topic.broker.bootstrap_servers, security=PLAINTEXT), mode=Idempotent()
    ) as writer:
        await writer.write(pa.record_batch(columns | {"headers": headers}))
        await writer.flush()


async def test_a_record_whose_headers_the_client_cannot_read_is_a_bad_one(
    kafka_broker: KafkaBroker,
) -> None:
    group, topic = await new_group(kafka_broker), await new_topic(kafka_broker)
    await put_with_a_header_that_is_no_text(group)
    await group.put(1)
    async with group.open() as stream:
        with pytest.raises(SplitFailedError, match=r"-0 offset 0: a header has a key that is not"):
            await first(stream)
    async with group.open(on_bad_record="dead_letter", dead_letter_topic=topic.name) as stream:
        assert offsets(await first(stream)) == [1]
    ((_, letter),) = await letters(topic)
    assert (letter["value"], letter["headers"]["fanout.offset"]) == (b"x", b"0")


async def test_as_many_deliveries_as_the_group_has_are_too_many(kafka_broker: KafkaBroker) -> None:
    group = await new_group(kafka_broker)
    with pytest.raises(OptionError, match=r"max_deliveries=5 must be less than .*limit=5"):
        async with group.open(max_deliveries=5):
            pass


async def test_a_topic_for_bad_records_has_to_exist(kafka_broker: KafkaBroker) -> None:
    group = await new_group(kafka_broker)
    with pytest.raises(ServiceError, match="there is no topic nowhere"):
        async with group.open(dead_letter_topic="nowhere"):
            pass


@pytest.mark.parametrize("outage", ["within the locks", "beyond them"])
async def test_an_outage_in_decode_rejects_nothing_and_wastes_no_delivery(
    kafka_broker: KafkaBroker, outage: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = await new_group(kafka_broker)
    await asyncio.to_thread(group.topic.write, [{"value": b"%d" % n} for n in range(20)])
    dead = await new_topic(kafka_broker)
    attempts = 0
    loop = asyncio.get_running_loop()
    over = asyncio.Event()

    def decode(records: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal attempts
        attempts += bool(records.num_rows)
        if records.num_rows and not over.is_set():
            raise RetryLaterError("the registry does not answer")
        return records

    options: dict[str, Any] = {
        "decode": decode,
        "on_bad_record": "dead_letter",
        "dead_letter_topic": dead.name,
        "group_settings": LONG if outage == "within the locks" else SHORT,
    }
    async with group.open(**options) as stream:
        reading = asyncio.create_task(anext(stream))
        await until(stream, lambda counts: attempts > 3 and counts.acquired)
        expire = loop.time() + 4.5
        await until(stream, lambda _: outage == "within the locks" or loop.time() > expire)
        await group.lengthen_locks(stream)
        over.set()
        batch = await reading
        assert sorted(offsets(batch)) == [*range(20)]
        assert deliveries(batch) <= ({1} if outage == "within the locks" else {2, 3})
        await stream.acknowledge(batch)
        counts = lent(stream)
    assert (counts.accepted, counts.rejected, counts.expired) == (20, 0, 0)
    assert "waits until its records can be decoded" in caplog.text
