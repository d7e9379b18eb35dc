from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fanout.core.event_time import EventTime
from fanout.errors import SplitFailedError
from fanout.kafka.reading.columns import SCHEMA
from tests.support.kafka.topics import Topic, new_topic, transactional

if TYPE_CHECKING:
    from fanout.testing.kafka.broker import KafkaBroker


@pytest.fixture
def topic(kafka_broker: KafkaBroker) -> Topic:
    """An empty topic of one partition."""
    return Topic(kafka_broker)


@pytest.mark.fault("Keys and values are null or empty, headers repeat or have no value")
async def test_a_record_arrives_with_all_its_columns(topic: Topic) -> None:
    moment = datetime.now(UTC).replace(microsecond=123_000)
    headers: Any = [("trace", b"\x00\xff"), ("trace", None), ("empty", b"")]
    topic.write(
        [
            {
                "key": b"k",
                "value": b"\x00v",
                "headers": headers,
                "timestamp": int(moment.timestamp() * 1000),
            }
        ]
    )
    (batch,) = (await topic.read()).batches
    assert batch.records.schema == SCHEMA == topic.source().schema
    (row,) = batch.records.to_pylist()
    assert row == {
        "key": b"k",
        "value": b"\x00v",
        "topic": topic.name,
        "partition": 0,
        "offset": 0,
        "timestamp": moment,
        "timestampType": 0,
        "headers": [{"key": key, "value": value} for key, value in headers],
    }


@pytest.mark.fault("Keys and values are null or empty, headers repeat or have no value")
async def test_keys_and_values_may_be_missing_or_empty(topic: Topic) -> None:
    records: list[dict[str, Any]] = [
        {"key": None, "value": None},
        {"key": b"", "value": b""},
        {"key": b"k"},
    ]
    topic.write(records)
    rows = (await topic.read()).batches[0].records.select(["key", "value"]).to_pylist()
    assert rows == [
        {"key": None, "value": None},
        {"key": b"", "value": b""},
        {"key": b"k", "value": None},
    ]


@pytest.mark.fault("The broker sets the timestamps, or there are none")
async def test_a_broker_may_set_the_timestamps(kafka_broker: KafkaBroker) -> None:
    topic = await new_topic(kafka_broker, configs={"message.timestamp.type": "LogAppendTime"})
    topic.write([{"value": b"v", "timestamp": 1}])
    (row,) = (await topic.read()).batches[0].records.to_pylist()
    assert row["timestampType"] == 1
    assert abs((datetime.now(UTC) - row["timestamp"]).total_seconds()) < 60


@pytest.mark.fault("Records come in every codec")
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_every_codec_is_read(topic: Topic, codec: str) -> None:
    values = [b"%d" % number * 50 for number in range(500)]
    topic.write([{"value": value} for value in values], compression_type=codec)
    assert [value for _, value in (await topic.read()).log[0]] == values


@pytest.mark.fault("A value has 10 MiB, more than is asked for at once")
@pytest.mark.long
async def test_large_values_are_read_whole(kafka_broker: KafkaBroker) -> None:
    topic = await new_topic(kafka_broker, configs={"max.message.bytes": str(11 << 20)})
    values = [bytes([number]) * (10 << 20) for number in range(4)]
    topic.write([{"value": value} for value in values], message_max_bytes=11 << 20)
    reader = await topic.read(max_bytes_in_flight=64 << 20)
    assert [value for _, value in reader.log[0]] == values


@pytest.mark.fault("Open, aborted and committed transactions lie in one partition")
async def test_aborted_and_open_transactions_are_not_seen(topic: Topic) -> None:
    aborting, opening, committing = (
        transactional(topic.broker, f"{topic.name}-{number}") for number in range(3)
    )
    topic.transaction(aborting, 3, commit=False)
    topic.transaction(committing, 3, commit=True)
    expected = list(topic.log[0])
    async with topic.reading() as reader:
        await reader.has(3)
        topic.transaction(opening, 3, commit=None)
        topic.transaction(committing, 3, commit=True)
        topic.put(2)
        # A reader of everything sees them; a reader of committed records waits for the end.
        everything = await topic.read(isolation_level="read_uncommitted")
        assert everything.count == 3 + 3 + 3 + 3 + 2
        assert reader.log[0] == expected
        opening.abort_transaction(20)
        await reader.has(3 + 3 + 2)
    opened = everything.log[0][6:9]
    assert reader.log[0] == [row for row in sorted(topic.log[0]) if row not in opened]


async def test_decode_makes_the_columns_that_a_stream_delivers(topic: Topic) -> None:
    def decode(records: pa.RecordBatch) -> pa.RecordBatch:
        lengths = pc.binary_length(records.column("value"))
        kept = records.select(["topic", "partition", "offset"]).append_column("length", lengths)
        return kept.filter(pc.greater(lengths, 1))

    topic.put(12)
    source = topic.source(decode=decode)
    assert source.schema.names == ["topic", "partition", "offset", "length"]
    async with topic.open(decode=decode, stop="latest") as stream:
        drained = await stream.drain(max_records=1)
    assert drained.batches[0].records.to_pylist() == [
        {"topic": topic.name, "partition": 0, "offset": 10, "length": 2}
    ]


@pytest.mark.fault("The user's decode fails")
async def test_an_error_of_decode_names_the_place_and_no_data(topic: Topic) -> None:
    def decode(records: pa.RecordBatch) -> pa.RecordBatch:
        if records.num_rows:
            raise ValueError(records.column("value")[0].as_py())
        return records

    topic.write([{"value": b"canary"}])
    with pytest.raises(SplitFailedError, match=rf"{topic.name}-0 from offset 0 to 0") as caught:
        await topic.read(decode=decode)
    assert "canary" not in str(caught.value)


@pytest.mark.fault("A topic is empty, or some of its partitions are")
async def test_partitions_without_records_hold_nobody_up(kafka_broker: KafkaBroker) -> None:
    topic = await new_topic(kafka_broker, partitions=5)
    topic.put(10, partition=3)
    async with topic.reading() as reader:
        await reader.has(10)
        # All are reported as read to their ends, and go on when there is something.
        await reader.until(lambda: reader.stream.statistics().lag == 0.0)
        topic.put(10, partition=1)
        await reader.has(20)
    assert reader.log == topic.log
    assert (await topic.read()).log == topic.log


@pytest.mark.fault("Partitions are of different ages")
async def test_each_partition_has_its_own_watermark_and_the_stream_the_least(
    kafka_broker: KafkaBroker,
) -> None:
    topic = await new_topic(kafka_broker, partitions=2)
    start = int(datetime.now(UTC).timestamp() * 1000)
    for partition, ahead in enumerate((5_000, 2_000)):
        topic.write([{"value": b"v", "timestamp": start + ahead}], partition)
    async with topic.reading(event_time=EventTime(out_of_orderness=1.0)) as reader:
        await reader.has(2)
        splits = reader.stream.statistics().splits
        marks = [splits[f"{topic.name}-{number}"].watermark for number in (0, 1)]
        assert marks == [start + 5_000 - 1_000 - 1, start + 2_000 - 1_000 - 1]
        assert reader.stream.watermark == marks[1]
