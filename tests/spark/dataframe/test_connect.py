"""A query through Spark Connect that lands its source; server and planner are killed."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import uuid
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from tests.spark.dataframe.connect_query import DELAY, WINDOW
from tests.spark.dataframe.connect_server import ROOT, ConnectServer
from tests.support.process_list import running_with
from tests.support.spark.harness import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.prove, pytest.mark.timeout(500)]

AWS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}


@contextmanager
def client(server: ConnectServer, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the client; it does not outlive the block."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "AWS_"))}
    process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-m", "tests.spark.dataframe.connect_query", server.url, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def finished(server: ConnectServer, *arguments: str) -> str:
    """Run the client to its end, and return what it prints."""
    with client(server, *arguments) as process:
        output, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors
    return output


def planner_killed(server: ConnectServer, drawn: random.Random, *arguments: str) -> None:
    """Run the client, and kill the planner of its query at a drawn moment."""
    with client(server, *arguments) as process:
        eventually(server.planners, "the planner")
        threading.Event().wait(drawn.uniform(0.0, 5.0))
        server.kill_planners()
        process.communicate(timeout=120)
        assert process.returncode != 0


def killed(server: ConnectServer, drawn: random.Random, *arguments: str) -> None:
    """Run the client, and kill the server at a drawn moment."""
    with client(server, *arguments) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n", process.communicate()[1]
        threading.Event().wait(drawn.uniform(1.0, 8.0))
        server.kill()  # the client would look for it for ten minutes


@pytest.mark.parametrize("seed", range(1))
def test_windows_are_counted_through_killed_servers(tmp_path: Path, seed: int) -> None:
    drawn, mark = random.Random(seed), uuid.uuid4().hex
    sent: list[int] = []

    def put(kinesis: KinesisServer, numbers: list[int]) -> None:
        drawn.shuffle(numbers)
        sent.extend(numbers)
        kinesis.put_records("orders", ((str(n % 97), b"%d" % n) for n in numbers))

    def server() -> ConnectServer:
        return ConnectServer(tmp_path, mark, **AWS)

    with KinesisServer(KinesisRules.fast()) as kinesis:
        kinesis.create_stream("orders", 2)
        arguments = (kinesis.endpoint_url, str(tmp_path))
        put(kinesis, list(range(300)))
        with server() as first:
            killed(first, drawn, *arguments, "never")
        eventually(lambda: not running_with(mark), "the end of all planners and workers")
        put(kinesis, list(range(200, 500)))
        kinesis.split_shard("orders", "shardId-000000000000")
        put(kinesis, list(range(400, 600)))
        with server() as second:
            planner_killed(second, drawn, *arguments, "never")
            finished(second, *arguments, "available")
            put(kinesis, [600 + 2 * DELAY])  # all windows before it are complete
            killed(second, drawn, *arguments, "never")
        eventually(lambda: not running_with(mark), "the end of all planners and workers")
        put(kinesis, [600 + 2 * DELAY])  # Spark writes complete windows in a run that has records
        with server() as third:
            finished(third, *arguments, "available")
            eventually(lambda: not third.planners(), "the end of the planner with its query")
            assert not list((tmp_path / "landing" / "_scratch").iterdir())
            found = json.loads(finished(third, *arguments, "results"))
    expected = Counter(number // WINDOW * WINDOW for number in sent if number < 600)
    assert found == sorted([start, count] for start, count in expected.items())
