"""`fanout land`, from a broker of Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from tests.cli.test_land import landed, refused
from tests.support.groups import KAFKA_COMMANDS
from tests.support.kafka.topics import Topic

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = KAFKA_COMMANDS


@pytest.mark.long
def test_topics_of_kafka_by_two_processes(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    topic = Topic(kafka_broker, partitions=4)
    for partition in range(4):
        topic.put(10, partition=partition)
    command = [f"kafka://{topic.name}", str(tmp_path), "--group", "landers", "--processes", "2"]
    servers = ["--bootstrap-servers", kafka_broker.bootstrap_servers]
    assert landed(*command, *servers)[-1]["rows"] == 40
    topic.put(2)
    assert landed(*command, *servers)[-1]["rows"] == 2
    found = pq.read_table(tmp_path / "segments").column("value").to_pylist()
    assert sorted(map(int, found)) == [*range(42)]
    files = tmp_path.rglob("run-000001*.parquet")
    assert len({path.name.rpartition("-")[0] for path in files}) == 2


@pytest.mark.long
def test_expired_records_are_left_out_by_the_option_that_the_error_names(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    topic = Topic(kafka_broker)
    topic.put(2)
    servers = ["--bootstrap-servers", kafka_broker.bootstrap_servers]
    command = [f"kafka://{topic.name}", str(tmp_path), *servers]
    landed(*command)
    topic.put(4)
    kafka_broker.delete_records(topic.name, 0, 4)
    refused(
        command,
        f"(the records of {topic.name}-0 from offset 2 to 3 have "
        "expired, or were deleted, before they were read; --on-data-loss earliest goes on with ",
    )
    assert landed(*command, "--on-data-loss", "earliest")[-1]["rows"] == 2
    found = pq.read_table(tmp_path / "segments").column("offset").to_pylist()
    assert sorted(found) == [0, 1, 4, 5]


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
