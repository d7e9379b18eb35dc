"""Whole drivers that are signalled: what they leave, and that the next run goes on behind it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest
from pyspark.find_spark_home import _find_spark_home

from fanout.kafka import Cluster
from fanout.kafka.share.group_admin import describe_group
from tests.spark.sinks.kafka.harness import Output
from tests.support.groups import SPARK_CLUSTERS
from tests.support.kafka.topics import PLAINTEXT, Topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.testing.kafka.broker import KafkaBroker

# Long enough for a busy machine; nothing waits for it unless a driver hangs.
pytestmark = [SPARK_CLUSTERS, pytest.mark.spark, pytest.mark.prove, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
RECORDS = 20


@pytest.fixture
def topic(kafka_broker: KafkaBroker) -> Topic:
    topic = Topic(kafka_broker)
    topic.put(RECORDS)
    return topic


class Driver:
    """A driver in a process group of its own."""

    def __init__(self, process: subprocess.Popen[str], log: IO[str]) -> None:
        self.process = process
        self._log = log

    def await_ready(self) -> int | None:
        """Wait until the signal may come; return the process id of the JVM."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith('{"jvm"'):
                pid: int | None = json.loads(line)["jvm"]
                return pid
        raise AssertionError(f"the driver has ended: {self.says()}")

    def end(self) -> int:
        """Wait for the end of the driver and its JVM, which has the same stdout."""
        assert self.process.stdout is not None
        self.process.stdout.read()
        return self.process.wait()

    def says(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def check_clean_end(self) -> None:
        assert self.end() == 0, self.says()
        for word in ("Traceback", "Exception", "\tat ", " ERROR "):
            assert word not in self.says()


@contextmanager
def driver(
    scenario: str, topic: Topic, target: str | Path, directory: Path, *, submit: bool = False
) -> Iterator[Driver]:
    module = "tests.spark.signalled_driver"
    command = [sys.executable, "-m", module]
    if submit:
        script = directory / "job.py"
        script.write_text(f"import runpy\nrunpy.run_module({module!r}, run_name='__main__')\n")
        command = [f"{_find_spark_home()}/bin/spark-submit", "--master", "local[2]", str(script)]
    arguments = (topic.broker.bootstrap_servers, topic.name, str(target))
    with (directory / f"{scenario}.log").open("w+") as log:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [*command, scenario, *arguments, str(directory / "checkpoint")],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        with process:
            try:
                yield Driver(process, log)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


def finish(topic: Topic, directory: Path, target: Path) -> None:
    """Run to the end of the topic, and check that each record was handled once."""
    topic.put(RECORDS)
    with driver("to-file", topic, target, directory) as last:
        assert last.end() == 0, last.says()
    handled = target.read_text().split()
    assert sorted(handled) == sorted(f"0:{offset}" for offset in range(2 * RECORDS))


@pytest.mark.parametrize("scenario", ["between-batches", "in-handler", "starting"])
def test_sigterm_ends_a_driver_with_0_and_the_next_run_goes_on(
    topic: Topic, tmp_path: Path, scenario: str
) -> None:
    target = tmp_path / "handled"
    with driver(scenario, topic, target, tmp_path) as first:
        first.await_ready()
        first.process.terminate()
        first.check_clean_end()
    if scenario != "starting":
        assert len(target.read_text().split()) == RECORDS
    finish(topic, tmp_path, target)


def test_sigterm_before_the_first_query_ends_a_driver_with_0(topic: Topic, tmp_path: Path) -> None:
    with driver("before-session", topic, tmp_path / "handled", tmp_path) as first:
        first.await_ready()
        first.process.terminate()
        first.check_clean_end()
    finish(topic, tmp_path, tmp_path / "handled")


def test_sigterm_inside_a_transaction_lets_it_be_committed(
    kafka_broker: KafkaBroker, topic: Topic, tmp_path: Path
) -> None:
    output = Output(kafka_broker)
    with driver("in-transaction", topic, output.name, tmp_path) as first:
        first.await_ready()
        first.process.terminate()
        first.check_clean_end()
    assert output.values() == sorted(value or b"" for _, value in topic.log[0])
    topic.put(RECORDS)
    with driver("to-topic", topic, output.name, tmp_path) as last:
        assert last.end() == 0, last.says()
    assert output.values() == sorted(value or b"" for _, value in topic.log[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_process_group_is_one_signal(
    topic: Topic, tmp_path: Path, number: signal.Signals
) -> None:
    target = tmp_path / "handled"
    with driver("in-handler", topic, target, tmp_path) as first:
        first.await_ready()
        os.killpg(first.process.pid, number)
        first.check_clean_end()
    assert len(target.read_text().split()) == RECORDS
    finish(topic, tmp_path, target)


def test_a_signal_to_the_jvm_of_spark_submit_lets_the_batch_finish(
    topic: Topic, tmp_path: Path
) -> None:
    target = tmp_path / "handled"
    with driver("in-handler", topic, target, tmp_path, submit=True) as first:
        assert first.await_ready() == first.process.pid
        first.process.terminate()
        first.check_clean_end()
    assert len(target.read_text().split()) == RECORDS
    finish(topic, tmp_path, target)


def test_a_driver_whose_handler_does_not_return_gives_up_in_time(
    topic: Topic, tmp_path: Path
) -> None:
    target = tmp_path / "handled"
    with driver("stuck", topic, target, tmp_path) as first:
        first.await_ready()
        first.process.terminate()
        assert first.end() == 128 + signal.SIGTERM
        assert "2 s after SIGTERM the process ends: 1 of 1 queries still run" in first.says()
    finish(topic, tmp_path, target)


def test_a_second_signal_ends_a_driver_at_once(topic: Topic, tmp_path: Path) -> None:
    target = tmp_path / "handled"
    with driver("twice", topic, target, tmp_path) as first:
        first.await_ready()
        first.process.terminate()
        # A signal that comes before Python has taken the first one is not a second one.
        while first.process.poll() is None:
            first.process.terminate()
            time.sleep(0.05)
        assert first.end() == 128 + signal.SIGTERM
        assert "a second SIGTERM came: the process ends at once" in first.says()
    finish(topic, tmp_path, target)


def test_a_share_group_has_no_member_afterwards(topic: Topic, tmp_path: Path) -> None:
    target = tmp_path / "handled"
    for _ in range(2):
        with driver("share", topic, target, tmp_path) as run:
            run.await_ready()
            run.process.terminate()
            run.check_clean_end()
        cluster = Cluster(topic.broker.bootstrap_servers, security=PLAINTEXT)
        found = asyncio.run(describe_group(cluster, topic.name))
        assert (found.state, found.members) == ("Empty", ())
        topic.put(RECORDS)
    handled = target.read_text().split()
    assert len(handled) == len(set(handled))
    assert set(handled) >= {f"0:{offset}" for offset in range(RECORDS)}
