"""The tutorial, as a reader goes through it: a job is killed in a batch, and goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

import boto3
import pytest

from fanout.testing.kinesis.process import KinesisProcess
from tests.support.pages import ROOT, python_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.prove, pytest.mark.spark, pytest.mark.timeout(400)]

_, PRODUCE, JOB, CHECK = python_blocks("tutorial.md")
# Longer than anything takes on a busy machine; it passes only if a test fails.
PATIENCE: Final = 120.0


class Reader:
    """Someone who saves the files of the tutorial, and starts them in terminals."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self._directory = directory
        self.environment = environment
        self._environment = {**os.environ, **environment, "PYTHONPATH": str(ROOT)}
        self._processes: list[subprocess.Popen[bytes]] = []
        for name, code in (("produce", PRODUCE), ("job", JOB), ("check", CHECK)):
            here = code.replace("/tmp/numbers", f"{directory}/numbers")  # noqa: S108 - replaced
            (directory / f"{name}.py").write_text(here)

    def start(self, name: str) -> tuple[subprocess.Popen[bytes], Path]:
        log = self._directory / f"{name}-{len(self._processes)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - files of ours
                [sys.executable, f"{name}.py"],
                cwd=self._directory,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        return process, log

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with KinesisProcess() as server:
        someone = Reader(tmp_path, dict(server.environment))
        try:
            yield someone
        finally:
            someone.close()


def wait_for(pattern: str, log: Path, process: subprocess.Popen[bytes]) -> re.Match[str]:
    """Wait until a process has printed a line; return the last such line."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := list(re.finditer(pattern, log.read_text(), re.MULTILINE)):
            return found[-1]
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    raise AssertionError(log.read_text())


def test_the_job_that_was_killed_in_a_batch_writes_it_again_and_loses_nothing(
    reader: Reader,
) -> None:
    producer, _ = reader.start("produce")
    job, killed = reader.start("job")
    wait_for(r"^batch \d+ is done$", killed, job)
    # The next batch is written now; the function waits for three seconds at its end.
    line = wait_for(r"^process (\d+) writes batch ([1-9]\d*) with (\d+) records$", killed, job)
    process, batch, records = line.groups()
    os.kill(int(process), signal.SIGKILL)
    job.wait()

    again, log = reader.start("job")
    line = wait_for(r"^process \d+ writes batch (\d+) with (\d+) records$", log, again)
    first = re.search(r"writes batch (\d+) with (\d+) records", log.read_text())
    assert first is not None
    assert first.groups() == (batch, records)
    wait_for(rf"^batch {int(batch) + 1} is done$", log, again)
    producer.send_signal(signal.SIGINT)
    producer.wait()
    wait_until_all_are_written([killed, log], put(reader.environment), again)
    again.send_signal(signal.SIGINT)
    assert again.wait(PATIENCE) == 0, log.read_text()

    check, log = reader.start("check")
    assert check.wait(PATIENCE) == 0, log.read_text()
    assert re.search(r"^[1-9]\d+ records, each once$", log.read_text(), re.MULTILINE)


def wait_until_all_are_written(logs: list[Path], count: int, job: subprocess.Popen[bytes]) -> None:
    """Wait until the job has printed the end of the batch with the last of so many records."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        text = "".join(log.read_text() for log in logs)
        batches = dict(re.findall(r"writes batch (\d+) with (\d+) records$", text, re.MULTILINE))
        done = set(re.findall(r"^batch (\d+) is done$", text, re.MULTILINE))
        if sum(map(int, batches.values())) == count and batches.keys() <= done:
            return
        assert job.poll() is None, text
        time.sleep(0.05)
    raise AssertionError(text)


def put(environment: dict[str, str]) -> int:
    """Return how many records the stream has."""
    client = boto3.client(
        "kinesis",
        endpoint_url=environment["AWS_ENDPOINT_URL_KINESIS"],
        region_name=environment["AWS_REGION"],
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    found = 0
    for shard in client.list_shards(StreamName="numbers")["Shards"]:
        iterator = client.get_shard_iterator(
            StreamName="numbers", ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        found += len(client.get_records(ShardIterator=iterator)["Records"])
    return found
