from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.kafka import open_shuffle_writer
from fanout.kafka.cluster import Cluster
from fanout.kafka.shuffle.frames import HelloFrame, encode_control
from fanout.kafka.shuffle.writer_options import ShuffleWriterOptions
from tests.support.groups import KAFKA_COMMANDS
from tests.support.kafka.brokers import HERE
from tests.support.kafka.topics import Topic

if TYPE_CHECKING:
    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = KAFKA_COMMANDS


@pytest.fixture(scope="module")
def topic(kafka_broker: KafkaBroker) -> Topic:
    """A topic of which one producer has ended, one has left, and one never wrote."""
    topic = Topic(kafka_broker, partitions=2)

    async def write() -> None:
        for number in range(2):
            async with open_shuffle_writer(
                ShuffleWriterOptions(
                    cluster=Cluster(kafka_broker.bootstrap_servers, security=HERE),
                    topic=topic.name,
                    delivery_guarantee="at_least_once",
                    producer=number,
                    producers=3,
                    generation=7,
                )
            ) as writer:
                await writer.watermark(1_700_000_000_000 + number)
                if number == 0:
                    await writer.end()

    asyncio.run(write())
    return topic


def run(topic: str, broker: KafkaBroker, *more: str) -> tuple[int, str]:
    given = ["--bootstrap-servers", broker.bootstrap_servers, "--protocol", "PLAINTEXT", *more]
    result = CliRunner().invoke(app, ["shuffle", "describe", topic, *given], env={"COLUMNS": "200"})
    return result.exit_code, result.output


def test_it_says_who_writes_and_how_far_they_are(topic: Topic) -> None:
    code, output = run(topic.name, topic.broker, "--json")
    assert code == 0, output
    answer = json.loads(output)
    assert answer["topic"] == topic.name
    names = [one["partition"] for one in answer["partitions"]]
    assert names == [f"{topic.name}-0", f"{topic.name}-1"]
    for one in answer["partitions"]:
        assert one["watermark"] is None
        assert (one["generation"], one["announced"], one["partition_count"]) == (7, 3, 2)
        assert one["producers"] == [
            {"producer": 0, "state": "ended", "watermark": 1_700_000_000_000},
            {"producer": 1, "state": "idle", "watermark": 1_700_000_000_001},
        ]


def test_a_table_has_a_row_for_each_producer_also_those_that_were_not_seen(topic: Topic) -> None:
    code, output = run(topic.name, topic.broker)
    assert code == 0, output
    for words in ("0 of 3", "1 of 3", "2 of 3", "ended", "idle", "not seen", "22:13:20.001"):
        assert output.count(words) == 2, output


def test_a_generation_may_be_0(kafka_broker: KafkaBroker) -> None:
    topic = Topic(kafka_broker)
    topic.write([{"value": encode_control(HelloFrame(0, 0, 1, 1))}])
    code, output = run(topic.name, topic.broker)
    assert code == 0, output
    assert re.search(r"│\s*0\s*│\s*0 of 1\s*│", output), output


def test_a_topic_without_producers_exits_with_1_and_says_so(kafka_broker: KafkaBroker) -> None:
    code, output = run(Topic(kafka_broker).name, kafka_broker, "--since", "2h")
    assert code == 1
    assert "no producer has written to" in output
    assert "for 2h; --since reads further back" in output


def test_a_record_of_another_program_exits_with_2_and_advises_no_keyword(
    kafka_broker: KafkaBroker,
) -> None:
    topic = Topic(kafka_broker)
    topic.write([{"value": encode_control(HelloFrame(0, 0, 1, 1))}, {"value": b"canary"}])
    code, output = run(topic.name, topic.broker, "--json")
    assert code == 2
    assert f"the record of {topic.name}-0 at offset 1 is no frame of the shuffle: " in output
    assert output.endswith("; is the topic written to by another program?\n")


def test_a_topic_that_is_not_there_and_an_age_that_is_none_are_mistakes(topic: Topic) -> None:
    code, output = run("no-such-topic", topic.broker)
    assert (code, "fanout shuffle: " in output) == (2, True)
    code, output = run(topic.name, topic.broker, "--since", "soon")
    assert (code, "is not an age" in output) == (2, True)
