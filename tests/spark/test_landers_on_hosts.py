"""Queries with landers on hosts with addresses of their own, whose links to the driver are bad.

The driver and Spark's master are on one host, each worker on another. All of them reach Kinesis
past the links: a lander that has lost the driver could go on reading.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from fanout.testing.kinesis.process import KinesisProcess
from tests.spark.landers_job import Job, read_all, running
from tests.spark.landers_segments import Segments
from tests.spark.landers_traffic import KinesisTraffic, writing
from tests.support.groups import SPARK_CLUSTERS
from tests.support.spark.cluster import start_cluster
from tests.support.spark.harness import PATIENCE, eventually
from tests.support.spark.hosts import network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.spark.lander_work import Attempt
    from tests.support.spark.hosts import Network

# Long enough for a busy machine; nothing waits for it unless a driver hangs.
pytestmark = [SPARK_CLUSTERS, pytest.mark.spark, pytest.mark.prove, pytest.mark.timeout(300)]

# Spark starts no twin until a test has set the threshold.
_SPECULATIVE: Final[Mapping[str, str]] = {
    "spark.speculation": "true",
    # So that a lander that dies gets a job of its own, in which the threshold counts.
    "spark.task.maxFailures": "1",
}
# The records that are written while a link is bad.
_RECORDS: Final = 5_000
# Spark gives an executor up after 20 s, instead of two minutes.
_IMPATIENT: Final[Mapping[str, str]] = {
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "1s",
    "spark.executor.heartbeatInterval": "2s",
}


@contextmanager
def query(
    directory: Path, settings: Mapping[str, str] | None = None
) -> Iterator[tuple[Job, Network, KinesisTraffic]]:
    """Run a query with two landers, on hosts that each have the cores for all of it."""
    with (
        KinesisProcess() as kinesis,
        network(port=int(kinesis.endpoint_url.rpartition(":")[2])) as hosts,
        start_cluster(directory, cores=3, hosts=(hosts.driver, *hosts.workers)) as cluster,
    ):
        traffic = KinesisTraffic(kinesis)
        job = Job(
            cluster.master,
            3,
            "kinesis",
            kinesis.endpoint_url,
            directory / "job",
            host=hosts.driver,
            settings=settings,
        )
        with running(job):
            yield job, hosts, traffic


def apart(job: Job, hosts: Network) -> list[Attempt]:
    """Return both landers, on different hosts; Spark places its tasks by chance."""
    landers: list[Attempt] = []

    def look() -> bool:
        living = {one.lander: one for one in job.living()}
        landers[:] = living.values()
        if len(living) < 2:
            return False
        if len({id(hosts.link_of(one.pid)) for one in landers}) == 2:
            return True
        landers[0].kill()
        eventually(lambda: job.landers()[-1].lander == landers[0].lander)
        return False

    eventually(look, "landers on different hosts")
    return landers


def test_links_that_are_bad_for_a_while(tmp_path: Path) -> None:
    with query(tmp_path) as (job, hosts, traffic):
        lander, _ = apart(job, hosts)
        link = hosts.link_of(lander.pid)

        def cut(seconds: float) -> None:
            link.is_cut = True
            time.sleep(seconds)
            link.is_cut = False

        def while_it_is(bad: Callable[[], None]) -> int:
            """Return how many sessions of landers began."""
            before = len(job.landers())
            with writing(traffic, least=traffic.written + _RECORDS):
                bad()
            read_all(job, traffic)
            return len(job.landers()) - before

        assert while_it_is(lambda: cut(1)) == 0
        link.delay = 0.2
        assert while_it_is(lambda: None) == 0
        link.delay, link.loss = 0.0, 0.1
        while_it_is(lambda: None)
        link.loss = 0.0
        # Longer than both sides wait for each other: the same process begins another session.
        assert while_it_is(lambda: cut(10)) > 0
        assert lander.lives
        assert lander.pid in {one.pid for one in job.landers()[2:]}
        assert traffic.written >= 4 * _RECORDS
        stopped_while_cut(job, hosts)


def stopped_while_cut(job: Job, hosts: Network) -> None:
    """Stop a query just after a link was cut; when it is mended, nothing is left of landers."""
    lander, other = apart(job, hosts)
    link = hosts.link_of(lander.pid)
    link.is_cut = True
    seconds, error = job.ask("stop")
    assert error == "None"
    assert seconds < PATIENCE  # Spark gives an executor up after two minutes
    assert not other.lives
    link.is_cut = False
    left_nothing(job, lander)


def left_nothing(job: Job, lander: Attempt, *, patience: float = PATIENCE) -> None:
    """Look that no process and no file is left of a lander."""
    eventually(lambda: not lander.lives, "the end of the lander", patience=patience)
    scratch = job.directory / "checkpoint" / "fanout" / "_scratch"
    session = f"-{lander.number + 1:06}-"
    assert not [file.name for file in scratch.iterdir() if session in file.name]
    assert not list((job.directory.parent / "tmp").iterdir())


def test_a_link_that_is_cut_for_ever(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with query(tmp_path, _IMPATIENT) as (job, hosts, traffic):
        lander, other = apart(job, hosts)
        link = hosts.link_of(lander.pid)
        segments = Segments(job.directory)

        def cut() -> None:
            link.is_cut = True

        with writing(traffic):
            stops = segments.stop_of(lander.number + 1, cut)
        read_all(job, traffic)
        seconds, error = job.ask("stop")
        assert error == "None"
        assert seconds < 20
        assert not other.lives
        # Its executor cannot be told; it gives up a minute after it has lost the driver.
        left_nothing(job, lander, patience=90.0)
    record_property("seconds until all splits have records", round(stops[-1], 2))
    record_property("seconds to stop", round(seconds, 2))


def test_a_speculative_twin_does_no_harm(tmp_path: Path) -> None:
    """Start a twin in spite of the check at the start; Spark puts it on another host."""
    with query(tmp_path, _SPECULATIVE) as (job, _, traffic):
        eventually(lambda: len(job.living()) == 2, "both landers")
        job.ask("speculate")
        with writing(traffic):
            job.living()[0].kill()
            # Of the two the one that Spark has started later reads.
            eventually(lambda: "an older attempt of lander" in job.log.read_text(), "a twin")
        read_all(job, traffic)
        job.stop()
