"""Flink's source of Kinesis as a client, in a job on a cluster of one process."""

from __future__ import annotations

import os
import re
import subprocess
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fanout.testing.kinesis.server import KinesisServer
from tests.clients.orders import FIRST, FOURTH, THIRD, Orders, Record
from tests.clients.programs import Program, wait_until
from tests.clients.table import calls, calls_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# A JVM compiles the program, and another one starts a cluster.
pytestmark = [pytest.mark.prove, pytest.mark.timeout(300)]

# It tells of the ends of shards.
FETCHER = "org.apache.flink.streaming.connectors.kinesis.internals.KinesisDataFetcher"
READER = Path(__file__).parent / "FlinkReader.java"
# Flink 1.19 looks into classes of Java 17, as the scripts that start it allow it to.
OPENED = ("lang", "net", "nio", "util", "util.concurrent")


@pytest.fixture(params=["Flink, fan-out", "Flink, polling"])
def client(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def orders() -> Iterator[Orders]:
    # The rules are those of the service.
    with KinesisServer() as server:
        yield Orders(server)


@pytest.fixture
def class_path(java: str, jars: Callable[[str], list[Path]], tmp_path: Path) -> str:
    """The jars, and the compiled program: workers of Flink do not find what is not in a file."""
    libraries = os.pathsep.join(map(str, jars("flink")))
    classes = tmp_path / "classes"
    compiler = [java, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-cp", libraries]
    subprocess.run([*compiler, "-d", str(classes), str(READER)], check=True)  # noqa: S603 (our own)
    return os.pathsep.join([str(classes), libraries])


@pytest.fixture
def job(
    client: str, java: str, class_path: str, orders: Orders, tmp_path: Path
) -> Iterator[Program]:
    command = [java, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    command += [f"-Dorg.slf4j.simpleLogger.log.{FETCHER}=info"]
    command += [f"--add-opens=java.base/java.{each}=ALL-UNNAMED" for each in OPENED]
    command += ["-cp", class_path, READER.stem, orders.server.endpoint_url, "orders"]
    command += [client.rpartition(" ")[2]]
    with ExitStack() as scope:
        job = Program("flink", command, os.environ, tmp_path)
        scope.callback(job.kill)
        yield job


def test_it_reads_a_resharding_stream_to_its_end(
    client: str, orders: Orders, job: Program, caplog: pytest.LogCaptureFixture
) -> None:
    with calls(caplog) as seen:
        orders.put(5_000)
        wait_until(lambda: read(job) == orders.written, [job])
        orders.reshard(2_500)
        wait_until(lambda: read(job) == orders.written, [job])
        wait_until(lambda: ended(job) == {FIRST, THIRD, FOURTH}, [job])
        job.end()
    assert orders.count == 10_000
    assert seen == calls_of(client)
    # It polls five times a second, which is as often as the service allows.
    assert set(orders.server.statistics().violations) <= {"polled_too_often"}


def read(job: Program) -> dict[str, list[Record]]:
    """Return the records of each shard, in the order in which the job has read them."""
    found: defaultdict[str, list[Record]] = defaultdict(list)
    for _, shard, *record in job.lines():
        found[shard].append(Record(*record))
    return found


def ended(job: Program) -> set[str]:
    """Return the shards whose end the job has reached."""
    lines = job.logged("has reached the end of subscribed shard")
    return {shard for line in lines for shard in re.findall(r"shardId-\d{12}", line)[:1]}
