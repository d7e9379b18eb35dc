"""Queries with landers on clusters of separate processes, whose parts are killed while they read.

Each test draws its moments from a seed. The driver's handler writes each batch to a directory of
its own; at the end all of them together are compared with what was written to the service.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, final

import pyarrow.parquet as pq
import pytest

from fanout.testing.kinesis.process import KinesisProcess
from tests.kafka.topics import Topic
from tests.spark.cluster import SPARK_ON_THIS_MACHINE, start_cluster
from tests.spark.harness import eventually
from tests.spark.lander_work import Attempt
from tests.spark.landers_query_driver import CREDENTIALS, NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fanout.testing.kafka.broker import KafkaBroker
    from tests.spark.cluster import StandaloneCluster

# Long enough for a busy machine; nothing waits for it unless a driver hangs.
pytestmark = [pytest.mark.spark, pytest.mark.prove, pytest.mark.timeout(300)]

SPLITS: Final = 8
RECORDS: Final = 20_000
_WAVE: Final = 240
# How often a strike waits for records after the one before.
_AFTER_RECORDS: Final = 0.7
_CONNECTED: Final = re.compile(r"lander (\d+) \(process (\d+) on \S+\) is connected")


class Traffic(Protocol):
    """What is written to a service while the query runs."""

    written: int

    def put(self) -> None:
        """Write some records, numbered from 0 on, to all splits."""

    def reshape(self) -> None:
        """Change the splits."""


@final
class KinesisTraffic:
    """Records of 40 partition keys, in a stream of shards that split and merge."""

    def __init__(self, server: KinesisProcess) -> None:
        self.written = 0
        self._server = server
        self._reshards: list[Callable[[], object]] = [
            partial(server.split_shard, NAME, "shardId-000000000000"),
            partial(server.merge_shards, NAME, "shardId-000000000003", "shardId-000000000004"),
        ]
        server.create_stream(NAME, SPLITS)

    def put(self) -> None:
        numbers = range(self.written, self.written + _WAVE)
        self._server.put_records(NAME, [(f"key {n % 40}", b"%d" % n) for n in numbers])
        self.written += _WAVE

    def reshape(self) -> None:
        """Split a shard; the next time, merge two others."""
        if self._reshards:
            self._reshards.pop(0)()


@final
class KafkaTraffic:
    """Records in a topic that gets more partitions."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.written = 0
        self._topic = Topic(broker, partitions=SPLITS, name=NAME)
        self._partitions = SPLITS

    def put(self) -> None:
        for partition in range(self._partitions):
            self._topic.put(_WAVE // SPLITS, partition=partition)
        self.written = self._topic.written

    def reshape(self) -> None:
        """Add a partition."""
        self._partitions += 1
        self._topic.broker.grow_topic(NAME, self._partitions)


@contextmanager
def writing(traffic: Traffic) -> Iterator[None]:
    """Write while the block runs, and at least as many records as a test needs."""
    done = threading.Event()

    def write() -> None:
        while not done.wait(0.25) or traffic.written < RECORDS:
            traffic.put()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@final
class Job:
    """A query of one driver after the other, on one checkpoint.

    Args:
        master: Spark's master.
        cores: The cores of an executor.
        service: `kinesis` or `kafka`.
        address: The service's address.
        directory: Empty at first.
    """

    def __init__(
        self, master: str, cores: int, service: str, address: str, directory: Path
    ) -> None:
        directory.mkdir()
        self.directory = directory
        self.log = directory / "log"
        self._arguments = [master, str(cores), service, address, str(directory)]
        self._landers: list[Attempt] = []
        self._rows: dict[str, int] = {}

    def start(self) -> None:
        """Start a driver and its query."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-m", "tests.spark.landers_query_driver", *self._arguments],
                env={**os.environ, **SPARK_ON_THIS_MACHINE, **CREDENTIALS},
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
                process.wait(30)
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


def kill_lander(job: Job, random: Random) -> None:
    os.kill(random.choice(job.living()).pid, signal.SIGKILL)


def kill_executor(job: Job, random: Random) -> None:
    os.kill(random.choice(job.living()).executor, signal.SIGKILL)


def kill_driver(job: Job, _: Random) -> None:
    orphans = job.landers()[:]
    job.kill()
    job.start()
    eventually(lambda: not any(lander.lives for lander in orphans), "the end of the landers")


def restart_query(job: Job, _: Random) -> None:
    job.stop()
    job.ask("start")


Strike: TypeAlias = "Callable[[Job, Random], None]"


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


def read_through(job: Job, traffic: Traffic, random: Random, strikes: list[Strike]) -> None:
    """Strike at drawn moments, in a drawn order, while records come and splits change."""
    random.shuffle(strikes)
    with running(job):
        with writing(traffic):
            for number, strike in enumerate(strikes):
                if random.random() < _AFTER_RECORDS:
                    before = job.rows()
                    eventually(lambda: job.rows() > before, "records")  # noqa: B023 - called here
                time.sleep(random.uniform(0.0, 3.0))
                if number in (1, 3):
                    traffic.reshape()
                strike(job, random)
        finish(job, traffic)
    assert len({row.split for row in output(job.directory)}) > SPLITS


def finish(job: Job, traffic: Traffic) -> None:
    """Let the query read what was written, stop it, and check its output."""
    eventually(lambda: job.rows() >= traffic.written, "all records")
    job.stop()
    assert traffic.written >= RECORDS
    assert check(output(job.directory), traffic.written) == EXACT


def kill_worker(cluster: StandaloneCluster) -> Strike:
    return lambda job, random: cluster.kill_worker_of(random.choice(job.living()).executor)


@pytest.fixture
def kinesis() -> Iterator[KinesisProcess]:
    """A Kinesis with the service's own limits."""
    with KinesisProcess() as server:
        yield server


# Each worker has the cores for both landers and a batch, as one of them dies.
def test_kinesis_on_a_standalone_cluster(kinesis: KinesisProcess, tmp_path: Path) -> None:
    traffic = KinesisTraffic(kinesis)
    with start_cluster(tmp_path, cores=4) as cluster:
        strikes = [kill_lander, kill_executor, kill_worker(cluster), kill_driver, restart_query]
        job = Job(cluster.master, 4, "kinesis", kinesis.endpoint_url, tmp_path / "job")
        read_through(job, traffic, Random(1), strikes)


def test_kafka_on_a_standalone_cluster(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    traffic = KafkaTraffic(kafka_broker)
    with start_cluster(tmp_path, cores=4) as cluster:
        strikes = [kill_lander, kill_executor, kill_worker(cluster), kill_driver, restart_query]
        job = Job(cluster.master, 4, "kafka", kafka_broker.bootstrap_servers, tmp_path / "job")
        read_through(job, traffic, Random(2), strikes)


def test_kinesis_on_a_local_cluster(kinesis: KinesisProcess, tmp_path: Path) -> None:
    traffic = KinesisTraffic(kinesis)
    job = Job("local-cluster[2,2,1024]", 2, "kinesis", kinesis.endpoint_url, tmp_path / "job")
    read_through(job, traffic, Random(3), [kill_lander, kill_executor, kill_driver, restart_query])


def test_the_splits_of_a_dead_lander_are_read_again(
    kinesis: KinesisProcess, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    traffic = KinesisTraffic(kinesis)
    job = Job("local-cluster[2,2,1024]", 2, "kinesis", kinesis.endpoint_url, tmp_path / "job")
    segments = Segments(job.directory)
    with running(job):
        with writing(traffic):
            eventually(lambda: len(job.living()) == 2, "both landers")
            victim = job.living()[-1]
            session = victim.number + 1
            eventually(lambda: len(segments.of(session)) > 2, "segments of the lander")
            splits = {split for one in segments.of(session) for split in one.splits}
            os.kill(victim.pid, signal.SIGKILL)
            died_at = time.monotonic()
            again: dict[str, float] = {}

            def look() -> bool:
                for one in segments.since(died_at, without=session):
                    for split in splits & one.splits:
                        again.setdefault(split, one.seen_at - died_at)
                return again.keys() == splits

            eventually(look, "records of all splits of the lander")
        finish(job, traffic)
    record_property("seconds to the first record of the splits", round(min(again.values()), 2))
    record_property("seconds until all splits have records", round(max(again.values()), 2))


class Segment(NamedTuple):
    """A segment, and when it was first seen."""

    session: int
    seen_at: float
    splits: frozenset[str]


@final
class Segments:
    """All segments that landers have published; the files go when batches are old.

    Args:
        directory: That of the job.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "checkpoint" / "fanout" / "segments"
        self._seen: dict[str, Segment] = {}

    def of(self, session: int) -> list[Segment]:
        """Return those of a session; the sessions of a run are numbered from 1 as they connect."""
        return [one for one in self._look() if one.session == session]

    def since(self, moment: float, *, without: int) -> list[Segment]:
        """Return those that were seen after a moment, but for a session's."""
        return [one for one in self._look() if one.seen_at > moment and one.session != without]

    def _look(self) -> list[Segment]:
        for file in sorted(self._directory.glob("run-*.parquet")):
            if file.name not in self._seen:
                now = time.monotonic()
                with suppress(FileNotFoundError):
                    shards = pq.read_table(file, columns=["shardId"]).column(0).to_pylist()
                    session = int(file.name.split("-")[2])
                    self._seen[file.name] = Segment(session, now, frozenset(shards))
        return list(self._seen.values())
