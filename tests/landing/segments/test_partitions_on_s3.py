"""Files of partitions that are put into a bucket at the same time, while something fails."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import threading
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fanout.errors import CheckpointError
from fanout.landers.land import land
from fanout.testing.s3_clients import BUCKET
from tests.support.manual_source import SCHEMA
from tests.support.patience import PATIENCE
from tests.support.s3 import s3_client, s3_options
from tests.support.s3_faults import (
    after,
    answer_lost,
    answered,
    closed_without_answer,
    cut_in_the_middle,
    faulty_s3,
)
from tests.support.shaped_source import ShapedSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractAsyncContextManager

    from fanout.landing.lander import Landing
    from tests.support.s3_faults import Fault, FaultyS3

pytestmark = pytest.mark.long

VALUES = 20


class Job:
    """A landing with a file for each record, and a look at its bucket."""

    def __init__(self, endpoint: str, s3: FaultyS3) -> None:
        self.endpoint = endpoint
        self.s3 = s3
        self.prefix = uuid.uuid4().hex
        self.threads = set(threading.enumerate())
        schema = pa.schema([*SCHEMA, ("x", pa.string())])
        self.source = ShapedSource(schema, x=lambda data: f"v{int(data):02}")
        self.source.put(*(b"%d" % number for number in range(VALUES)))

    def strike(self, fault: Fault, *, first: int, count: int = 1) -> None:
        """Let some puts of files of partitions meet a fault."""
        numbers = itertools.count()

        def rule(request: Any) -> Fault | None:
            if request.command != "PUT" or "/segments/" not in request.path:
                return None
            return fault if next(numbers) in range(first, first + count) else None

        self.s3.follow(rule)

    def opened(self) -> AbstractAsyncContextManager[Landing]:
        """Begin a run."""
        return land(
            self.source,
            f"s3://{BUCKET}/{self.prefix}",
            storage_options=s3_options(self.s3.endpoint),
            max_wait=0.5,
            partition_by="x",
        )

    async def land(self) -> None:
        """Land all records in an entry."""
        async with self.opened() as landing:
            entry = await anext(landing)
            assert len(entry.files) == VALUES

    def check(self) -> None:
        """Check that each file is in an entry, and each record in a file, once."""
        with closing(s3_client(self.endpoint)) as client:
            listed = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{self.prefix}/")["Contents"]
            keys = [one["Key"].removeprefix(f"{self.prefix}/") for one in listed]

            def read(key: str) -> bytes:
                found = client.get_object(Bucket=BUCKET, Key=f"{self.prefix}/{key}")
                data: bytes = found["Body"].read()
                return data

            named = [
                file["name"]
                for key in keys
                if key.startswith("batches/")
                for file in json.loads(read(key))["segments"]
            ]
            files = [key for key in keys if key.startswith("segments/x=")]
            assert sorted(named) == sorted(files)
            rows = [row for key in files for row in _rows(read(key))]
        assert sorted(rows) == [*range(VALUES)]
        left = set(threading.enumerate()) - self.threads
        assert not [one for one in left if "fanout-partitions" in one.name]


def _rows(data: bytes) -> list[int]:
    with pq.ParquetFile(io.BytesIO(data)) as file:
        return [int(row) for row in file.read(["data"]).column("data").to_pylist()]


@pytest.fixture
def job(endpoint: str) -> Iterator[Job]:
    with faulty_s3(endpoint) as s3:
        yield Job(endpoint, s3)


@pytest.mark.parametrize("first", [2, 17])
async def test_a_put_that_is_refused_leaves_nothing_after_the_next_run(
    job: Job, first: int
) -> None:
    job.strike(answered(403, "AccessDenied"), first=first)
    with pytest.raises(CheckpointError, match="cannot write"):
        await job.land()
    job.s3.follow(lambda _: None)
    await job.land()
    await asyncio.to_thread(job.check)


@pytest.mark.parametrize("fault", [answer_lost, closed_without_answer, cut_in_the_middle])
async def test_puts_without_an_answer_are_made_again(job: Job, fault: Fault) -> None:
    job.strike(fault, first=9, count=3)
    await job.land()
    await asyncio.to_thread(job.check)


@pytest.mark.parametrize("fault", [None, answer_lost])
async def test_a_run_that_is_cancelled_waits_for_its_puts(job: Job, fault: Fault | None) -> None:
    begun, let = threading.Semaphore(0), threading.Event()

    def meanwhile() -> None:
        begun.release()
        let.wait(PATIENCE)

    held = after(meanwhile) if fault is None else after(meanwhile, fault)
    job.strike(held, first=4, count=4)
    landing = asyncio.create_task(job.land())
    for _ in range(4):
        assert await asyncio.to_thread(begun.acquire, timeout=PATIENCE)
    landing.cancel()
    await asyncio.sleep(0.1)
    assert not landing.done()
    let.set()
    with pytest.raises(asyncio.CancelledError):
        await landing
    job.s3.follow(lambda _: None)
    async with job.opened():
        pass  # what is in no entry would be deleted
    await asyncio.to_thread(job.check)
