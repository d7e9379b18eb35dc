"""Put records into an embedded Kinesis, read them through the library, and compare."""

from __future__ import annotations

import asyncio
import functools
from collections import defaultdict
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any

import aioboto3
import boto3

import fanout
from fanout.core.backoff import Backoff
from fanout.kinesis import KinesisSource
from fanout.kinesis.aws.error_hints import code_of
from fanout.testing.kinesis.credentials import REGION
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from fanout.testing.faults import Fault
    from fanout.testing.kinesis.server import KinesisServer

FIRST = "shardId-000000000000"


class Stream:
    """One stream of a server, and everything that was put into it.

    `log` has the sequence numbers of each shard, in order.
    """

    def __init__(self, server: KinesisServer, *, shards: int = 1, name: str = "orders") -> None:
        self.server = server
        self.name = name
        self.arn = server.create_stream(name, shards)
        self.log: defaultdict[str, list[str]] = defaultdict(list)
        self._keys = 0

    def put(self, count: int, *, shard: str | None = None) -> None:
        keys = range(self._keys, self._keys + count)
        self._keys += count
        records = [(f"key-{key}", str(key).encode()) for key in keys]
        for shard_id, number in self.server.put_records(self.name, records, shard=shard):
            self.log[shard_id].append(number)

    def distribute(self, strategy: str = "AUTO") -> None:
        """Make it an on-demand stream with a RecordDistributionStrategy."""
        found = self.server._stream(self.name)
        found.stream_mode = {"StreamMode": "ON_DEMAND"}
        found.set_strategy(strategy)

    def limit_records(self, nbytes: int) -> None:
        """Change the stream's own limit of a record."""
        self.server._stream(self.name).max_record_bytes = nbytes

    @property
    def put_in_all(self) -> int:
        return sum(map(len, self.log.values()))

    def inject(self, *faults: Fault) -> None:
        for fault in faults:
            self.server.inject(fault)

    def source(self, **options: Any) -> KinesisSource:
        named = {"stream": self.name, "consumer": "etl", "start": "TRIM_HORIZON"}
        where = {"endpoint_url": self.server.endpoint_url, "session": session()}
        fast = {"backoff": Backoff(base=0.01, cap=0.05), "discovery_interval": 0.2}
        return KinesisSource(**named | where | fast | options)

    def open(
        self, *, resume: str | None = None, **options: Any
    ) -> AbstractAsyncContextManager[fanout.FanOut]:
        return fanout.open(self.source(**options), resume=resume, random=seeded())

    @asynccontextmanager
    async def reading(self, *, resume: str | None = None, **options: Any) -> AsyncIterator[Reader]:
        """Read in the background for as long as the block runs."""
        reader = Reader()
        async with fanout.open(
            self.source(**options), resume=resume, on_resubscribe=reader.tell, random=seeded()
        ) as stream:
            task = asyncio.create_task(reader.read(stream))
            try:
                yield reader
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


class Reader:
    """Collect the records that a stream delivers, and the causes that its hook receives."""

    stream: fanout.FanOut

    def __init__(self) -> None:
        self.log: defaultdict[str, list[str]] = defaultdict(list)
        self.order: list[str] = []
        self.causes: list[Exception] = []
        self.failure: fanout.FanOutError | None = None
        self._changed = asyncio.Event()

    async def read(self, stream: fanout.FanOut) -> None:
        self.stream = stream
        try:
            async for batch in stream:
                self.order.append(batch.split.id)
                self.log[batch.split.id] += batch.records.column("sequenceNumber").to_pylist()
                await stream.acknowledge(batch)
                self._changed.set()
        except fanout.FanOutError as error:
            self.failure = error
            self._changed.set()

    def tell(self, _split: object, cause: Exception, _delay: float) -> None:
        self.causes.append(cause)
        self._changed.set()

    @property
    def count(self) -> int:
        return sum(map(len, self.log.values()))

    @property
    def kinds(self) -> list[str]:
        """The causes that the hook received, by the service's code or by their type."""
        return [code_of(cause) or type(cause).__name__ for cause in self.causes]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something is true; raise the failure of the stream if it fails before."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                if self.failure is not None:
                    raise self.failure
                self._changed.clear()
                await self._changed.wait()

    async def has(self, count: int) -> None:
        await self.until(lambda: self.count >= count)

    async def failed(self) -> fanout.FanOutError:
        """Wait for the failure of the stream, and return it."""
        await self.until(lambda: self.failure)
        assert self.failure is not None
        return self.failure


async def eventually(condition: Callable[[], object]) -> None:
    """Wait for something that only shows where it happens: at a server, or in the network."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)


async def next_second() -> datetime:
    """Wait for the next whole second of the wall clock: what LATEST is exact to."""
    now = datetime.now(UTC)
    await asyncio.sleep((1_000_000 - now.microsecond) / 1e6 + 0.001)
    return datetime.now(UTC).replace(microsecond=0)


@contextmanager
def client(stream: Stream) -> Iterator[Any]:
    """Open a boto3 client of the stream's server."""
    with closing(boto3.client("kinesis", **stream.server.client_options)) as opened:
        yield opened


@functools.cache
def session() -> aioboto3.Session:
    """Share a session: each new one reads botocore's files for a fifth of a second."""
    return aioboto3.Session(
        region_name=REGION, aws_access_key_id="testing", aws_secret_access_key="testing"
    )


def seeded() -> Random:
    """Build a source of randomness that is the same in each run."""
    return Random(7)
