"""Queries with landers whose executors Spark takes away and gives: by decommission and by need."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

import pytest

from fanout.testing.kinesis.process import KinesisProcess
from tests.spark.landers_job import Job, finish, read_all, running
from tests.spark.landers_segments import Segments
from tests.spark.landers_traffic import RECORDS, KinesisTraffic, writing
from tests.support.groups import SPARK_CLUSTERS
from tests.support.process_list import running_with
from tests.support.spark.cluster import start_cluster
from tests.support.spark.harness import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# Long enough for a busy machine; nothing waits for it unless a driver hangs.
pytestmark = [SPARK_CLUSTERS, pytest.mark.spark, pytest.mark.prove, pytest.mark.timeout(300)]

_DYNAMIC: Final[Mapping[str, str]] = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.maxExecutors": "4",
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
}
# One for each lander.
_FEWEST: Final = 2


@pytest.fixture
def kinesis() -> Iterator[KinesisProcess]:
    """A Kinesis with the service's own limits."""
    with KinesisProcess() as server:
        yield server


def test_a_lander_reads_on_until_its_decommissioned_executor_ends(
    kinesis: KinesisProcess, tmp_path: Path
) -> None:
    traffic = KinesisTraffic(kinesis)
    decommission = "spark.decommission.enabled"
    with start_cluster(tmp_path, cores=3, java=f"-D{decommission}=true") as cluster:
        job = Job(
            cluster.master,
            3,
            "kinesis",
            kinesis.endpoint_url,
            tmp_path / "job",
            settings={decommission: "true"},
        )
        segments = Segments(job.directory)
        with running(job):
            with writing(traffic):
                eventually(lambda: len(job.living()) == 2, "both landers")
                lander = job.living()[0]
                cluster.worker_of(lander.executor).send_signal(signal.SIGPWR)
                says = "Decommission executor"
                logs = list(tmp_path.glob("work-*/*/*/stderr"))
                eventually(lambda: [log for log in logs if says in log.read_text()], says)
                # Spark gives it no more tasks, and waits for those that it has.
                before = len(segments.of(lander.number + 1))
                eventually(lambda: len(segments.of(lander.number + 1)) > before + 1, "more of it")
                leaving = [one for one in job.living() if one.executor == lander.executor]
                cluster.kill_worker_of(lander.executor)
                eventually(lambda: not any(one.lives for one in leaving), "the end of the executor")
                eventually(lambda: len(job.living()) == 2, "both landers again")
            finish(job, traffic)


def test_executors_are_taken_and_given_beside_landers(
    kinesis: KinesisProcess, tmp_path: Path
) -> None:
    traffic = KinesisTraffic(kinesis)
    with start_cluster(tmp_path, cores=2, memory="2g") as cluster:

        def executors() -> int:
            commands = running_with(cluster.mark).values()
            return sum("CoarseGrainedExecutorBackend" in command for command in commands)

        job = Job(
            cluster.master, 1, "kinesis", kinesis.endpoint_url, tmp_path / "job", settings=_DYNAMIC
        )
        with running(job):
            eventually(lambda: len(job.living()) == 2, "both landers")
            for _ in range(3):
                with writing(traffic, least=traffic.written + RECORDS // 3 + 1):
                    eventually(lambda: executors() > _FEWEST, "an executor for the batches")
                read_all(job, traffic)
                eventually(lambda: executors() == _FEWEST, "the end of executors without work")
            # Those of the landers were left alone.
            assert len(job.landers()) == 2
            assert len(job.living()) == 2
            finish(job, traffic)
