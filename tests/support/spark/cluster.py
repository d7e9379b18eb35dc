"""Spark clusters of separate processes on this machine, for tests in which some of them die.

A process can have one Spark session only: a test starts its driver as a process of its own, with
`clean_environment`, and gives it the cluster's master.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, final

import pytest

from fanout.testing.spark.class_archive import java_options
from tests.support.process_list import running_with
from tests.support.spark.harness import eventually
from tests.support.spark.home import spark_home
from tests.support.spark.hosts import HERE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.support.spark.hosts import Host

__all__ = ("SPARK_ON_THIS_MACHINE", "StandaloneCluster", "standalone_cluster", "start_cluster")

ROOT: Final = Path(__file__).parents[3]

SPARK_ON_THIS_MACHINE: Final[Mapping[str, str]] = {
    "PYSPARK_PYTHON": sys.executable,
    "PYTHONPATH": str(ROOT),
    "SPARK_HOME": str(spark_home()),
    "SPARK_LOCAL_IP": "127.0.0.1",
}
"""The environment in which Spark's processes run this Python and this library."""

_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"


@final
@dataclass(frozen=True, slots=True)
class StandaloneCluster:
    """A standalone master and its workers, each a process.

    Args:
        master: What a session's `master` takes.
        workers: The workers; a test that kills one uses a cluster of its own.
        mark: A text in the environment of all processes of the cluster, executors too.
    """

    master: str
    workers: list[subprocess.Popen[bytes]] = field(repr=False)
    mark: str
    _start_worker: Callable[[], subprocess.Popen[bytes]] = field(repr=False)

    def worker_of(self, executor: int) -> subprocess.Popen[bytes]:
        """Return the worker that has started an executor.

        Args:
            executor: The process id of the executor.
        """
        stat = Path(f"/proc/{executor}/stat").read_text(encoding="utf-8")
        parent = int(stat.rpartition(")")[2].split()[1])
        (worker,) = (one for one in self.workers if one.pid == parent)
        return worker

    def kill_worker_of(self, executor: int) -> None:
        """Kill the worker that has started an executor, without a chance to clean up.

        Args:
            executor: The process id of the executor.
        """
        worker = self.worker_of(executor)
        worker.send_signal(signal.SIGKILL)
        worker.wait()

    def restart_workers(self) -> None:
        """Start another worker for each one that has ended."""
        for place, worker in enumerate(self.workers):
            if worker.poll() is not None:
                self.workers[place] = self._start_worker()


@contextmanager
def start_cluster(
    directory: Path,
    *,
    workers: int = 2,
    cores: int = 2,
    memory: str = "1g",
    hosts: Sequence[Host] = (HERE,),
    java: str = "",
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[StandaloneCluster]:
    """Run a standalone cluster on free ports in the block.

    Args:
        directory: Where its processes write.
        workers: How many workers.
        cores: The cores of each worker.
        memory: What the executors of each worker may have together.
        hosts: Where the master runs, and then where each worker does; the last is for all others.
        java: Options of the JVMs of master and workers, such as Spark's settings of theirs.
        environment: What is added to the environment of all of its processes, executors too.
    """
    mark = f"fanout-test-cluster-{uuid.uuid4().hex}"
    environment = {
        **os.environ,
        **SPARK_ON_THIS_MACHINE,
        **environment,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"{java_options()} {java}".rstrip(),
        "FANOUT_TEST_CLUSTER": mark,
        "TMPDIR": str(directory / "tmp"),  # of Python; the JVMs have theirs
    }
    (directory / "tmp").mkdir()
    with ExitStack() as processes:

        def start(name: str, host: Host, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
            log = directory / f"{name}.log"
            spark_class = Path(SPARK_ON_THIS_MACHINE["SPARK_HOME"], "bin", "spark-class")
            with log.open("wb") as output:
                process = subprocess.Popen(  # noqa: S603 - Spark's own script
                    host.command(
                        str(spark_class), *arguments, "--host", host.address, "--port", "0"
                    ),
                    cwd=directory,
                    env={**environment, "SPARK_LOCAL_IP": host.address},
                    stdout=output,
                    stderr=output,
                )
            processes.callback(_end, process)
            return process, log

        _, log = start("master", hosts[0], _MASTER, "--webui-port", "0")
        master = _found(log, r"Starting Spark master at (spark://\S+)")
        options = ("--webui-port", "0", "--cores", str(cores), "--memory", memory, master)
        numbers = count()

        def start_worker() -> tuple[subprocess.Popen[bytes], Path]:
            number = next(numbers)
            work = directory / f"work-{number}"
            host = hosts[min(1 + number, len(hosts) - 1)]
            name = f"worker-{number}"
            return start(name, host, _WORKER, "--work-dir", str(work), *options)

        def start_another() -> subprocess.Popen[bytes]:
            worker, log = start_worker()
            _found(log, r"(Successfully registered with master)")
            return worker

        started = [start_worker() for _ in range(workers)]
        for _, log in started:
            _found(log, r"(Successfully registered with master)")
        yield StandaloneCluster(master, [worker for worker, _ in started], mark, start_another)
    # An executor ends itself when its worker has gone.
    eventually(lambda: not running_with(mark), "the end of all processes of the cluster")


@pytest.fixture
def standalone_cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    """A standalone master with two workers of two cores, to be killed."""
    with start_cluster(tmp_path) as cluster:
        yield cluster


def _found(log: Path, pattern: str) -> str:
    """Wait until a process has written a line, and return its group."""
    match: list[str] = []

    def look() -> bool:
        match[:] = re.findall(pattern, log.read_text(encoding="utf-8", errors="replace"))
        return bool(match)

    eventually(look, f"{pattern} in {log}")
    return match[0]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
