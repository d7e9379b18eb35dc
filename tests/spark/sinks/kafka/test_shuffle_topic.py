from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from fanout.errors import OptionError, ServiceError
from fanout.kafka import Cluster
from fanout.spark import ShuffleSink, create_shuffle_topic
from tests.support.kafka.brokers import HERE

if TYPE_CHECKING:
    from fanout.testing.kafka.broker import KafkaBroker


def test_the_topic_of_a_shuffle_is_created_once_and_checked_after_that(
    kafka_broker: KafkaBroker,
) -> None:
    cluster = Cluster(kafka_broker.bootstrap_servers, security=HERE)
    sink = ShuffleSink(cluster=cluster, topic="created-by-a-sink", partition_count=2)
    for _ in range(2):
        create_shuffle_topic(sink, retention=timedelta(days=1), replication_factor=1)
    wider = replace(sink, partition_count=3)
    with pytest.raises(ServiceError, match="has 2 partitions, and by partition_count it has 3"):
        create_shuffle_topic(wider, retention=timedelta(days=1), replication_factor=1)


def test_the_topic_of_a_shuffle_needs_a_number_of_partitions() -> None:
    sink = ShuffleSink(cluster=Cluster("localhost", security=HERE), topic="t")
    with pytest.raises(OptionError, match="partition_count="):
        create_shuffle_topic(sink, retention=None, replication_factor=1)
