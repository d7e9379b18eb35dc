from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from tests.support.groups import KAFKA_COMMANDS
from tests.support.kafka.sharing import Group, first, new_group

if TYPE_CHECKING:
    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = KAFKA_COMMANDS

THERE = ["--protocol", "PLAINTEXT"]


def run(group: str, broker: KafkaBroker, *more: str) -> tuple[int, str]:
    given = ["--bootstrap-servers", broker.bootstrap_servers, *THERE, *more]
    result = CliRunner().invoke(app, ["share", "describe", group, *given], env={"COLUMNS": "200"})
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def described(kafka_broker: KafkaBroker) -> tuple[Group, dict[str, Any], str]:
    """A group with a member that has acknowledged three records and holds two, in both formats."""

    async def main() -> tuple[Group, dict[str, Any], str]:
        group = await new_group(kafka_broker, 3)
        async with group.open() as stream:
            await stream.acknowledge(await first(stream))
            await group.put(2)
            await first(stream)
            code, answer = await asyncio.to_thread(run, group.id, kafka_broker, "--json")
            assert code == 0, answer
            _, table = await asyncio.to_thread(run, group.id, kafka_broker)
            return group, json.loads(answer), table

    return asyncio.run(main())


@pytest.mark.long
def test_it_says_who_the_members_are_and_how_far_the_group_is(
    described: tuple[Group, dict[str, Any], str],
) -> None:
    group, answer, _ = described
    (member,), (partition,) = answer["members"], answer["partitions"]
    name = f"{group.topic.name}-0"
    assert (answer["group"], answer["state"]) == (group.id, "Stable")
    assert (member["client"], member["partitions"]) == ("fanout-member-0", [name])
    assert partition["partition"] == name
    assert partition["lag"] == 2
    assert answer["settings"]["share.record.lock.duration.ms"] == "30000"


def test_a_table_says_the_same(described: tuple[Group, dict[str, Any], str]) -> None:
    group, _, table = described
    for words in (f"{group.id} is stable", "fanout-member-0", "share.isolation.level"):
        assert words in table
    assert table.count(f"{group.topic.name}-0") == 2


def test_a_group_that_no_member_has_joined_exits_with_2(kafka_broker: KafkaBroker) -> None:
    for more in ([], ["--json"]):
        code, answer = run("unknown", kafka_broker, *more)
        assert code == 2
        assert answer.startswith("fanout share: there is no share group 'unknown': it begins when")


def test_a_mistake_is_one_sentence() -> None:
    given = ["share", "describe", "g", "--bootstrap-servers", "kafka.example.com:9092", *THERE]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2
    assert "fanout share: the Kafka broker on kafka.example.com would be used" in result.output
