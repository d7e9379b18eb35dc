"""A stream whose service distributes the records, and records of up to 10 MiB.

The library writes them, and reads them by polls, which take no consumer. At AWS nothing of the
stream is changed: a test is skipped where the stream is not as it needs it.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import fanout
from fanout.kinesis import KinesisSource, open_writer
from fanout.kinesis.aws.client import open_kinesis_client
from fanout.testing.kinesis.server import KinesisServer
from tests.conformance.service import PATIENCE
from tests.support.kinesis.reading import Stream, session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from fanout.kinesis.aws.api import StreamDescription
    from fanout.testing.kinesis.rules import KinesisRules
    from tests.conformance.service import Service

DEFAULT_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class Distributed:
    """A stream that distributes its records itself, as it is described, and where it is."""

    stream: str
    described: StreamDescription
    where: dict[str, Any]

    async def write(self, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Write records, and return them as they are read."""
        async with open_writer(self.stream, **self.where) as writer:
            await writer.write(records)
        source = KinesisSource(
            stream=self.stream, mode="polling", start=self.described.server_time, **self.where
        )
        ours, found = {row["data"] for row in records}, []
        async with asyncio.timeout(PATIENCE * 2), fanout.open(source) as opened:
            async for batch in opened:
                found += [row for row in batch.records.to_pylist() if row["data"] in ours]
                await opened.acknowledge(batch)
                if len(found) == len(records):
                    break
        return found


@pytest.fixture
def place(
    request: pytest.FixtureRequest, live: Service | None, rules: KinesisRules
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where the stream is: its name, and how it is found."""
    if live is None:
        with KinesisServer(rules) as server:
            stream = Stream(server, shards=3)
            stream.distribute()
            stream.limit_records(10 * DEFAULT_LIMIT)
            yield stream.name, {"endpoint_url": server.endpoint_url, "session": session()}
        return
    name = request.config.getoption("--automatic-stream")
    if name is None:
        pytest.skip("no stream with RecordDistributionStrategy AUTO is named: AUTOMATIC=name")
    yield name, {"region": KinesisSource(stream=name, mode="polling").resolved_region}


@pytest.fixture
async def distributed(place: tuple[str, dict[str, Any]]) -> AsyncIterator[Distributed]:
    """The stream under test."""
    name, where = place
    async with open_kinesis_client(stream=name, **where) as kinesis:
        yield Distributed(name, await kinesis.describe_stream(), where)


async def test_records_without_a_key_are_taken_and_come_without_one(
    distributed: Distributed,
) -> None:
    if not distributed.described.automatic:
        pytest.skip(f"{distributed.stream} has not the RecordDistributionStrategy AUTO")
    test = uuid.uuid4().bytes
    put: list[dict[str, Any]] = [{"data": test + b"%d" % each} for each in range(20)]
    found = await distributed.write([*put, {"partitionKey": "key", "data": test}])
    assert sorted(row["data"] for row in found if row["partitionKey"] is None) == sorted(
        row["data"] for row in put
    )
    assert [row["data"] for row in found if row["partitionKey"] == "key"] == [test]


async def test_a_record_as_large_as_the_stream_takes_comes_whole(distributed: Distributed) -> None:
    limit = distributed.described.max_record_bytes
    if limit <= DEFAULT_LIMIT:
        pytest.skip(f"{distributed.stream} has the MaxRecordSizeInKiB of every new stream, 1 MiB")
    key = uuid.uuid4().hex
    (found,) = await distributed.write(
        [{"partitionKey": key, "data": key.encode().ljust(limit - len(key), b".")}]
    )
    assert len(found["data"]) == limit - len(key)
