"""Sinks whose cluster cannot be reached when their query starts."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from fanout.errors import ServiceError
from fanout.kafka import Cluster
from fanout.kafka.cluster import Server
from fanout.spark import KafkaSink, ShuffleSink, create_shuffle_topic
from fanout.spark.sinks.kafka.connection import connect
from fanout.spark.workers.loop_thread import LoopThread
from tests.support.kafka.first_contact import CONNECT_TIMEOUT, ended_once_seen
from tests.support.kafka.topics import PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import Callable


def open_kafka(cluster: Cluster) -> None:
    with LoopThread() as loop:
        connect(KafkaSink(cluster=cluster, topic="orders").target, loop)


def open_shuffle(cluster: Cluster) -> None:
    with LoopThread() as loop:
        connect(ShuffleSink(cluster=cluster, topic="orders").target, loop)


def create_topic(cluster: Cluster) -> None:
    sink = ShuffleSink(cluster=cluster, topic="orders", partition_count=1)
    create_shuffle_topic(sink, retention=timedelta(days=1), replication_factor=1)


@pytest.mark.parametrize("start", [open_kafka, open_shuffle, create_topic])
def test_a_sink_whose_cluster_is_dead_is_an_error_within_the_timeout(
    start: Callable[[Cluster], None], unused_tcp_port: int
) -> None:
    dead = Server("127.0.0.1", unused_tcp_port)
    cluster = Cluster(str(dead), security=PLAINTEXT, connect_timeout=CONNECT_TIMEOUT)
    with (
        ended_once_seen(dead),
        pytest.raises(ServiceError, match=f"cannot be reached: {dead}: no server listens"),
    ):
        start(cluster)
