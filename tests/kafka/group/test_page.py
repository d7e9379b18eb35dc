"""Check the example and the facts of docs/members.md."""

from __future__ import annotations

import asyncio
import re
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING

from fanout.kafka import ConsumerGroup
from tests.support.kafka.topics import committed, new_topic
from tests.support.kafka.writing import values
from tests.support.pages import defined_by, on_this_machine, page, python_blocks

if TYPE_CHECKING:
    import pytest

    from fanout.testing.kafka.broker import KafkaBroker

EXAMPLE, COPY = python_blocks("members.md")


async def test_the_example_prints_what_arrives_and_commits_it(
    kafka_broker: KafkaBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "unused")
    topic = await new_topic(kafka_broker, partitions=2)
    topic.put(10)
    code = on_this_machine(EXAMPLE, kafka_broker.bootstrap_servers)
    code = code.replace('"orders"', f'"{topic.name}"').replace(
        '"orders-app"', f'"{topic.name}-app"'
    )
    example = asyncio.create_task(defined_by(code)["main"]())
    try:
        while await asyncio.to_thread(committed, topic, f"{topic.name}-app") != {0: 10, 1: 0}:
            assert not example.done()
            await asyncio.sleep(0.1)
    finally:
        example.cancel()
        await asyncio.wait([example])
    assert f"{topic.name}-0 10" in capsys.readouterr().out


async def test_the_second_example_copies_each_record_once_when_it_is_started_again(
    kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "unused")
    source, target = await new_topic(kafka_broker, partitions=2), await new_topic(kafka_broker)
    code = on_this_machine(COPY, kafka_broker.bootstrap_servers)
    code = code.replace('"orders"', f'"{source.name}"').replace("orders-app", f"{source.name}-app")
    job = defined_by(code.replace('"orders-copy"', f'"{target.name}"'))["main"]
    for count in (10, 20):
        source.put(10)
        example = asyncio.create_task(job())
        while len(await values(kafka_broker, target.name)) < count:
            assert not example.done()
        example.cancel()
        await asyncio.wait([example])
        given = [value for _, value in source.log[0]]
        assert await values(kafka_broker, target.name) == given
    stored = await asyncio.to_thread(committed, source, f"{source.name}-app")
    assert stored == {0: 20, 1: 0}


def test_the_options_are_those_of_the_group() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\S*) ?\|", page("members.md"), re.MULTILINE)
    defaults = {
        each.name: "" if each.default is MISSING else str(each.default)
        for each in fields(ConsumerGroup)
    }
    assert dict(rows) == defaults
