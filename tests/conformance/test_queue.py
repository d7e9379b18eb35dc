"""A queue: what is put into its stream comes, comes again unless it is acknowledged, and then not.

At AWS the queue has to be one that nobody else reads. What it holds of others is acknowledged, too.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import fanout
from fanout.kinesis import KinesisQueueSource, open_writer
from fanout.kinesis.doctor.queue import diagnose_queue
from tests.conformance.service import PATIENCE
from tests.support.kinesis.queue import QUEUE, STREAM, EmbeddedWork
from tests.support.kinesis.reading import session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from fanout.core.events import Batch
    from fanout.core.fan_out import FanOut
    from tests.conformance.service import Service

RECORDS = 25


@dataclass(frozen=True, slots=True)
class Lending:
    """A queue of a stream, and where it is."""

    stream: str
    queue: str
    where: dict[str, Any]

    @property
    def source(self) -> KinesisQueueSource:
        return KinesisQueueSource(
            stream=self.stream, queue=self.queue, visibility_timeout=30, **self.where
        )

    async def write(self) -> set[bytes]:
        """Write records, and return their data."""
        test = uuid.uuid4().bytes
        records = [
            {"partitionKey": f"{test.hex()}-{number}", "data": test + b"%d" % number}
            for number in range(RECORDS)
        ]
        async with open_writer(self.stream, **self.where) as writer:
            await writer.write(records)
        return {test + b"%d" % number for number in range(RECORDS)}


@pytest.fixture
def lending(request: pytest.FixtureRequest, live: Service | None) -> Iterator[Lending]:
    """The queue under test."""
    if live is None:
        with EmbeddedWork() as work:
            where = {"endpoint_url": work.server.endpoint_url, "session": session()}
            yield Lending(STREAM, QUEUE, where)
        return
    named = request.config.getoption("--live-queue")
    if named is None:
        pytest.skip("no queue is named that nobody else reads: QUEUE=stream/queue")
    stream, _, queue = named.partition("/")
    yield Lending(stream, queue, {"region": live.where.get("region")})


async def ours(stream: FanOut, wanted: set[bytes]) -> AsyncIterator[tuple[Batch, dict[bytes, int]]]:
    """Yield batches with how often the queue has delivered the wanted records of each."""
    async with asyncio.timeout(PATIENCE * 3):
        async for batch in stream:
            rows = batch.records.to_pylist()
            yield batch, {row["data"]: row["receiveCount"] for row in rows if row["data"] in wanted}


async def take_all(stream: FanOut, wanted: set[bytes]) -> dict[bytes, int]:
    """Take and acknowledge until the wanted records were there, once each."""
    counts: dict[bytes, int] = {}
    async for batch, found in ours(stream, wanted):
        assert counts.keys().isdisjoint(found)
        counts |= found
        await stream.acknowledge(batch)
        if counts.keys() == wanted:
            return counts
    raise AssertionError("the stream ended")


async def test_a_record_comes_again_until_it_is_acknowledged(lending: Lending) -> None:
    wanted = await lending.write()
    async with fanout.open(lending.source) as stream:
        async for batch, held in ours(stream, wanted):
            if held:
                break
            await stream.acknowledge(batch)
    assert set(held.values()) == {1}
    async with fanout.open(lending.source) as stream:
        counts = await take_all(stream, wanted)
    assert all(counts[data] > 1 for data in held)
    later = await lending.write()
    async with fanout.open(lending.source) as stream:
        seen: set[bytes] = set()
        async for batch, found in ours(stream, wanted | later):
            seen |= found.keys()
            await stream.acknowledge(batch)
            if len(seen) == len(later):
                break
    assert seen == later


async def test_the_doctor_finds_nothing_to_do(lending: Lending) -> None:
    found = await diagnose_queue(lending.source)
    assert [each for each in found if each.status == "problem"] == []
