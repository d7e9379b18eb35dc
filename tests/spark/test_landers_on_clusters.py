"""Queries with landers on clusters of separate processes, whose parts are killed while they read.

Each test draws its moments from a seed. The driver's handler writes each batch to a directory of
its own; at the end all of them together are compared with what was written to the service.
"""

from __future__ import annotations

import os
import signal
import time
from random import Random
from typing import TYPE_CHECKING, Final, TypeAlias

import pytest

from fanout.testing.kinesis.process import KinesisProcess
from tests.spark.landers_job import Job, finish, output, running
from tests.spark.landers_segments import Segments
from tests.spark.landers_traffic import SPLITS, KafkaTraffic, KinesisTraffic, Traffic, writing
from tests.support.groups import SPARK_CLUSTERS
from tests.support.spark.cluster import start_cluster
from tests.support.spark.harness import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fanout.testing.kafka.broker import KafkaBroker
    from tests.support.spark.cluster import StandaloneCluster

# Long enough for a busy machine; nothing waits for it unless a driver hangs.
pytestmark = [SPARK_CLUSTERS, pytest.mark.spark, pytest.mark.prove, pytest.mark.timeout(300)]

# How often a strike waits for records after the one before.
_AFTER_RECORDS: Final = 0.7


def kill_lander(job: Job, random: Random) -> None:
    random.choice(job.living()).kill()


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
            stops = segments.stop_of(victim.number + 1, victim.kill)
        finish(job, traffic)
    record_property("seconds to the first record of the splits", round(stops[0], 2))
    record_property("seconds until all splits have records", round(stops[-1], 2))
