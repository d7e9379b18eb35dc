"""Landers of a streaming DataFrame and its driver are killed; every record comes once, as it is."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import pytest

from tests.spark.dataframe.driver_process import (
    kill,
    running,
    wait_for_end,
    wait_until_running,
)
from tests.support.process_list import running_with
from tests.support.spark.harness import eventually

if TYPE_CHECKING:
    import subprocess
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import SparkSession

    from fanout.testing.kinesis.server import KinesisServer

pytestmark = [pytest.mark.spark, pytest.mark.prove, pytest.mark.timeout(400)]

# The run and the session of a segment are in its name.
_SEGMENT = re.compile(r"segments/run-(\d+)-(\d+)-\d+\.parquet")
_CONNECTED = re.compile(r"^lander (\d+) \(process (\d+) on \S+\) is connected$", re.MULTILINE)


@final
@dataclass(frozen=True)
class Difference:
    """How what came differs from what was sent, in records."""

    lost: int = 0
    duplicated: int = 0
    altered: int = 0


class Job:
    """The query as a process, what was sent to it, and what has come of that.

    A record is known by its shard and sequence number.
    """

    def __init__(
        self, spark: SparkSession, kinesis: KinesisServer, root: Path, drawn: random.Random
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.sent: dict[tuple[str, str], tuple[str, bytes]] = {}
        self._spark = spark
        self._kinesis = kinesis
        self._root = root
        self._drawn = drawn
        (root / "scratch").mkdir()

    def run(self, *planted: str) -> AbstractContextManager[subprocess.Popen[str]]:
        kinesis = self._kinesis
        arguments = (kinesis.endpoint_url, str(self._root), *planted)
        return running("landers_query", self.mark, *arguments, **kinesis.environment)

    def put(self, count: int = 300) -> None:
        """Send records whose content no other has."""
        records = [
            (f"key-{len(self.sent) + n}", self._drawn.randbytes(self._drawn.randrange(1, 200)))
            for n in range(count)
        ]
        places = self._kinesis.put_records("orders", records)
        self.sent |= dict(zip(places, records, strict=True))

    def landers(self) -> dict[int, int]:
        """Return the process of each lander."""
        found = _CONNECTED.findall((self._root / "landers.log").read_text())
        return {int(lander): int(process) for lander, process in found}

    def sessions(self) -> set[tuple[int, int]]:
        """Return the run and the session of each segment that an entry names."""
        found = set()
        for path in (self._root / "landing" / "batches").glob("[0-9]*"):
            for segment in json.loads(path.read_bytes())["segments"]:
                match = _SEGMENT.fullmatch(segment["name"])
                assert match is not None
                found.add((int(match[1]), int(match[2])))
        return found

    def put_until_landed_by(self, count: int, *, after: tuple[int, int] = (0, 0)) -> None:
        """Send records, more with each entry, until so many later sessions have landed some."""
        newest = None

        def landed() -> bool:
            nonlocal newest
            if sum(session > after for session in self.sessions()) >= count:
                return True
            if (entries := self.entries()) != newest:
                newest = entries
                self.put(50)
            return False

        eventually(landed, f"{count} sessions that land after {after}")

    def within_batch(self) -> bool:
        """Return whether Spark has planned a batch that is not committed."""
        planned, committed = (
            {path.name for path in (self._root / "checkpoint" / name).glob("[0-9]*")}
            for name in ("offsets", "commits")
        )
        return not planned <= committed

    def wait_for_all(self) -> None:
        """Wait until everything that was sent has come at least once."""
        seen: set[str] = set()

        def came() -> bool:
            batches = {path.name for path in (self._root / "results" / "_spark_metadata").glob("*")}
            if batches <= seen:
                return False
            seen.update(batches)
            return self.difference().lost == 0

        eventually(came, "all records in the sink")

    def difference(self) -> Difference:
        """Compare what came with what was sent, record by record."""
        rows = self._rows()
        came = Counter(place for place, _ in rows)
        return Difference(
            lost=len(self.sent.keys() - came.keys()),
            duplicated=came.total() - len(came),
            altered=sum(self.sent.get(place) != content for place, content in rows),
        )

    def end(self) -> None:
        """Tell the driver to end when everything that has landed is in the sink."""
        (self._root / "end").touch()

    def entries(self) -> int:
        """Return the number of the newest entry."""
        names = (path.name for path in (self._root / "landing" / "batches").glob("[0-9]*"))
        return max((int(re.sub(r"\D.*", "", name)) for name in names), default=-1)

    def _rows(self) -> list[tuple[tuple[str, str], tuple[str, bytes]]]:
        results = self._root / "results"
        if not (results / "_spark_metadata" / "0").exists():
            return []
        return [
            ((row.shardId, row.sequenceNumber), (row.partitionKey, bytes(row.data)))
            for row in self._spark.read.parquet(str(results)).collect()
        ]


def kill_landers(job: Job, drawn: random.Random) -> None:
    """Kill one lander or both by SIGKILL, and wait until others have landed in their place."""
    job.put_until_landed_by(2)
    newest, landers = max(job.sessions()), sorted(job.landers().values())
    job.put()
    victims = drawn.sample(landers, drawn.randint(1, 2))
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    job.put_until_landed_by(len(victims), after=newest)


@pytest.mark.parametrize(("seed", "within_batch"), [(0, True), (1, False)])
def test_landers_and_a_driver_that_are_killed_lose_repeat_and_alter_nothing(
    spark: SparkSession, kinesis: KinesisServer, tmp_path: Path, *, seed: int, within_batch: bool
) -> None:
    drawn = random.Random(seed)
    job = Job(spark, kinesis, tmp_path, drawn)
    with job.run() as driver:
        wait_until_running(driver)
        kill_landers(job, drawn)
        kinesis.split_shard("orders", "shardId-000000000000")
        job.put()
        job.wait_for_all()
        assert job.difference() == Difference()
        newest = max(job.sessions())
        for _ in range(drawn.randint(1, 4)):
            job.put()
        if within_batch:
            eventually(job.within_batch, "a batch")
        assert kill(job.mark, "driver") == 2  # Python and the JVM
        eventually(lambda: not running_with(job.mark), "the end of its processes")
    job.put()
    with job.run() as driver:
        wait_until_running(driver)
        job.put_until_landed_by(2, after=newest)
        job.wait_for_all()
        job.end()
        wait_for_end(driver)
    assert job.difference() == Difference()


def test_a_coordinator_that_forgets_positions_is_seen(
    spark: SparkSession, kinesis: KinesisServer, tmp_path: Path
) -> None:
    drawn = random.Random(0)
    job = Job(spark, kinesis, tmp_path, drawn)
    with job.run("unguarded") as driver:
        wait_until_running(driver)
        kill_landers(job, drawn)
        job.wait_for_all()
    assert job.difference().duplicated > 0
