"""Check the examples and facts of docs/kafka.md."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from fanout.core.backoff import Backoff
from fanout.core.positions import Horizon
from fanout.kafka.cluster import Cluster
from fanout.kafka.reading.columns import SCHEMA
from fanout.kafka.reading.consumer_options import _NUMBERS, ConsumerOptions
from fanout.kafka.reading.kafka_options import KafkaOptions
from fanout.kafka.security import Security
from tests.kafka.msk import KEYS, REGION, is_signed, run_msk
from tests.support.kafka.topics import Topic, committed, new_topic
from tests.support.pages import defined_by, on_this_machine, page, python_blocks

if TYPE_CHECKING:
    import pytest

    from fanout.testing.kafka.broker import KafkaBroker

TEXT = page("kafka.md")
_, ASYNCIO, DECODE, OFFSETS = python_blocks("kafka.md")
(MSK,) = python_blocks("msk.md")


def table(heading: str, number: int = 0) -> list[tuple[str, str]]:
    """Return the first two cells of each row of a table below a heading."""
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    rows = [line.split("|") for line in tables[number].splitlines()[2:]]
    return [(row[1].strip(), row[2].strip()) for row in rows]


def value(text: str) -> object:
    """Read a default of a table."""
    text = text.strip("`")
    if text.endswith(" MiB"):
        return int(text.removesuffix(" MiB")) << 20
    return None if text == "None" else json.loads(text)


async def test_the_asyncio_example_prints_what_arrives_and_commits_it(
    kafka_broker: KafkaBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", "unused")
    topic = await new_topic(kafka_broker, name="orders", partitions=2)
    topic.put(10)
    main = defined_by(on_this_machine(ASYNCIO, kafka_broker.bootstrap_servers))["main"]
    async with asyncio.TaskGroup() as tasks:
        example = tasks.create_task(main())
        while "orders-0" not in capsys.readouterr().out:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.05)
        example.cancel()
    assert await asyncio.to_thread(committed, topic, "orders-live") == {0: 10}


async def test_the_example_for_amazon_msk_reads_with_tokens_that_the_signer_makes(
    kafka_broker: KafkaBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    topic = await new_topic(kafka_broker, partitions=2)
    topic.put(10)
    async with run_msk(kafka_broker) as msk, asyncio.TaskGroup() as tasks:
        code = re.sub(r"b-1\.[\w.-]+:9098", msk.address, MSK).replace('"orders"', f'"{topic.name}"')
        code = code.replace("Security(", 'Security(protocol="SASL_PLAINTEXT", ')
        assert f'"{REGION}"' in code
        example = tasks.create_task(defined_by(code)["main"]())
        printed = ""
        while sum(map(int, re.findall(rf"^{topic.name}-0 (\d+)$", printed, re.MULTILINE))) < 10:
            await asyncio.sleep(0.05)
            printed += capsys.readouterr().out
        example.cancel()
    assert msk.tokens
    assert all(map(is_signed, msk.tokens))


async def test_the_decode_example_reads_json(kafka_broker: KafkaBroker) -> None:
    names: dict[str, Any] = {}
    exec(DECODE, names)  # noqa: S102 - the page is ours
    topic = await new_topic(kafka_broker)
    orders = [{"id": number, "amount": number / 2} for number in range(100)]
    written: list[dict[str, Any]] = [{"value": json.dumps(order | {"x": 1})} for order in orders]
    topic.write([*written, {"key": b"k"}, {"value": '{"id": 7}'}])
    batches = await read(topic, names["decode"])
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [row["offset"] for row in rows] == [*range(100), 101]
    assert [{"id": row["id"], "amount": row["amount"]} for row in rows] == [
        *orders,
        {"id": 7, "amount": None},
    ]


async def read(topic: Topic, decode: Any) -> list[Any]:
    async with topic.open(decode=decode, stop="latest") as stream:
        return [batch.records async for batch in stream]


def test_the_page_names_every_option_with_its_default() -> None:
    reported: dict[str, str] = {}
    for names, defaults in table("Options"):
        every = re.findall(r"`(\w+)`", names)
        reported.update(zip(every, re.split(r", (?![^()]*\))", defaults), strict=True))
    assert reported.keys() == {option.name for option in fields(KafkaOptions)}
    security = Security(protocol="PLAINTEXT")
    options = KafkaOptions(cluster=Cluster("127.0.0.1:1", security=security), topics="orders")
    said_otherwise = {"backoff", "cluster", "topics", "start"}
    assert eval(reported["backoff"].strip("`"), {"Backoff": Backoff}) == options.backoff  # noqa: S307 - the page is ours
    assert options.start == Horizon()
    assert reported["start"] == '`"earliest"`'
    for name in reported.keys() - said_otherwise:
        assert value(reported[name]) == getattr(options, name), name


def test_the_page_names_every_consumer_option_with_its_default() -> None:
    defaults = ConsumerOptions()
    expected = {}
    for name in _NUMBERS:
        default = getattr(defaults, name.removesuffix(".ms").replace(".", "_"))
        expected[name] = default * 1000 if name.endswith(".ms") else default
    assert {name.strip("`"): value(reported) for name, reported in table("Options", 1)} == expected


def test_the_page_names_every_column() -> None:
    named = [name.strip("`") for names, _ in table("The records") for name in names.split(", ")]
    assert named == SCHEMA.names


async def test_the_offsets_of_positions_are_a_start_in_a_topic_that_was_restored(
    kafka_broker: KafkaBroker,
) -> None:
    topic = await new_topic(kafka_broker, partitions=2)
    topic.put(10)
    positions = (await topic.read()).stream.positions
    await asyncio.to_thread(kafka_broker.delete_topic, topic.name)
    restored = await new_topic(kafka_broker, partitions=2, name=topic.name)
    restored.put(12)
    names: dict[str, Any] = {"positions": positions}
    exec(OFFSETS, names)  # noqa: S102 - the page is ours
    start = names["start"]
    assert start == {f"{topic.name}-0": 10, f"{topic.name}-1": 0}
    assert (await restored.read(start=start)).offsets == [10, 11]
