"""A stream that its owner switches to AUTO and back, while a reader and a landing are killed."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter, defaultdict
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from fanout.testing.fast_mode import fast
from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from tests.support.commands import ENVIRONMENT, FANOUT
from tests.support.kinesis.reading import Stream
from tests.support.kinesis.writers import writing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from fanout.kinesis import KinesisWriter

USER, AUTO = "USER_PARTITION_KEY", "AUTO"
PHASES = (USER, AUTO, USER)
Row = tuple[str, str, str | None, str]
"""Shard, sequence number, partition key, data."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]


class Producer:
    """Puts numbered records until it is told to end; `phase` stands before the number."""

    def __init__(self, writer: KinesisWriter) -> None:
        self._writer = writer
        self.written: list[str] = []
        self.phase = "0"
        self.keyless = False
        self._lock = asyncio.Lock()

    async def begin(self, phase: str, *, keyless: bool = False) -> None:
        """Begin a phase when all records of the one before are there."""
        async with self._lock:
            await self._writer.flush()
            self.phase, self.keyless = phase, keyless

    async def run(self) -> None:
        while True:
            await self._put()
            await asyncio.sleep(0.1)

    async def _put(self) -> None:
        async with self._lock:
            first = len(self.written)
            rows: list[dict[str, Any]] = [
                {"partitionKey": f"key-{n % 7}", "data": f"{self.phase} {n}"}
                for n in range(first, first + 21)
            ]
            for row in rows[:: 3 if self.keyless else 21]:
                row["partitionKey"] = None if self.keyless else row["partitionKey"]
            self.written += [row["data"] for row in rows]
            await self._writer.write(rows)


@asynccontextmanager
async def producing(stream: Stream) -> AsyncIterator[tuple[Producer, Any]]:
    async with writing(stream) as writer:
        producer = Producer(writer)
        task = asyncio.create_task(producer.run())
        try:
            yield producer, writer._sender._queues
        finally:
            task.cancel()
            await asyncio.wait([task])


async def read(stream: Stream, rows: list[Row], random: Random) -> None:
    """Read with one kill after the other; what is acknowledged is stored with its positions."""
    positions = None
    while True:
        async with stream.open(resume=positions) as running:
            try:
                async with asyncio.timeout(random.uniform(0.3, 1.5)):
                    async for batch in running:
                        await running.acknowledge(batch)
                        positions = running.positions
                        rows += rows_of(batch.records.to_pylist())
            except TimeoutError:
                pass


def rows_of(records: list[dict[str, Any]]) -> list[Row]:
    names = ("shardId", "sequenceNumber", "partitionKey")
    return [(*(row[name] for name in names), row["data"].decode()) for row in records]


@contextmanager
def landing(stream: Stream, place: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    command = ["land", f"kinesis://{stream.name}", str(place), *options]
    with subprocess.Popen(  # noqa: S603 - our own code
        [*FANOUT, *command, "--max-wait", "0", "--json"],
        env=ENVIRONMENT | stream.server.environment,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def land_and_kill(stream: Stream, place: Path) -> None:
    with landing(stream, place) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert process.stdout.readline()


def check(rows: list[Row], written: list[str]) -> None:
    """Each record once, those of a shard in order, and those of a key where the key decides."""
    assert Counter(data for *_, data in rows) == Counter(written)
    of_shards: defaultdict[str, list[int]] = defaultdict(list)
    of_keys: defaultdict[tuple[str | None, str], list[int]] = defaultdict(list)
    for shard, number, key, data in rows:
        of_shards[shard].append(int(number))
        phase, _, count = data.partition(" ")
        if phase in {"0", "2"}:
            assert key is not None
            of_keys[key, phase].append(int(count))
    for numbers in (*of_shards.values(), *of_keys.values()):
        assert numbers == sorted(numbers)
    assert len(of_shards) == 3
    assert len(of_keys) == 14
    assert sum(key is None for *_, key, _ in rows) > 20


def land_the_rest(stream: Stream, place: Path) -> list[Row]:
    with landing(stream, place, "--available-now") as process:
        assert process.wait() == 0
    landed = ds.dataset([*place.glob("segments/**/*.parquet")]).to_table().to_pylist()
    return rows_of(sorted(landed, key=lambda row: int(row["sequenceNumber"])))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


@pytest.fixture
def stream(aws: None) -> Iterator[Stream]:  # noqa: ARG001 - used for what it does
    rules = KinesisRules.fast()
    with fast(rules), KinesisServer(rules) as server:
        yield Stream(server, shards=3)


async def test_every_reader_of_a_stream_that_is_switched_has_each_record_once(
    stream: Stream, tmp_path: Path
) -> None:
    rows: list[Row] = []
    stream.distribute(USER)
    reader = asyncio.create_task(read(stream, rows, Random(5)))
    async with producing(stream) as (producer, queues):
        for number, strategy in enumerate(PHASES):
            await producer.begin("turning")
            stream.distribute(strategy)
            await until(partial(follows, queues, strategy))
            await producer.begin(str(number), keyless=strategy == AUTO)
            await asyncio.to_thread(land_and_kill, stream, tmp_path)
        await producer.begin("the end")
    await until(lambda: len(rows) >= len(producer.written))
    reader.cancel()
    await asyncio.wait([reader])
    check(rows, producer.written)
    check(await asyncio.to_thread(land_the_rest, stream, tmp_path), producer.written)


def follows(queues: Any, strategy: str) -> bool:
    return queues.automatic is (strategy == AUTO)
