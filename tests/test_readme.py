from __future__ import annotations

import asyncio
import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

from fanout.kinesis.options import KinesisOptions
from tests.readme import ASYNCIO, POLLING, README, RESUME, TESTING, defined_by

if TYPE_CHECKING:
    from fanout.testing.kinesis_server import KinesisServer


@pytest.fixture
def orders(kinesis_server: KinesisServer, monkeypatch: pytest.MonkeyPatch) -> KinesisServer:
    for name, value in kinesis_server.environment.items():
        monkeypatch.setenv(name, value)
    kinesis_server.create_stream("orders", shards=2)
    return kinesis_server


async def test_the_asyncio_example_prints_what_arrives(
    orders: KinesisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    main = defined_by(ASYNCIO)["main"]
    async with asyncio.TaskGroup() as tasks:
        example = tasks.create_task(main())
        while "shardId-" not in capsys.readouterr().out:
            orders.put_records("orders", [("customer", b"1")])
            await asyncio.sleep(0.05)
        example.cancel()


async def test_the_resume_example_drains_and_goes_on(
    orders: KinesisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    example = defined_by(RESUME)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(example["main"]())
        while not running.done():
            orders.put_records("orders", [("customer", b"1")])
            await asyncio.sleep(0.05)
    assert "records of" in capsys.readouterr().out


async def test_the_polling_example_goes_on_where_the_consumer_stopped(
    orders: KinesisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    orders.put_records("orders", [("customer", str(number).encode()) for number in range(5)])
    await defined_by(POLLING)["main"]()
    assert "4 records more, by polling" in capsys.readouterr().out
    assert orders.statistics().poll_calls


def test_the_testing_example_is_a_test_that_passes(
    kinesis_server: KinesisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {}
    exec(TESTING, names)  # noqa: S102 - the README is ours
    names["test_my_job"](kinesis_server, monkeypatch)


def test_the_readme_names_every_option() -> None:
    section = README.split("## Options")[1].split("\n## ")[0]
    first_cells = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    named = set(re.findall(r"`([a-z_]+)`", "".join(first_cells)))
    assert named == {option.name for option in fields(KinesisOptions)} - {"stream", "consumer"}
