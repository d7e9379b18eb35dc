"""Records on their whole way: put with boto3, read with `fanout.open`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fanout.kinesis.writing.kpl_format import encode_aggregate
from tests.conformance.service import PATIENCE

if TYPE_CHECKING:
    import fanout
    from fanout.kinesis.aws.api import KinesisClient
    from tests.conformance.service import Service

# PutRecord takes 1 MiB of data and partition key, unless the stream was configured for more.
MAX_RECORD_BYTES = 1 << 20


async def read(stream: fanout.FanOut, prefix: str, last: bytes) -> list[dict[str, Any]]:
    """Read until a record has come; return those whose keys begin with the prefix."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(PATIENCE * 2):
        async for batch in stream:
            rows = batch.records.to_pylist()
            found += [row for row in rows if row["partitionKey"].startswith(prefix)]
            await stream.acknowledge(batch)
            if found and found[-1]["data"] == last:
                return found
    pytest.fail("the stream ended")


async def test_what_is_put_is_read_once_and_a_resumed_reader_goes_on_after_it(
    service: Service, kinesis: KinesisClient
) -> None:
    key = service.key()
    begun = (await kinesis.describe_stream()).server_time
    numbers = await service.put(key, *(b"%d" % each for each in range(10)))
    async with service.open(start=begun) as stream:
        records = await read(stream, key, b"9")
        positions = stream.positions
    assert [record["sequenceNumber"] for record in records] == numbers
    assert {record["shardId"] for record in records} == {service.shard}
    numbers = await service.put(key, *(b"%d" % each for each in range(10, 15)))
    async with service.open(resume=positions) as stream:
        records = await read(stream, key, b"14")
    assert [record["sequenceNumber"] for record in records] == numbers


async def test_a_reader_of_the_latest_misses_nothing_that_is_put_once_it_is_open(
    service: Service,
) -> None:
    key = service.key()
    async with service.open(start="LATEST") as stream:
        await service.put(key, b"a", b"b")
        records = await read(stream, key, b"b")
    assert [record["data"] for record in records] == [b"a", b"b"]


async def test_an_aggregated_record_comes_as_the_records_that_were_put_into_it(
    service: Service, kinesis: KinesisClient
) -> None:
    keys = [service.key("sub-") for _ in range(3)]
    sent = [(key, b"%d" % number) for number, key in enumerate(keys)]
    begun = (await kinesis.describe_stream()).server_time
    (number,) = await service.put(service.key("aggregate-"), encode_aggregate(sent))
    async with service.open(start=begun) as stream:
        records = [
            record
            for record in await read(stream, f"{service.prefix}-sub-", b"2")
            if record["sequenceNumber"] == number
        ]
    assert [(record["partitionKey"], record["data"]) for record in records] == sent
    assert [record["subSequenceNumber"] for record in records] == [0, 1, 2]


@pytest.mark.fault("A record of the largest size that the stream takes comes whole")
async def test_a_record_of_the_largest_size_comes_whole(
    service: Service, kinesis: KinesisClient
) -> None:
    key = service.key()
    data = bytes(MAX_RECORD_BYTES - len(key))
    begun = (await kinesis.describe_stream()).server_time
    await service.put(key, data)
    async with service.open(start=begun) as stream:
        records = await read(stream, key, data)
    assert [record["data"] == data for record in records] == [True]
