"""A closed shard whose server sends neither a record nor its end, in virtual time."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import fanout
from fanout.core.statistics import SplitState
from fanout.kinesis import KinesisSource
from fanout.kinesis.aws.api import (
    ConsumerDescription,
    HashRange,
    ShardDescription,
    StreamDescription,
)
from fanout.kinesis.opening import open_kinesis_connection
from fanout.testing.kinesis.frames import encode_event, encode_record
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    import pyarrow as pa

    from fanout.core.events import Batch
    from fanout.core.positions import Cursor
    from fanout.kinesis.connection import KinesisConnection

ARN = "arn:aws:kinesis:eu-west-1:111122223333:stream/orders"
NOW = datetime(2026, 11, 20, tzinfo=UTC)
PARENT = ShardDescription("parent", (), 10, None, HashRange())
CLOSED = ShardDescription("parent", (), 10, 1_000_000, HashRange())
CHILDREN = tuple(
    ShardDescription(name, ("parent",), 2_000_000, None, HashRange()) for name in ("left", "right")
)
WARNING = (
    "parent of the stream orders is closed, as ListShards says, but has sent neither a record nor "
    "its end for {} s; left, right cannot begin before that end. Kinesis sends it at once. If the "
    "endpoint is another server, use one that ends closed shards, or try mode='polling'; otherwise "
    "open the stream again"
)


@dataclass
class Endless:
    """A server whose closed shards never end.

    Args:
        closes_at: When the parent is closed and has children.
        records: When each record of the parent comes.
        heartbeat: Seconds between two events without records; None for silence.
        behind: Milliseconds that these events are behind the newest record.
        ends_at: When the parent sends its end after all.
    """

    closes_at: float = 0.0
    records: tuple[float, ...] = ()
    heartbeat: float | None = 5.0
    behind: int = 0
    ends_at: float | None = None
    subscribed: list[str] = field(default_factory=list)

    async def describe_stream(self) -> StreamDescription:
        return StreamDescription("orders", ARN, "ACTIVE", NOW, NOW, 24, 1, 1, None)

    async def describe_consumer(self, **_: Any) -> ConsumerDescription:
        return ConsumerDescription("etl", f"{ARN}/consumer/etl:1", "ACTIVE", NOW)

    async def renew_credentials(self) -> None:
        raise NotImplementedError

    async def list_shards(self) -> list[ShardDescription]:
        await asyncio.sleep(0.01)
        return [PARENT] if now() < self.closes_at else [CLOSED, *CHILDREN]

    @asynccontextmanager
    async def subscribe(
        self, consumer_arn: str, shard_id: str, starting_position: Mapping[str, Any]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        del consumer_arn, starting_position
        self.subscribed.append(shard_id)
        yield self._body(shard_id)

    async def _body(self, shard_id: str) -> AsyncIterator[bytes]:
        yield encode_event("initial-response", b"{}")
        times = [time for time in self.records if time > now()] if shard_id == "parent" else []
        while times:
            await asyncio.sleep(times.pop(0) - now())
            number = 100 + round(now())
            record = encode_record(1_700_000_000_000, b"eA==", "key", number)
            yield event(number, [record], behind=1000 * len(times))
        while self.heartbeat is not None:
            await asyncio.sleep(self.heartbeat)
            if shard_id == "parent" and self.ends_at is not None and now() >= self.ends_at:
                yield event(None, [], behind=0)
                return
            yield event(100 + round(now()), [], behind=self.behind)
        await asyncio.get_running_loop().create_future()


def event(continuation: int | None, records: list[bytes], *, behind: int) -> bytes:
    content: dict[str, Any] = {"Records": ["record"] * len(records), "MillisBehindLatest": behind}
    if continuation is None:
        content["ChildShards"] = [
            {
                "ShardId": child.shard_id,
                "ParentShards": ["parent"],
                "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(2**128 - 1)},
            }
            for child in CHILDREN
        ]
    else:
        content["ContinuationSequenceNumber"] = str(continuation)
    document = json.dumps(content).encode()
    for record in records:
        document = document.replace(b'"record"', record, 1)
    return encode_event("SubscribeToShardEvent", document)


@dataclass(frozen=True)
class Source:
    """A Kinesis source over such a server."""

    server: Endless
    kinesis: KinesisSource = field(
        default_factory=lambda: KinesisSource(
            stream="orders", consumer="etl", start="TRIM_HORIZON", max_event_bytes=1 << 20
        )
    )

    @property
    def schema(self) -> pa.Schema:
        return self.kinesis.schema

    @property
    def event_time(self) -> None:
        return None

    @asynccontextmanager
    async def connect(self, *, available_now: bool = False) -> AsyncIterator[KinesisConnection]:
        del available_now
        client: Any = self.server
        async with open_kinesis_connection(self.kinesis, client, Random(7)) as connection:
            yield connection

    def cursor(self, batch: Batch, row: int) -> Cursor:
        return self.kinesis.cursor(batch, row)

    def arrival(self, records: pa.RecordBatch, row: int) -> int | None:
        return self.kinesis.arrival(records, row)


def now() -> float:
    return asyncio.get_running_loop().time()


async def read(server: Endless, until: float, *, slow: float = 0.0) -> dict[str, SplitState]:
    """Read for so long, and return the state of each shard."""
    async with fanout.open(Source(server), random=Random(7)) as stream:
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                async for batch in stream:
                    await stream.acknowledge(batch)
                    await asyncio.sleep(slow)
        return {id_: split.state for id_, split in stream.statistics().splits.items()}


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    own = "fanout.kinesis.closed_shards"
    return [
        each.getMessage()
        for each in caplog.records
        if (each.levelname, each.name) == ("WARNING", own)
    ]


@pytest.mark.parametrize("heartbeat", [5.0, None], ids=["heartbeats", "silence"])
@in_virtual_time
async def test_a_closed_shard_that_sends_nothing_is_named_once_after_a_minute(
    caplog: pytest.LogCaptureFixture, heartbeat: float | None
) -> None:
    server = Endless(heartbeat=heartbeat)
    assert (await read(server, 59.0))["parent"] is not SplitState.ENDED
    assert warnings(caplog) == []
    states = await read(server, 59.0 + 75.0)
    assert states["left"] is SplitState.WAITING
    (warning,) = warnings(caplog)
    seconds = warning.split(" s; ")[0].rpartition(" ")[2]
    assert 60 <= int(seconds) <= 71
    assert warning == WARNING.format(seconds)
    await read(server, 2000.0)
    assert len(warnings(caplog)) == 2  # the third stream has its own
    assert set(server.subscribed) == {"parent"}


@in_virtual_time
async def test_an_idle_shard_is_not_taken_for_one_that_does_not_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await read(Endless(closes_at=3600.0), 3600.0 + 55.0)
    assert warnings(caplog) == []


@in_virtual_time
async def test_a_shard_that_closes_later_has_a_minute_too(caplog: pytest.LogCaptureFixture) -> None:
    await read(Endless(closes_at=3600.0), 3600.0 + 85.0)
    assert len(warnings(caplog)) == 1


@in_virtual_time
async def test_a_closed_shard_that_still_delivers_is_healthy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Endless(records=tuple(range(50, 1000, 50)), ends_at=1000.0)
    states = await read(server, 1010.0)
    assert warnings(caplog) == []
    assert (states["parent"], states["left"]) == (SplitState.ENDED, SplitState.LIVE)


@in_virtual_time
async def test_a_closed_shard_that_is_behind_its_newest_record_is_healthy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await read(Endless(behind=1000), 600.0)
    assert warnings(caplog) == []


@in_virtual_time
async def test_a_slow_consumer_is_no_silent_server(caplog: pytest.LogCaptureFixture) -> None:
    server = Endless(records=(1, 2, 3, 4, 5, 6), ends_at=0.0)
    await read(server, 800.0, slow=100.0)
    assert warnings(caplog) == []
