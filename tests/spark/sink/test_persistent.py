from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from fanout.kafka import KafkaSource
from fanout.kafka.shuffle import ShuffleSource
from fanout.spark import persistent_key_by
from tests.kafka.brokers import HERE

if TYPE_CHECKING:
    from fanout.testing.kafka.broker import KafkaBroker


def test_the_source_has_the_options_of_kafka_and_those_of_a_shuffle(
    kafka_broker: KafkaBroker,
) -> None:
    servers = kafka_broker.bootstrap_servers
    reading = {
        "group_id": "readers",
        "on_bad_frame": "gap",
        "producer_timeout": 600,
        "on_silent_producer": "fail",
    }
    shuffle = persistent_key_by(
        bootstrap_servers=servers,
        security=HERE,
        topic="persistent-options",
        partition_count=2,
        retention=timedelta(days=1),
        replication_factor=1,
        reading=reading,
    )
    assert shuffle.source == ShuffleSource(
        KafkaSource(
            bootstrap_servers=servers,
            topics="persistent-options",
            security=HERE,
            group_id="readers",
        ),
        partition_count=2,
        on_bad_frame="gap",
        producer_timeout=600,
        on_silent_producer="fail",
    )
    assert len(reading) == 4, "what the user wrote down stays as it is"
