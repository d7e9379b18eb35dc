"""A shuffle on a real broker, whose frames aiokafka writes byte by byte."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from aiokafka import AIOKafkaProducer

import fanout
from fanout.errors import BadFrameError, ServiceError, SplitFailedError
from fanout.kafka import ShuffleSource, producers_at
from fanout.kafka.shuffle.frames import (
    EndFrame,
    HelloFrame,
    IdleFrame,
    WatermarkFrame,
    encode,
    encode_control,
)
from tests.support.kafka.topics import Topic, new_topic, seeded
from tests.support.kafka.transacting import reported as markers_arrived

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from fanout.kafka.shuffle.frames import ControlFrame
    from fanout.testing.kafka.broker import KafkaBroker

PARTITIONS = 3
MS = pa.timestamp("ms", "UTC")


class Writer:
    """Write the frames of a producer to every partition of a topic."""

    def __init__(self, topic: Topic, producer: AIOKafkaProducer) -> None:
        self._topic = topic.name
        self._producer = producer

    async def says(self, *frames: ControlFrame) -> None:
        for frame in frames:
            for partition in range(PARTITIONS):
                await self._send(partition, None, encode_control(frame))

    async def writes(self, times: Iterable[int], *, partition: int | None = None) -> None:
        """Write records at these times; the time is the key, and determines the partition."""
        column = pa.array(list(times), pa.int64())
        keys = column.cast(pa.string())
        for time, value in zip(column, encode(keys, keys, column.view(MS)), strict=True):
            where = time.as_py() % PARTITIONS if partition is None else partition
            await self._send(where, str(time).encode(), value.as_py())

    async def _send(self, partition: int, key: bytes | None, value: bytes) -> None:
        await self._producer.send_and_wait(self._topic, value, key, partition)


@asynccontextmanager
async def writing(topic: Topic, **options: Any) -> AsyncIterator[Writer]:
    producer = AIOKafkaProducer(bootstrap_servers=topic.broker.bootstrap_servers, **options)
    async with producer:
        yield Writer(topic, producer)


@pytest.fixture
async def topic(kafka_broker: KafkaBroker) -> Topic:
    return await new_topic(kafka_broker, partitions=PARTITIONS)


def shuffle(topic: Topic, *, kafka: dict[str, Any] | None = None, **options: Any) -> ShuffleSource:
    return ShuffleSource(topic.source(**(kafka or {})), **options)


def hellos(count: int, generation: int = 1, partitions: int = PARTITIONS) -> list[ControlFrame]:
    return [HelloFrame(number, generation, count, partitions) for number in range(count)]


class Read:
    """The records of consecutive streams; event times never go back in a partition."""

    def __init__(self) -> None:
        self.times: dict[str, list[int]] = {}
        self.watermarks: list[int] = []
        self.positions: str | None = None

    async def until(self, source: ShuffleSource, count: int) -> fanout.FanOut:
        """Read until there are so many records in all."""
        async with (
            asyncio.timeout(20),
            fanout.open(source, resume=self.positions, random=seeded()) as stream,
        ):
            while self.count < count:
                await self.take(stream, await anext(stream))
            return stream

    async def to_the_end(self, source: ShuffleSource) -> fanout.FanOut:
        async with (
            asyncio.timeout(20),
            fanout.open(source, resume=self.positions, random=seeded()) as stream,
        ):
            async for batch in stream:
                await self.take(stream, batch)
            self.positions = stream.delivered.to_json()
            return stream

    async def take(self, stream: fanout.FanOut, batch: fanout.Batch) -> None:
        times = batch.records["eventTime"].cast(MS).cast(pa.int64()).to_pylist()
        assert [str(time).encode() for time in times] == batch.records["value"].to_pylist()
        assert batch.records["key"].to_pylist() == batch.records["value"].to_pylist()
        self.times.setdefault(batch.split.id.rpartition("-")[2], []).extend(times)
        await stream.acknowledge(batch)
        self.positions = stream.positions
        if stream.watermark is not None:
            self.watermarks.append(stream.watermark)

    @property
    def count(self) -> int:
        return sum(map(len, self.times.values()))


async def test_what_was_written_is_read_with_its_times_and_watermarks(topic: Topic) -> None:
    async with writing(topic) as first, writing(topic) as second:
        await first.says(HelloFrame(0, 1, 2, PARTITIONS))
        await second.says(HelloFrame(1, 1, 2, PARTITIONS))
        await first.writes(range(1, 10))
        await first.says(WatermarkFrame(0, 1, 9))
        await second.writes(range(3, 18))
        await second.says(WatermarkFrame(1, 1, 17), IdleFrame(1, 1))
        await first.says(WatermarkFrame(0, 1, 20))
    read = Read()
    stream = await read.to_the_end(shuffle(topic, kafka={"stop": "latest"}, partition_count=3))
    assert read.count == 24
    for number in range(PARTITIONS):
        assert {time % PARTITIONS for time in read.times[str(number)]} == {number}
    assert stream.watermark == 20
    assert read.watermarks == sorted(read.watermarks)


async def test_a_stream_goes_on_where_it_was_with_its_watermark(topic: Topic) -> None:
    read = Read()
    async with writing(topic) as writer:
        await writer.says(*hellos(2), WatermarkFrame(0, 1, 100))
        for tick in range(10, 40, 10):
            await writer.writes(range(tick + 1, tick + 7))
            await writer.says(WatermarkFrame(1, 1, tick))
            # Opened anew each time; only the positions have the state of producer 0.
            stream = await read.until(shuffle(topic), tick // 10 * 6)
            reported = stream.statistics().splits[f"{topic.name}-0"].position
            assert producers_at(reported).seen[0].watermark == 100
    stream = await read.to_the_end(shuffle(topic, kafka={"stop": "latest"}))
    assert (read.count, stream.watermark) == (18, 30)
    assert read.watermarks == sorted(read.watermarks)


async def test_one_reader_is_followed_by_three_of_a_partition_each(topic: Topic) -> None:
    read = Read()
    async with writing(topic) as writer:
        await writer.says(*hellos(1))
        await writer.writes(range(1, 7))
        await writer.says(WatermarkFrame(0, 1, 6))
        await read.to_the_end(shuffle(topic, kafka={"stop": "latest"}))
        await writer.writes(range(7, 13))
        await writer.says(WatermarkFrame(0, 1, 12))
    for number in range(PARTITIONS):
        other = Read()
        other.positions = read.positions
        one = {"partitions": [f"{topic.name}-{number}"], "stop": "latest"}
        stream = await other.to_the_end(shuffle(topic, kafka=one))
        assert {key: sorted(times) for key, times in other.times.items()} == {
            str(number): [time for time in range(7, 13) if time % PARTITIONS == number]
        }
        assert stream.watermark == 12


async def test_a_watermark_in_an_aborted_transaction_is_none(topic: Topic) -> None:
    async with writing(topic, transactional_id=f"{topic.name}-writer") as writer:
        async with writer._producer.transaction():
            await writer.says(*hellos(1))
            await writer.writes(range(1, 4))
            await writer.says(WatermarkFrame(0, 1, 3))
        await writer._producer.begin_transaction()
        await writer.writes(range(4, 10))
        await writer.says(WatermarkFrame(0, 1, 99))
        await writer._producer.abort_transaction()
        async with writer._producer.transaction():
            await writer.writes(range(4, 7))
            await writer.says(WatermarkFrame(0, 1, 6))
    await markers_arrived(topic.broker, f"{topic.name}-writer")
    read = Read()
    stream = await read.to_the_end(shuffle(topic, kafka={"stop": "latest"}))
    assert sorted(chain.from_iterable(read.times.values())) == [*range(1, 7)]
    assert stream.watermark == 6
    assert max(read.watermarks) == 6


async def test_more_producers_take_the_place_of_fewer(topic: Topic) -> None:
    async with writing(topic) as writer:
        await writer.says(*hellos(2), WatermarkFrame(0, 1, 10), WatermarkFrame(1, 1, 10))
        await writer.says(*hellos(3, generation=2))
        await writer.writes(range(11, 14))
        await writer.says(WatermarkFrame(0, 1, 90), WatermarkFrame(1, 1, 90))
        await writer.says(*(WatermarkFrame(number, 2, 20 + number) for number in range(3)))
        await writer.writes(range(31, 34))
    read = Read()
    stream = await read.to_the_end(shuffle(topic, kafka={"stop": "latest"}))
    assert (read.count, stream.watermark) == (6, 20)
    reported = producers_at(stream.statistics().splits[f"{topic.name}-0"].position)
    assert (reported.generation, reported.announced, reported.outdated) == (2, 3, 2)


async def test_a_topic_that_every_producer_has_ended_is_read_to_its_end(topic: Topic) -> None:
    async with writing(topic) as writer:
        await writer.says(*hellos(1))
        await writer.writes(range(1, 7))
        await writer.says(WatermarkFrame(0, 1, 6), EndFrame(0, 1))
    read = Read()
    stream = await read.to_the_end(shuffle(topic, kafka={"stop": "latest"}))
    assert read.count == 6
    assert all(split.ended for split in stream.delivered.splits.values())


async def test_what_others_write_stops_the_stream_or_is_a_gap(topic: Topic) -> None:
    async with writing(topic) as writer:
        await writer.says(*hellos(1))
        await writer.writes([3], partition=0)
        await asyncio.to_thread(topic.put, 2)
        await writer.writes([6], partition=0)
    stopping = {"stop": "latest"}
    with pytest.raises(SplitFailedError, match=rf"{topic.name}-0 at offset 2 is no") as failure:
        await Read().to_the_end(shuffle(topic, kafka=stopping))
    assert isinstance(failure.value.__cause__, BadFrameError)
    read = Read()
    stream = await read.to_the_end(shuffle(topic, kafka=stopping, on_bad_frame="gap"))
    assert read.times == {"0": [3, 6]}
    assert stream.statistics().gaps == 1


async def test_a_wrong_number_of_partitions_is_refused(topic: Topic) -> None:
    with pytest.raises(ServiceError, match="has 3 partitions, and by partition_count it has 4"):
        await Read().until(shuffle(topic, partition_count=4), 1)
    async with writing(topic) as writer:
        await writer.says(*hellos(1, partitions=5))
    with pytest.raises(SplitFailedError, match="has 3 partitions, and by what its writers announ"):
        await Read().until(shuffle(topic), 1)


async def test_a_topic_that_grows_while_it_is_read_stops_the_stream(topic: Topic) -> None:
    async with writing(topic) as writer:
        await writer.says(*hellos(1))
        await writer.writes(range(1, 4))
    read = Read()

    async def reading() -> None:
        await read.until(shuffle(topic), 4)

    task = asyncio.create_task(reading())
    while read.count < 3:  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0.01)
    await asyncio.to_thread(topic.broker.grow_topic, topic.name, 4)
    with pytest.raises(ServiceError, match="has 4 partitions, and by what its writers announce"):
        await task
