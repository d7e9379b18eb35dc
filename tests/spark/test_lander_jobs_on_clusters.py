"""Jobs that carry landers, on clusters of separate processes, some of which are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import pytest

from tests.spark.lander_driver import LANDERS
from tests.spark.lander_work import Attempt, LanderWork
from tests.support.groups import SPARK_CLUSTERS
from tests.support.patience import PATIENCE
from tests.support.spark.cluster import SPARK_ON_THIS_MACHINE, start_cluster
from tests.support.spark.harness import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.spark.cluster import StandaloneCluster

# Long enough for a busy machine; nothing waits for it unless a driver hangs.
pytestmark = [SPARK_CLUSTERS, pytest.mark.spark, pytest.mark.prove, pytest.mark.timeout(300)]


@final
@dataclass(frozen=True, slots=True)
class Running:
    """A driver and its landers."""

    process: subprocess.Popen[str]
    work: LanderWork

    def ask(self, command: str) -> Any:
        """Let the driver run one of its commands, and return the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def both(self) -> list[Attempt]:
        return [self.work.running(lander) for lander in range(LANDERS)]


@contextmanager
def driver(master: str, cores: int, directory: Path) -> Iterator[Running]:
    directory.mkdir()
    log = directory.with_suffix(".log")
    with (
        log.open("wb") as errors,
        subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", "tests.spark.lander_driver", master, str(cores), str(directory)],
            env={**os.environ, **SPARK_ON_THIS_MACHINE},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), log.read_text(encoding="utf-8", errors="replace")
            running = Running(process, LanderWork(directory))
            assert running.ask("check") == str(directory / "checkpoint")
            running.ask("start")
            yield running
            assert process.stdin is not None
            process.stdin.close()
            process.wait(PATIENCE)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def local_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two executors of two cores, which are started again when they die."""
    directory = tmp_path_factory.mktemp("local-cluster")
    with driver("local-cluster[2,2,1024]", 2, directory / "landers") as running:
        yield running
        left(running)


@pytest.fixture
def running(local_cluster: Running) -> Running:
    local_cluster.both()
    local_cluster.ask("ends")
    return local_cluster


def left(running: Running) -> None:
    """Leave the context, and look that no Python worker of a landers is there."""
    attempts = running.both()
    assert running.ask("leave") < PATIENCE
    # Spark calls a task ended once it has told its daemon to kill the worker.
    eventually(lambda: not any(attempt.lives for attempt in attempts))
    assert running.ask("ends") == []
    assert running.ask("job") == sum(range(100))


def test_landers_run_beside_other_jobs(running: Running) -> None:
    before = running.both()
    assert running.ask("job") == sum(range(100))
    assert running.both() == before


def test_more_landers_than_cores_are_refused(running: Running) -> None:
    says = running.ask("check_more")
    assert says.startswith("landers=4 need 5 cores, as each holds one")
    assert "this session runs 4 tasks at once" in says


def test_a_lander_whose_process_is_killed_comes_back(running: Running) -> None:
    first, other = running.both()
    os.kill(first.pid, signal.SIGKILL)
    assert running.work.after(first).lives
    assert running.both()[1] == other
    assert running.ask("ends") == []  # Spark started the task again, in the same job


def test_a_lander_whose_executor_is_killed_comes_back(running: Running) -> None:
    first, _ = running.both()
    os.kill(first.executor, signal.SIGKILL)
    assert running.work.after(first).executor != first.executor
    eventually(lambda: not first.lives)
    assert running.ask("job") == sum(range(100))


def test_a_lander_that_fails_is_named_with_its_error(running: Running) -> None:
    _, second = running.both()
    running.work.fail(1)
    running.work.after(second)
    assert running.ask("ends") == [[1, "lander 1 failed: ValueError: no such shard"]]


def test_landers_come_back_after_a_worker_of_the_cluster(
    standalone_cluster: StandaloneCluster, tmp_path: Path
) -> None:
    with driver(standalone_cluster.master, 2, tmp_path / "landers") as running:
        first, _ = running.both()
        assert "this session runs 4 tasks at once: give it more ex" in running.ask("check_more")
        standalone_cluster.kill_worker_of(first.executor)
        again = running.work.after(first)
        eventually(lambda: not first.lives)
        assert again.executor != first.executor
        assert all(attempt.executor == again.executor for attempt in running.both())
        left(running)


def test_the_end_of_the_jvm_ends_the_landers(tmp_path: Path) -> None:
    with (
        start_cluster(tmp_path, workers=1, cores=3) as cluster,
        driver(cluster.master, 3, tmp_path / "landers") as running,
    ):
        attempts = running.both()
        os.kill(running.ask("jvm"), signal.SIGKILL)
        eventually(lambda: not any(attempt.lives for attempt in attempts))
        assert running.ask("leave") < PATIENCE
        ends = running.ask("ends")
        running.process.kill()
    assert sorted(ends) == [
        [lander, f"Spark's JVM has gone away under lander {lander}"] for lander in (0, 1)
    ]


def test_the_end_of_the_session_ends_the_landers(tmp_path: Path) -> None:
    with driver("local[3]", 1, tmp_path / "landers") as running:
        attempts = running.both()
        running.ask("stop")
        eventually(lambda: not any(attempt.lives for attempt in attempts))
        assert running.ask("leave") < PATIENCE
        ends = running.ask("ends")
    assert sorted(ends) == [
        [lander, f"the Spark session was stopped under lander {lander}"] for lander in (0, 1)
    ]
