from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

import fanout
from fanout.errors import AcknowledgementError
from fanout.kafka.cluster import Cluster
from tests.support.kafka.sharing import (
    SHORT,
    deliveries,
    first,
    lent,
    locks,
    new_group,
    nothing_comes,
    offsets,
    take,
    until,
)
from tests.support.kafka.topics import PLAINTEXT

if TYPE_CHECKING:
    from fanout.kafka.security import Security
    from fanout.testing.kafka.broker import KafkaBroker


@pytest.mark.parametrize(
    "consumers", [4, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 12))]
)
async def test_every_record_comes_however_many_members_there_are(
    kafka_broker: KafkaBroker, consumers: int
) -> None:
    group = await new_group(kafka_broker, 20_000, partitions=4)
    async with group.open(consumers=consumers) as stream:
        seen = await take(stream, 20_000)
        assert seen.keys() == group.written
        assert max(seen.values()) == 1
        statistics = lent(stream)
    assert (statistics.acquired, statistics.accepted) == (20_000, 20_000)
    assert (statistics.pending_records, statistics.oldest) == (0, None)


async def test_the_columns_are_those_of_a_kafka_source_and_the_number_of_deliveries(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker)
    stamp = round(datetime.now(UTC).timestamp() * 1000)
    records: list[dict[str, Any]] = [
        {"value": b"", "key": None, "headers": [("a", b"1"), ("a", None)], "timestamp": stamp},
        {"value": None, "key": b"k", "headers": [], "timestamp": stamp + 1},
    ]
    await asyncio.to_thread(group.topic.write, records)
    async with group.open() as stream:
        batch = await first(stream)
        assert batch.records.schema == group.source().schema
        rows = batch.records.to_pylist()
        await stream.acknowledge(batch)
    assert [(row["key"], row["value"], row["offset"]) for row in rows] == [
        (None, b"", 0),
        (b"k", None, 1),
    ]
    assert [row["deliveryCount"] for row in rows] == [1, 1]
    assert [round(row["timestamp"].timestamp() * 1000) for row in rows] == [stamp, stamp + 1]
    headers = [[(pair["key"], pair["value"]) for pair in row["headers"]] for row in rows]
    assert headers == [[("a", b"1"), ("a", None)], []]


async def test_a_member_polls_again_when_its_last_poll_is_acknowledged(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker, 500)
    await group.put(500)
    async with group.open(max_poll_records=100) as stream:
        one = await first(stream)
        assert await nothing_comes(stream, 0.5)
        assert lent(stream).pending_records == one.num_records
        assert lent(stream).pending_bytes >= one.nbytes
        statistics = await asyncio.to_thread(stream.statistics)  # as Spark's progress does
        assert statistics.lending is not None
        assert 0 < (statistics.lending.oldest or 0) < 20
        await stream.acknowledge(one)
        assert not set(offsets(one)) & set(offsets(await first(stream)))


async def test_members_that_wait_for_records_keep_no_memory_from_others(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker)
    await asyncio.to_thread(group.topic.write, [{"value": b"x" * 1000}] * 500)
    async with group.open() as stream:
        held = 0
        while lent(stream).accepted < 500:
            batch = await first(stream)
            held = max(held, stream.statistics().bytes_in_flight, batch.nbytes)
            await stream.acknowledge(batch)
        assert held > 100_000
        assert await nothing_comes(stream, 0.3)
        assert stream.statistics().bytes_in_flight <= 65_536


async def test_a_batch_that_was_cut_is_acknowledged_piece_by_piece(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker, 10)
    async with group.open() as stream:
        seen = []
        for accepted in (4, 8, 10):
            drained = await stream.drain(max_records=4, first_wait=math.inf)
            seen += [offset for batch in drained.batches for offset in offsets(batch)]
            await stream.acknowledge(drained)
            assert lent(stream).accepted == accepted
    assert seen == list(range(10))


