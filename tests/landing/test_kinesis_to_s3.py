"""An embedded Kinesis stream, landed on each server of S3."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fanout.errors import CheckpointError
from fanout.kinesis import KinesisSource
from fanout.landers.land import land
from fanout.landing import lander
from fanout.landing.log.followed import followed
from fanout.landing.retention import Retention
from fanout.landing.storage.opening import open_storage
from fanout.testing.s3_clients import BUCKET
from tests.support.s3 import s3_options

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractAsyncContextManager

    from fanout.landing.lander import Landing
    from fanout.landing.log.followed import LandedEntry
    from fanout.testing.kinesis.server import KinesisServer


@final
class Job:
    """A stream of two shards, and the bucket in which it is landed."""

    def __init__(self, server: KinesisServer, endpoint: str) -> None:
        self._server = server
        self.location = f"s3://{BUCKET}/{uuid.uuid4().hex}"
        self.options = s3_options(endpoint)
        self.records = 0
        server.create_stream("orders", 2)

    def put(self, count: int) -> None:
        """Put records into the stream, whose data are the next numbers."""
        numbers = range(self.records, self.records + count)
        self._server.put_records("orders", ((str(number), b"%d" % number) for number in numbers))
        self.records += count

    def land(self, **options: Any) -> AbstractAsyncContextManager[Landing]:
        source = KinesisSource(
            stream="orders",
            mode="polling",
            start="TRIM_HORIZON",
            endpoint_url=self._server.endpoint_url,
        )
        chosen: dict[str, Any] = {"max_records": 7, "storage_options": self.options}
        return land(source, self.location, **chosen | options)

    async def land_all(self, **options: Any) -> list[LandedEntry]:
        """Land what is there; return the entries."""
        async with self.land(available_now=True, **options) as landing:
            return [entry async for entry in landing]

    async def follow(self, rows: int) -> list[LandedEntry]:
        """Follow the landing until so many records have come."""
        found: list[LandedEntry] = []
        async with asyncio.timeout(30):
            async for entry in followed(self.location, poll=0.05, storage_options=self.options):
                found.append(entry)
                if sum(each.rows for each in found) >= rows:
                    break
        return found

    async def files(self) -> list[str]:
        """Return the files that are there, whether an entry names them or not."""

        def walk() -> list[str]:
            with closing(open_storage(self.location, self.options)) as storage:
                return [f"{self.location}/{name}" for name in storage.walk("segments")]

        return await asyncio.to_thread(walk)

    async def read(self, entries: Iterable[LandedEntry]) -> Counter[int]:
        """Return how often each record is in the files of entries."""
        names = [file.removeprefix(f"{self.location}/") for each in entries for file in each.files]

        def read() -> Counter[int]:
            found: Counter[int] = Counter()
            with closing(open_storage(self.location, self.options)) as storage:
                for name in names:
                    table = pq.read_table(pa.BufferReader(storage.read(name, limit=1 << 20)))
                    found.update(map(int, table.column("data").to_pylist()))
            return found

        return await asyncio.to_thread(read)

    async def check(self) -> None:
        """Check that a follower gets every record once, and that there is no file besides."""
        entries = await self.follow(self.records)
        assert await self.read(entries) == Counter(range(self.records))
        assert sorted(await self.files()) == sorted(file for each in entries for file in each.files)


@pytest.fixture
def job(
    kinesis_server: KinesisServer,
    endpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    aws: None,  # noqa: ARG001 - used for what it does
) -> Job:
    for name, value in kinesis_server.environment.items():
        monkeypatch.setenv(name, value)
    return Job(kinesis_server, endpoint)


async def test_runs_one_after_the_other_land_each_record_once(job: Job) -> None:
    for count in (20, 0, 9):
        job.put(count)
        landed = await job.land_all()
        assert sum(entry.rows for entry in landed) == count
    await job.check()


@pytest.mark.long
async def test_of_two_runs_the_newer_goes_on_and_the_older_says_so(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lander, "_CLAIM_SECONDS", 0.05)
    job.put(10)
    async with job.land(max_wait=0.0) as older:
        rows = (await anext(older)).rows
        async with job.land(max_wait=0.0) as newer:
            with pytest.raises(CheckpointError, match="was taken over by a newer run"):
                async for _ in older:
                    pass
            job.put(10)
            async with asyncio.timeout(30):
                while rows < job.records:
                    rows += (await anext(newer)).rows
    await job.check()


@pytest.mark.long
async def test_what_is_older_than_it_is_kept_is_deleted(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.put(20)
    await job.land_all()
    now = Retention.now()
    monkeypatch.setattr(Retention, "now", staticmethod(lambda: now + 3_601_000))
    job.put(5)
    kept = await job.land_all(keep=timedelta(hours=1))
    assert await job.follow(5) == kept
    assert await job.read(kept) == Counter(range(20, 25))
    assert await job.files() == [file for each in kept for file in each.files]
