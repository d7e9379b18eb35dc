from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError
from typer.testing import CliRunner

import fanout
from fanout.cli.app import app
from fanout.kafka import Cluster, ConsumerGroup, KafkaSource, Security
from fanout.kinesis import LeaseTable
from fanout.testing.kinesis.server import KinesisServer
from tests.support.groups import KAFKA_COMMANDS
from tests.support.kafka.topics import new_topic
from tests.support.kinesis.reading import FIRST, Stream
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = KAFKA_COMMANDS


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["members", *arguments], env={"COLUMNS": "200"})
    return result.exit_code, result.output


async def owns(stream: fanout.FanOut, count: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while (found := stream.statistics().membership) is None or found.owned < count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.fixture
def stream(
    aws: None,  # noqa: ARG001 - used for what it does
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Stream]:
    with KinesisServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield Stream(server, shards=2)


async def test_a_lease_table_shows_its_members_and_shards(stream: Stream) -> None:
    source = stream.source(mode="polling")
    code, output = await asyncio.to_thread(run, "dynamodb://orders-app")
    assert code == 2
    assert "there is no lease table 'orders-app'" in output
    group = LeaseTable(name="orders-app", worker="pod-0", failover_time=6.0)
    async with fanout.open(source, group=group) as opened:
        await owns(opened, 2)
        code, output = await asyncio.to_thread(run, "dynamodb://orders-app", "--json")
        found: Any = json.loads(output)
        assert code == 0
        (member,) = found["members"]
        assert (member["member"], member["shards"]) == ("pod-0", 2)
        assert member["reported_seconds_ago"] < PATIENCE
        shards = [(one["member"], one["state"], one["unread"]) for one in found["shards"]]
        assert shards == [("pod-0", "read", False)] * 2
        code, output = await asyncio.to_thread(run, "dynamodb://orders-app")
        assert (code, FIRST in output, "pod-0" in output) == (0, True, True)
    code, output = await asyncio.to_thread(run, "dynamodb://orders-app")
    assert (code, "free" in output) == (1, True)


def test_a_role_that_may_not_be_assumed_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    async def deny(*_: object, **__: object) -> None:
        error = {"Code": "AccessDenied", "Message": "not authorized"}
        raise ClientError({"Error": error}, "AssumeRole")

    monkeypatch.setattr("fanout.kinesis.leases.table.open_session", deny)
    role = "arn:aws:iam::111122223333:role/reader"
    code, output = run("dynamodb://orders-app", "--role-arn", role)
    assert code == 2
    assert "DynamoDB cannot be called: " in output
    assert "check --role-arn" in output
    assert "Traceback" not in output


async def test_a_consumer_group_shows_its_members_and_partitions(
    kafka_broker: KafkaBroker,
) -> None:
    topic = await new_topic(kafka_broker, partitions=2)
    group = f"{topic.name}-app"
    there = ["--bootstrap-servers", kafka_broker.bootstrap_servers, "--protocol", "PLAINTEXT"]
    code, output = await asyncio.to_thread(run, f"kafka://{group}", *there)
    assert code == 2, output
    assert f"there is no consumer group '{group}'" in output
    cluster = Cluster(kafka_broker.bootstrap_servers, security=Security(protocol="PLAINTEXT"))
    source = KafkaSource(cluster=cluster, topics=topic.name)
    async with fanout.open(source, group=ConsumerGroup(group_id=group)) as stream:
        await owns(stream, 2)
        code, output = await asyncio.to_thread(run, f"kafka://{group}", *there, "--json")
        found: Any = json.loads(output)
        assert (code, found["state"]) == (0, "Stable")
        (member,) = found["members"]
        assert member["partitions"] == [f"{topic.name}-0", f"{topic.name}-1"]
        assert member["waits_for"] == []
        code, output = await asyncio.to_thread(run, f"kafka://{group}", *there)
        assert (code, f"{group} is stable" in output) == (0, True)
    code, output = await asyncio.to_thread(run, f"kafka://{group}", *there)
    assert (code, "is empty" in output) == (1, True)


@pytest.mark.parametrize("group", ["orders-app", "kinesis://orders", "dynamodb://"])
def test_what_is_no_group_is_refused(group: str) -> None:
    code, output = run(group)
    assert code == 2
    assert "write dynamodb://TABLE or kafka://GROUP" in output