async def test_what_is_given_back_goes_to_another_stream_at_once(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker, 3)
    async with group.open() as stream:
        batch = await first(stream)
        locks(stream).pause()
        async with group.open() as other:
            reading = asyncio.create_task(first(other))
            await stream.lending.release(batch)
            again = await reading
            assert (offsets(again), deliveries(again)) == (offsets(batch), {2})
            assert lent(stream).released == 3
            assert lent(other).redelivered == 3


async def test_what_is_given_back_comes_again_to_who_remembers_what_it_has(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker, 3)
    async with group.open() as stream:
        locks(stream).remember("")
        await stream.lending.release(await first(stream))
        again = await first(stream)
        assert (offsets(again), deliveries(again)) == ([0, 1, 2], {2})


async def test_a_record_that_comes_after_a_long_silence_is_a_fresh_one(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker)
    async with group.open(group_settings=SHORT) as stream:
        assert await nothing_comes(stream, 2.0)
        await group.put(1)
        assert deliveries(await first(stream)) == {1}


async def test_what_was_given_back_too_late_is_no_error_of_a_later_acknowledgement(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker, 3)
    async with group.open(group_settings=SHORT) as stream:
        late = await first(stream)
        await group.lengthen_locks(stream)
        await until(stream, lambda counts: counts.expired >= 3)
        await stream.lending.release(late)
        await stream.acknowledge(await first(stream))
        assert lent(stream).accepted == 3


async def test_a_stream_that_is_closed_gives_back_what_it_holds(kafka_broker: KafkaBroker) -> None:
    group = await new_group(kafka_broker, 30)
    async with group.open() as stream:
        assert (await first(stream)).num_records == 30
    async with group.open() as stream, asyncio.timeout(10):  # a third of the lock
        batch = await first(stream)
        assert (batch.num_records, deliveries(batch)) == (30, {2})


async def test_an_acknowledgement_whose_waiter_is_gone_is_made_and_counted(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker, 3)
    async with group.open(max_poll_records=3) as stream:
        waiting = asyncio.create_task(stream.acknowledge(await first(stream)))
        await until(stream, lambda counts: counts.pending_records == 0)  # it is under way
        waiting.cancel()
        await until(stream, lambda counts: counts.accepted == 3)


async def test_an_acknowledgement_ends_although_the_stream_is_closed(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker, 3)
    async with group.open(max_poll_records=3) as stream:
        waiting = asyncio.create_task(stream.acknowledge(await first(stream)))
        await until(stream, lambda counts: counts.pending_records == 0)
    async with asyncio.timeout(20):
        await waiting
    assert lent(stream).accepted == 3


async def test_an_acknowledgement_that_comes_too_late_names_the_records(
    kafka_broker: KafkaBroker,
) -> None:
    group = await new_group(kafka_broker, 5)
    async with group.open(group_settings=SHORT) as stream:
        late = await first(stream)
        await group.lengthen_locks(stream)
        again = await first(stream)
        assert offsets(again) == offsets(late)
        with pytest.raises(AcknowledgementError, match="too late") as caught:
            await stream.acknowledge(late)
        assert caught.value.records == (f"{group.topic.name}-0 offsets 0 to 4",)
        assert lent(stream).expired == 5
        await stream.acknowledge(again)
        assert lent(stream).accepted == 5
        await until(stream, lambda counts: counts.pending_records == 0)


async def test_the_function_for_the_security_is_called_outside_of_the_loop(
    kafka_broker: KafkaBroker,
) -> None:
    """It may ask a vault, so it may block."""
    in_loop: list[bool] = []

    def security() -> Security:
        in_loop.append(asyncio._get_running_loop() is not None)
        return PLAINTEXT

    group = await new_group(kafka_broker, 3)
    servers = kafka_broker.bootstrap_servers
    source = group.source(cluster=Cluster(servers, security=security))
    assert in_loop == []
    async with fanout.open(source) as stream:
        await take(stream, 3)
    assert len(in_loop) >= 2  # for the requests about the group, and for its member
    assert not any(in_loop)
