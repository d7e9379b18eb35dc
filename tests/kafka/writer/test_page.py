"""The examples and the table of options of docs/kafka-writer.md."""

from __future__ import annotations

import asyncio
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fanout.kafka import open_writer
from tests.kafka.writer.writers import rows, values, writing
from tests.support.kafka.topics import new_topic
from tests.support.kafka.writing import read
from tests.support.pages import defined_by, on_this_machine

if TYPE_CHECKING:
    from fanout.testing.kafka.broker import KafkaBroker

TEXT = (Path(__file__).parents[3] / "docs" / "kafka-writer.md").read_text()
WRITE, PROCESS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "unused")


async def test_the_first_example_writes_and_says_where(
    kafka_broker: KafkaBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = await new_topic(kafka_broker)
    code = WRITE.replace('"orders") as', f'"{topic.name}") as')
    await defined_by(on_this_machine(code, kafka_broker.bootstrap_servers))["main"]()
    assert f"2 from offset 0 on in {topic.name}-0" in capsys.readouterr().out
    found = (await read(kafka_broker, topic.name))[0]
    assert [(one.key, one.value) for one in found] == [
        (b"ann", b"1 pear"),
        (b"bob", b"2 figs"),
        (b"ann", b"3 nuts"),
    ]
    assert found[2].headers == (("trace", b"7f"),)


@pytest.mark.long
async def test_the_second_example_writes_each_record_once_when_it_is_started_again(
    kafka_broker: KafkaBroker,
) -> None:
    source, target = await new_topic(kafka_broker), await new_topic(kafka_broker)
    code = PROCESS.replace('"orders-loud"', f'"{target.name}"').replace(
        'topics="orders"', f'topics="{source.name}"'
    )
    job = defined_by(on_this_machine(code, kafka_broker.bootstrap_servers))["main"]
    expected: list[bytes] = []
    for given in (["a", "b"], ["c"]):
        async with writing(kafka_broker, source.name) as writer:
            await writer.write(rows(*given))
        expected += [one.upper().encode() for one in given]
        running = asyncio.create_task(job())
        async with asyncio.timeout(30):
            while len(await values(kafka_broker, target.name)) < len(expected):
                assert not running.done()
        running.cancel()
        await asyncio.wait([running])
        assert await values(kafka_broker, target.name) == expected


def test_the_page_has_all_options_with_their_defaults() -> None:
    section = TEXT.split("\n## Options\n")[1].split("\n## ")[0]
    table = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    documented = {row[1].strip(" `"): row[2].strip(" `") for row in table}
    options = {
        name: parameter.default
        for name, parameter in inspect.signature(open_writer).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert documented.keys() == options.keys()
    for name, default in options.items():
        expected = {"producer_options": "{}"}.get(name, f"{default:g}" if default else str(default))
        assert documented[name] == expected
