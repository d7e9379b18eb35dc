"""`fanout tail`, from a broker of Kafka."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import AdminClient

from tests.cli.test_land import landed
from tests.cli.test_tail import ready, running, tail, values
from tests.support.avro_records import ORDER, ORDERS, framed, written
from tests.support.groups import KAFKA_COMMANDS
from tests.support.kafka.topics import Topic
from tests.support.patience import PATIENCE
from tests.support.schema_registry import embedded_registry

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = KAFKA_COMMANDS


@pytest.fixture(autouse=True)
def _broker_of_the_environment(kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", kafka_broker.bootstrap_servers)
    monkeypatch.delenv("KAFKA_COMMAND_CONFIG", raising=False)


@pytest.fixture
def shown(capfd: pytest.CaptureFixture[str]) -> Any:
    """Run the command until it ends by itself; return its lines."""

    def run(*arguments: str) -> list[str]:
        result = tail(*arguments)
        assert (result.exit_code, result.stderr) == (0, ""), result.stderr
        return capfd.readouterr().out.splitlines()

    return run


def test_avro_is_shown_by_the_newest_schema_of_the_topic(
    kafka_broker: KafkaBroker, shown: Any
) -> None:
    topic = Topic(kafka_broker)
    with embedded_registry() as registry:
        number = registry.register(f"{topic.name}-value", ORDER)
        payloads = framed(number, written(ORDER, ORDERS))
        topic.write([{"key": b"k", "value": each, "headers": [("a", b"1")]} for each in payloads])
        topic.write([{"key": b"k", "value": None}])
        command = [f"kafka://{topic.name}", "--since", "10m", "--max", "11", "--json"]
        lines = shown(*command, "--decode", "avro", "--registry", registry.url)
    rows = [json.loads(line) for line in lines]
    assert [row["value"] for row in rows] == [*ORDERS, None]
    assert [row["offset"] for row in rows] == [*range(11)]
    assert (rows[0]["key"], rows[0]["headers"]) == ("k", [{"key": "a", "value": "1"}])


def test_keys_are_decoded_and_landed(kafka_broker: KafkaBroker, shown: Any, tmp_path: Path) -> None:
    topic = Topic(kafka_broker)
    with embedded_registry() as registry:
        [key] = framed(registry.register(f"{topic.name}-key", '"long"'), written("long", [7]))
        topic.write([{"key": key, "value": b'{"id": 1}'}, {"key": None, "value": b'{"id": 2}'}])
        typed = ["--decode", "json", "--schema", "id BIGINT", "--registry", registry.url]
        typed += ["--key-decode", "avro"]
        command = [f"kafka://{topic.name}", "--since", "10m", "--max", "2", *typed]
        assert [line.split("\t")[2:] for line in shown(*command)] == [
            ['{"value": 7}', '{"id": 1}'],
            ["null", '{"id": 2}'],
        ]
        assert [json.loads(line)["key"] for line in shown(*command, "--json")] == [
            {"value": 7},
            None,
        ]
        landing = [f"kafka://{topic.name}", str(tmp_path), "--group", "landers", *typed]
        assert landed(*landing, "--key-into", "customer")[-1]["rows"] == 2
    found = pq.read_table(tmp_path / "segments").select(["id", "customer"]).to_pylist()
    assert found == [{"id": 1, "customer": {"value": 7}}, {"id": 2, "customer": None}]


@pytest.mark.long
def test_text_and_json_have_key_value_and_headers(kafka_broker: KafkaBroker, shown: Any) -> None:
    topic = Topic(kafka_broker)
    topic.write(
        [
            {"key": b"\xff", "value": b"1", "headers": [("trace", b"7")]},
            {"key": None, "value": None},
        ]
    )
    command = [f"kafka://{topic.name}", "--since", "10m", "--max", "2"]
    assert [line.split("\t")[1:] for line in shown(*command)] == [
        [f"{topic.name}-0", r"\xff", "1"],
        [f"{topic.name}-0", "null", "null"],
    ]
    first, second = map(json.loads, shown(*command, "--json"))
    place = {"topic": topic.name, "partition": 0}
    headers = [{"key": "trace", "value": "7"}]
    assert first.pop("time").endswith("Z")
    assert first == {**place, "offset": 0, "key_base64": "/w==", "value": "1", "headers": headers}
    del second["time"]
    assert second == {**place, "offset": 1, "key": None, "value": None, "headers": []}


@pytest.mark.parametrize("option", ["1", "{topic}-1"])
def test_a_partition_alone(kafka_broker: KafkaBroker, shown: Any, option: str) -> None:
    topic = Topic(kafka_broker, partitions=2)
    topic.put(3, partition=0)
    topic.put(2, partition=1)
    command = [f"kafka://{topic.name}", "--since", "earliest", "--max", "2"]
    lines = shown(*command, "--partition", option.format(topic=topic.name))
    assert [line.split("\t")[1] for line in lines] == [f"{topic.name}-1"] * 2


@pytest.mark.long
def test_new_records_come_until_ctrl_c_and_no_group_is_left(kafka_broker: KafkaBroker) -> None:
    topics = [Topic(kafka_broker), Topic(kafka_broker)]
    topics[0].put(1)
    names = ",".join(topic.name for topic in topics)
    servers = kafka_broker.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    groups = {group.group_id for group in admin.list_consumer_groups().result(20).valid}
    with running(f"kafka://{names}", KAFKA_BOOTSTRAP_SERVERS=servers) as process:
        assert process.stdout is not None
        while not ready(process.stdout):
            topics[0].put(1)
        # The record that was there before has the value 0.
        assert values(process, 1) != ["0"]
        topics[1].write([{"value": b"of the other"}])
        while values(process, 1) != ["of the other"]:
            pass
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE)[1] == ""
    assert process.returncode == 130
    left = {group.group_id for group in admin.list_consumer_groups().result(20).valid}
    assert left <= groups
