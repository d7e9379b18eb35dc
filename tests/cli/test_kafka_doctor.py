"""`fanout doctor` on a Kafka cluster; its findings are proven in tests/kafka/doctor."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.landing.claims import claim_stopped
from fanout.landing.storage.local_storage import LocalStorage
from tests.support.groups import KAFKA_COMMANDS
from tests.support.kafka.brokers import connect, create, produce
from tests.support.stored_query import at, stored

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = KAFKA_COMMANDS


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments], env={"COLUMNS": "200", "TERM": "dumb"})


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KAFKA_BOOTSTRAP_SERVERS", "KAFKA_COMMAND_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def findings(result: Result, code: int) -> dict[str, dict[str, Any]]:
    assert result.exit_code == code, result.output
    answer = json.loads(result.stdout)
    assert answer["healthy"] is (code == 0)
    return {each["check"]: each for each in answer["findings"]}


def test_a_source_and_a_sink_are_examined(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    async def prepare() -> tuple[str, str]:
        partition = await create(kafka_broker, f"orders-{uuid.uuid4().hex[:8]}")
        await produce(kafka_broker, partition, b"a", b"b")
        async with connect(kafka_broker) as transport:
            return partition.topic, transport.cluster_id

    topic, cluster = asyncio.run(prepare())
    stored(tmp_path, at(f"kafka:{cluster}", **{f"{topic}-0": 0}))
    needs = ["--topic", topic, "--group", "g", "--sink-topic", topic, "--transaction-timeout", "60"]
    servers = ["--bootstrap-servers", kafka_broker.bootstrap_servers]
    landers = ["--landers", "2"]
    found = findings(run(*needs, *servers, *landers, "--checkpoint", str(tmp_path), "--json"), 0)
    assert found["landers"]["status"] == "warning"
    assert found["landers"]["detail"].startswith("2 for 1 partition: 1 would have nothing to read")
    assert found["cores for landers"]["status"] == "ok"
    assert found["checkpoint of landers"]["status"] == "warning"
    assert found["lag"]["detail"].startswith("2 records; the oldest unread record is ")
    assert found["owner"]["detail"].startswith("run 1, application 'job', process ")
    assert found["transaction limits"]["status"] == "ok"
    found = findings(run("--topic", "missing-topic", *servers, "--json"), 1)
    assert found["topic missing-topic"]["advice"] == "create it, or check name and cluster"
    table = run("--topic", "missing-topic", *servers)
    assert table.exit_code == 1
    assert "→ create it, or check name and cluster" in table.stdout


def test_a_checkpoint_alone_has_an_owner_and_no_lag(tmp_path: Path) -> None:
    stored(tmp_path, at("kafka:there", **{"orders-0": 0}))
    found = findings(run("--checkpoint", str(tmp_path), "--json"), 0)
    assert sorted(found) == ["free space", "lag", "owner"]
    assert found["lag"]["detail"] == "1 splits of kafka:there, which was not asked"


def test_the_owner_is_that_of_the_newest_run(tmp_path: Path) -> None:
    stored(tmp_path, at("kafka:there"))
    with claim_stopped(LocalStorage(tmp_path / "fanout"), "later"):
        pass
    found = findings(run("--checkpoint", str(tmp_path), "--json"), 0)
    assert found["owner"]["detail"].startswith("run 2, application 'later'")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name what to check: a stream of Kinesis, topics or groups of Kafka with --topic, "),
        (["orders", "--topic", "a"], "name a stream of Kinesis, or topics and groups of Kafka "),
        (["--topic", "a"], "pass --bootstrap-servers, or set bootstrap.servers in the file"),
        (["--group", "a", "--bootstrap-servers", "10.0.0.1"], "would be used without TLS"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_on_stderr_and_exits_with_2(
    arguments: list[str], sentence: str
) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert sentence in result.stderr
