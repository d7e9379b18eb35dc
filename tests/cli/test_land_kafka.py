"""`fanout land`, from a broker of Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from tests.cli.test_land import landed
from tests.support.groups import KAFKA_COMMANDS
from tests.support.kafka.topics import Topic

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = KAFKA_COMMANDS


def test_topics_of_kafka(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    topics = [Topic(kafka_broker), Topic(kafka_broker)]
    for topic in topics:
        topic.put(2)
    names = ",".join(topic.name for topic in topics)
    command = [f"kafka://{names}", str(tmp_path), "--group", "landers"]
    servers = ["--bootstrap-servers", kafka_broker.bootstrap_servers]
    assert landed(*command, *servers)[-1]["rows"] == 4
    topics[0].put(1)
    assert landed(*command, *servers)[-1]["rows"] == 1
    found = pq.read_table(tmp_path / "segments").column("value").to_pylist()
    assert sorted(found) == [b"0", b"0", b"1", b"1", b"2"]
