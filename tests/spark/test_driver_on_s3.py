"""Whole drivers with a checkpoint on s3a: killed, fought for, and on an S3 that fails."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import pyarrow.parquet as pq
import pytest

from fanout.errors import SetupError
from fanout.landing.log.entries import decode_entry
from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from fanout.testing.s3_clients import BUCKET
from fanout.testing.s3_server import serve_s3
from tests.jars.fetch import s3a_set
from tests.spark.driver_on_s3 import MAX_RECORDS, checkpoint
from tests.support.s3 import s3_client
from tests.support.s3_faults import (
    after,
    answer_lost,
    answered,
    before_its_answer,
    cut_in_the_middle,
    faulty_s3,
    passed,
)
from tests.support.spark.harness import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from http.server import BaseHTTPRequestHandler

    from tests.support.s3_faults import Fault, Rule

# Long enough for a busy machine; nothing waits for it unless a driver hangs.
pytestmark = [pytest.mark.spark, pytest.mark.prove, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
# A driver starts within this on a busy machine; it passes only if a test fails.
START = 120.0


@pytest.fixture(scope="module")
def store(jars: Callable[[str], list[Path]]) -> Iterator[str]:
    try:
        jars(s3a_set())
    except SetupError as error:  # for the oldest pyspark
        pytest.skip(str(error))
    with serve_s3() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def kinesis() -> Iterator[KinesisServer]:
    with KinesisServer(KinesisRules.fast()) as server:
        yield server


class Driver:
    """A driver in a process group with its JVM."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def kill(self) -> None:
        """Kill the driver and its JVM, at any moment."""
        os.killpg(self._process.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Let it stop as an operator would."""
        self._process.terminate()

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def end(self) -> tuple[int, list[list[str]]]:
        """Wait for the end of the driver and its JVM; return its exit code and its errors."""
        assert self._process.stdout is not None
        lines = self._process.stdout.read().splitlines()
        return self._process.wait(), [json.loads(line) for line in lines]


class Job:
    """A stream, and the checkpoint and the output of the job that copies it."""

    def __init__(
        self,
        kinesis: KinesisServer,
        store: str,
        directory: Path,
        module: str = "tests.spark.driver_on_s3",
    ) -> None:
        self.name = uuid.uuid4().hex
        self.log = directory / "driver.log"
        self._module = module
        self._kinesis = kinesis
        self._store = store
        self._output = directory / "output"
        self._output.mkdir()
        self._count = 0
        kinesis.create_stream(self.name, 2)

    def put(self, records: int) -> None:
        """Put records with the next numbers."""
        first, self._count = self._count, self._count + records
        numbers = [str(number).encode() for number in range(first, self._count)]
        self._kinesis.put_records(self.name, ((number.decode(), number) for number in numbers))

    @contextmanager
    def driver(self, endpoint: str, until: str = "once", *settings: str) -> Iterator[Driver]:
        """Run the job."""
        arguments = (self._kinesis.endpoint_url, endpoint, self.name, str(self._output), until)
        with self.log.open("a") as log:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-m", self._module, *arguments, *settings],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        with process:
            driver = Driver(process)
            try:
                yield driver
            finally:
                if driver.runs:
                    driver.kill()

    def finish(self, endpoint: str | None = None) -> None:
        """Run it until everything was read."""
        with self.driver(endpoint or self._store) as last:
            assert last.end() == (0, [])

    def written(self) -> list[int]:
        """Return the records in the output."""
        files = [pq.read_table(file) for file in self._output.glob("[!_]*.parquet")]
        return sorted(int(data) for file in files for data in file["data"].to_pylist())

    def check(self) -> None:
        """Check that each record is in the output once."""
        assert self.written() == list(range(self._count))

    def is_written(self) -> bool:
        return len(self.written()) >= self._count

    def check_segments(self) -> None:
        """Check that every segment in the checkpoint belongs to a batch."""
        client = s3_client(self._store)
        root = f"{self.name}/fanout/"
        listed = client.list_objects_v2(Bucket=BUCKET, Prefix=root)["Contents"]
        names = {file["Key"].removeprefix(root) for file in listed}
        named = set()
        for name in names:
            if (found := re.fullmatch(r"batches/([0-9]+)\.json", name)) is not None:
                data = client.get_object(Bucket=BUCKET, Key=root + name)["Body"].read()
                entry = decode_entry(data, int(found[1]), location=checkpoint(self.name))
                named |= {segment.name for segment in entry.segments}
        client.close()
        assert {name for name in names if name.endswith(".parquet")} == named
        assert not {name for name in names if "tmp" in name}


@pytest.fixture
def job(kinesis: KinesisServer, store: str, tmp_path: Path) -> Job:
    return Job(kinesis, store, tmp_path)


class Moment(NamedTuple):
    """The first request of a driver for a path; before S3 has it, or before its answer."""

    when: Literal["before", "after"]
    method: str
    path: str

    def matches(self, request: BaseHTTPRequestHandler) -> bool:
        copies = "x-amz-copy-source" in request.headers
        method = "COPY" if copies else request.command
        return method == self.method and bool(re.search(self.path, request.path))


def at(moment: Moment, meanwhile: Callable[[], object], then: Fault = passed) -> Rule:
    """Let something happen at a moment; then the request, if S3 does not have it, meets a fault."""
    fault = after(meanwhile, then) if moment.when == "before" else before_its_answer(meanwhile)
    return lambda request: fault if moment.matches(request) else None


# Two lives of a checkpoint: each driver goes on after the one before, and is killed later in it.
FIRST_KILLS = (
    Moment("after", "PUT", "/fanout/runs/1$"),
    Moment("after", "PUT", "/fanout/origin.json$"),
    Moment("before", "COPY", "/metadata$"),
    Moment("before", "COPY", "/offsets/0$"),
    Moment("after", "PUT", "/fanout/segments/"),
    Moment("after", "PUT", "/fanout/batches/0*0.json$"),
)
LATER_KILLS = (
    Moment("before", "PUT", "/fanout/batches/0*1.json$"),
    Moment("before", "DELETE", "/fanout/segments/"),  # of the driver before, which had no entry
    Moment("before", "COPY", "/commits/2$"),
    Moment("after", "COPY", "/commits/3$"),
    Moment("after", "DELETE", "/fanout/segments/"),  # of the oldest batch
)


@pytest.mark.parametrize("kills", [FIRST_KILLS, LATER_KILLS], ids=["first", "later"])
def test_drivers_that_are_killed_at_any_request_lose_and_repeat_nothing(
    job: Job, store: str, kills: Sequence[Moment]
) -> None:
    job.put(14 * MAX_RECORDS)
    for moment in kills:
        with faulty_s3(store) as s3, job.driver(s3.endpoint) as doomed:
            s3.follow(at(moment, doomed.kill, cut_in_the_middle))
            assert doomed.end() == (-signal.SIGKILL, []), moment
    job.put(2 * MAX_RECORDS)
    job.finish()
    job.check()
    job.check_segments()


class Gate:
    """Holds a driver until it is let go."""

    def __init__(self) -> None:
        self._come = threading.Event()
        self._open = threading.Event()

    def __call__(self) -> None:
        self._come.set()
        assert self._open.wait(START)

    def wait(self) -> None:
        assert self._come.wait(START)

    def open(self) -> None:
        self._open.set()


IN_HANDLER = Moment("before", "GET", "/fanout/segments/")


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (IN_HANDLER, IN_HANDLER),
        (
            Moment("before", "PUT", "/fanout/batches/"),  # it has seen that it owns the checkpoint
            Moment("before", "HEAD", "/commits/0$"),  # its handler has returned
        ),
    ],
    ids=["in-handler", "at-entry"],
)
def test_of_two_drivers_the_newer_goes_on_and_the_older_says_so(
    job: Job, store: str, older: Moment, newer: Moment
) -> None:
    held, behind = Gate(), Gate()
    job.put(MAX_RECORDS // 2)
    with faulty_s3(store) as first_s3, faulty_s3(store) as second_s3:
        first_s3.follow(at(older, held))
        second_s3.follow(at(newer, behind))
        with job.driver(first_s3.endpoint, "on") as first:
            held.wait()
            job.put(MAX_RECORDS)  # the newer would have other records in the batch
            with job.driver(second_s3.endpoint, "on") as second:
                behind.wait()
                held.open()
                code, [[kind, message]] = first.end()
                assert (code, kind) == (0, "CheckpointError")
                assert "was taken over by a newer run: application" in message
                behind.open()
                job.put(2 * MAX_RECORDS)
                eventually(lambda: job.is_written() or not second.runs)
                second.stop()
                assert second.end() == (0, [])
    job.check()


FAULTS: tuple[Fault, ...] = (
    answered(500, "InternalError"),
    answered(503, "SlowDown"),
    cut_in_the_middle,
    answer_lost,
)


def now_and_then(pause: int) -> Iterator[Fault | None]:
    for fault in itertools.cycle(FAULTS):
        yield fault
        yield from itertools.repeat(None, pause)


def test_a_query_goes_on_while_s3_refuses_cuts_and_loses_answers(job: Job, store: str) -> None:
    puts, others = now_and_then(4), now_and_then(12)
    job.put(5 * MAX_RECORDS)
    with faulty_s3(store) as s3:
        s3.follow(lambda request: next(puts if request.command == "PUT" else others))
        job.finish(s3.endpoint)
        assert s3.count("PUT") > 25
    job.check()
    job.check_segments()


def test_a_query_that_s3_refuses_for_long_ends_with_one_error_and_goes_on_later(
    job: Job, store: str
) -> None:
    job.put(4 * MAX_RECORDS)
    soon = ("attempts.maximum=1", "retry.limit=1", "retry.throttle.limit=1")
    with faulty_s3(store) as s3:
        slow_down = answered(503, "SlowDown")
        third_entry = Moment("before", "PUT", "/fanout/batches/0*2.json$")
        s3.follow(at(third_entry, lambda: s3.follow(lambda _: slow_down), slow_down))
        settings = (f"fs.s3a.{setting}" for setting in soon)
        with job.driver(s3.endpoint, "once", *settings) as refused:
            code, [[kind, message]] = refused.end()
    assert (code, kind) == (0, "CheckpointError")
    entry = f"{checkpoint(job.name)}/fanout/batches/000000000002.json"
    assert message.startswith(f"cannot write {entry}: ")
    assert "\n" not in message
    job.finish()
    job.check()
    job.check_segments()
