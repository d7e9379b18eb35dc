"""A query with landers in drivers of their own, and the comparison of its output with its input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import pyarrow.parquet as pq

from tests.spark.lander_work import Attempt
from tests.spark.landers_query_driver import CREDENTIALS, SETTINGS
from tests.spark.landers_traffic import RECORDS
from tests.support.patience import PATIENCE
from tests.support.spark.cluster import SPARK_ON_THIS_MACHINE
from tests.support.spark.harness import eventually
from tests.support.spark.hosts import HERE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.spark.landers_traffic import Traffic
    from tests.support.spark.hosts import Host

_CONNECTED: Final = re.compile(r"lander (\d+) \(process (\d+) on \S+\) is connected")


@final
class Job:
    """A query of one driver after the other, on one checkpoint.

    Args:
        master: Spark's master.
        cores: The cores of an executor.
        service: `kinesis` or `kafka`.
        address: The service's address.
        directory: Empty at first.
        host: Where the drivers run.
        settings: More of Spark's settings.
    """

    def __init__(
        self,
        master: str,
        cores: int,
        service: str,
        address: str,
        directory: Path,
        *,
        host: Host = HERE,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        directory.mkdir()
        self.directory = directory
        self.log = directory / "log"
        module = "tests.spark.landers_query_driver"
        arguments = (master, str(cores), service, address, str(directory))
        self._command = host.command(sys.executable, "-m", module, *arguments)
        self._environment = {
            **os.environ,
            **SPARK_ON_THIS_MACHINE,
            **CREDENTIALS,
            "SPARK_LOCAL_IP": host.address,
            SETTINGS: json.dumps(settings or {}),
        }
        self._landers: list[Attempt] = []
        self._rows: dict[str, int] = {}

    def start(self) -> None:
        """Start a driver and its query."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._answer() == "started"

    def ask(self, command: str) -> Any:
        """Let the driver run one of its commands, and return the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self.log.read_text(encoding="utf-8", errors="replace")
        return json.loads(line)

    def end(self) -> None:
        """Let the driver end its session, and end itself."""
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()

    def kill(self) -> None:
        """Kill the driver; its JVM ends soon after."""
        with self._process as process:
            process.kill()

    def stop(self) -> None:
        """Stop the query, and look that no process of a lander is left."""
        seconds, error = self.ask("stop")
        assert error == "None"
        assert seconds < 20
        assert not [lander for lander in self.landers() if lander.lives]

    def landers(self) -> list[Attempt]:
        """Return all landers that have connected so far, the newest last."""
        found = _CONNECTED.findall(self.log.read_text(encoding="utf-8", errors="replace"))
        for lander, pid in found[len(self._landers) :]:
            attempt = Attempt(int(lander), len(self._landers), int(pid), _executor_of(int(pid)))
            self._landers.append(attempt)
        return self._landers

    def living(self) -> list[Attempt]:
        """Wait for a lander that lives, and return those that do."""
        living: list[Attempt] = []

        def look() -> bool:
            living[:] = [one for one in self.landers() if one.lives and one.executor]
            return bool(living)

        eventually(look, "a lander")
        return living

    def rows(self) -> int:
        """Return how many rows all finished batches have together."""
        for mark in self.directory.glob("output/*/_SUCCESS"):
            if mark.parent.name not in self._rows:
                parts = mark.parent.glob("*.parquet")
                self._rows[mark.parent.name] = sum(pq.read_metadata(p).num_rows for p in parts)
        return sum(self._rows.values())


def _executor_of(lander: int) -> int:
    """Return the executor of a lander's process; 0 where it has ended."""
    try:
        return _parent(_parent(lander))  # Spark's daemon is between them
    except FileNotFoundError:
        return 0


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextmanager
def running(job: Job) -> Iterator[Job]:
    """Run the job's first driver, and in the end its last."""
    with ExitStack() as stack:
        stack.callback(job.kill)
        job.start()
        yield job
        stack.pop_all()
    job.end()


class Row(NamedTuple):
    """A record as a batch has it, ordered as it was read."""

    batch: int
    segment: str
    line: int
    split: str
    position: int
    key: str
    number: int


def output(directory: Path) -> list[Row]:
    """Return the rows of all batches; those of a segment are in its order."""
    rows = []
    for batch in (directory / "output").iterdir():
        assert (batch / "_SUCCESS").exists()
        for part in batch.glob("*.parquet"):
            for line, row in enumerate(pq.read_table(part).to_pylist()):
                rows.append(
                    Row(
                        int(batch.name),
                        row["segment"].rpartition("/")[2],
                        line,
                        row["split"],
                        int(row["position"]),
                        row["key"],
                        int(row["number"]),
                    )
                )
    return sorted(rows)


def check(rows: list[Row], written: int) -> dict[str, int]:
    """Count what is lost, what is there twice, and what comes after something later.

    The order of a split is that of its segments. A key moves from a parent to its children, whose
    places are behind: it must not be in an earlier batch with a later number.
    """
    numbers = [row.number for row in rows]
    disordered = 0
    latest: dict[str, int] = {}
    batches: dict[str, int] = {}
    for row in rows:
        disordered += row.position <= latest.get(row.split, -1)
        latest[row.split] = row.position
    for row in sorted(rows, key=lambda row: row.number):
        disordered += row.batch < batches.get(row.key, -1)
        batches[row.key] = row.batch
    return {
        "lost": len(set(range(written)) - set(numbers)),
        "duplicated": len(numbers) - len(set(numbers)),
        "out of order": disordered,
    }


EXACT: Final[Mapping[str, int]] = {"lost": 0, "duplicated": 0, "out of order": 0}


def read_all(job: Job, traffic: Traffic) -> None:
    """Wait until all that was written is read: nothing is lost, there twice, or out of order."""
    eventually(lambda: job.rows() >= traffic.written, "all records")
    assert check(output(job.directory), traffic.written) == EXACT


def finish(job: Job, traffic: Traffic) -> None:
    """Let the query read what was written, and stop it."""
    read_all(job, traffic)
    job.stop()
    assert traffic.written >= RECORDS
    assert check(output(job.directory), traffic.written) == EXACT
