"""Start subscriptions at each kind of position."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from fanout.kinesis.aws.error_hints import code_of

if TYPE_CHECKING:
    from fanout.kinesis.aws.api import KinesisClient
    from tests.conformance.service import Service


def data(records: list[dict[str, Any]]) -> list[bytes]:
    return [record["data"] for record in records]


async def test_a_timestamp_counts_to_the_millisecond(
    service: Service, kinesis: KinesisClient
) -> None:
    key = service.key()
    arrivals: list[int] = []
    while len(set(arrivals)) < 3:  # a quick service may stamp two records with one millisecond
        number = ""
        for each in (b"a", b"b", b"c"):
            (placed,) = await service.put(key, each)
            number = number or placed
            await asyncio.sleep(0.005)
        async with service.subscribe(
            kinesis, "AT_SEQUENCE_NUMBER", SequenceNumber=number
        ) as subscription:
            records, _ = await subscription.records(key, 3)
        times = [record["approximateArrivalTimestamp"] for record in records]
        arrivals = [round(time.timestamp() * 1000) for time in times]
    for millis, expected in ((arrivals[1], [b"b", b"c"]), (arrivals[1] + 1, [b"c"])):
        async with service.subscribe(
            kinesis, "AT_TIMESTAMP", Timestamp=millis / 1000
        ) as subscription:
            records, _ = await subscription.records(key, len(expected))
        assert data(records) == expected


async def test_latest_begins_after_the_newest_record(
    service: Service, kinesis: KinesisClient
) -> None:
    key = service.key()
    await service.put(key, b"before")
    async with service.subscribe(kinesis, "LATEST") as subscription:
        first = await subscription.event()
        assert first is not None
        assert key not in first.records.column("partitionKey").to_pylist()
        await service.put(key, b"after")
        records, _ = await subscription.records(key, 1)
    assert data(records) == [b"after"]


async def test_at_a_sequence_number_includes_its_record_and_after_excludes_it(
    service: Service, kinesis: KinesisClient
) -> None:
    key = service.key()
    number, _ = await service.put(key, b"a", b"b")
    for kind, expected in (
        ("AT_SEQUENCE_NUMBER", [b"a", b"b"]),
        ("AFTER_SEQUENCE_NUMBER", [b"b"]),
    ):
        async with service.subscribe(kinesis, kind, SequenceNumber=number) as subscription:
            records, _ = await subscription.records(key, len(expected))
        assert data(records) == expected


@pytest.mark.fault("A continuation neither skips nor repeats, that of a heartbeat included")
async def test_after_a_continuation_nothing_is_skipped_and_nothing_repeated(
    service: Service, kinesis: KinesisClient
) -> None:
    key = service.key()
    number, *_ = await service.put(key, b"a", b"b", b"c")
    async with service.subscribe(
        kinesis, "AT_SEQUENCE_NUMBER", SequenceNumber=number
    ) as subscription:
        read, continuation = await subscription.records(key, 1)
    await service.put(key, b"d", b"e")
    async with service.subscribe(
        kinesis, "AFTER_SEQUENCE_NUMBER", SequenceNumber=continuation
    ) as subscription:
        rest, _ = await subscription.records(key, 5 - len(read))
    assert data(read + rest) == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.fault("A continuation neither skips nor repeats, that of a heartbeat included")
async def test_after_the_continuation_of_a_heartbeat_the_next_record_comes(
    service: Service, kinesis: KinesisClient
) -> None:
    key = service.key()
    async with service.subscribe(kinesis, "LATEST") as subscription:
        for _ in range(10):  # the stream may have other producers
            heartbeat = await subscription.event()
            if heartbeat is not None and not heartbeat.records.num_rows:
                break
    if heartbeat is None or heartbeat.records.num_rows:
        pytest.skip(f"the shard {service.shard} is never idle")
    await service.put(key, b"a", b"b")
    async with service.subscribe(
        kinesis, "AFTER_SEQUENCE_NUMBER", SequenceNumber=heartbeat.continuation
    ) as subscription:
        records, _ = await subscription.records(key, 2)
    assert data(records) == [b"a", b"b"]


@pytest.mark.parametrize("kind", ["AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"])
async def test_a_sequence_number_that_is_not_of_the_shard_is_an_invalid_argument(
    service: Service, kinesis: KinesisClient, kind: str
) -> None:
    with pytest.raises(ClientError) as error:
        async with service.subscribe(kinesis, kind, SequenceNumber="1"):
            pass
    assert code_of(error.value) == "InvalidArgumentException"


@pytest.mark.long
async def test_a_number_that_is_older_than_the_retention_period_is_still_a_position(
    service: Service, kinesis: KinesisClient, live: Service | None
) -> None:
    """A poller of a quiet shard stays behind its last record, however long ago that expired.

    The number that a shard begins with is as old as the shard. If the service refuses it, a poller
    would take a shard that was quiet for the retention period for one with lost records.
    """
    stream = await kinesis.describe_stream()
    age = stream.server_time - stream.created
    if live is not None and age < timedelta(hours=stream.retention_hours):
        pytest.skip(f"the stream is {age} old, and keeps records for {stream.retention_hours} h")
    (first,) = [
        each.first for each in await kinesis.list_shards() if each.shard_id == service.shard
    ]
    position = {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": str(first)}
    assert await kinesis.get_shard_iterator(stream.arn, service.shard, position)
