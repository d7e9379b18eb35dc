from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import shlex
import signal
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import fanout
from fanout.cli.app import app
from fanout.kinesis import KinesisSource
from fanout.kinesis.options import KinesisOptions
from fanout.spark import foreach_batch
from tests.cli.test_status import stored
from tests.readme import (
    ASYNCIO,
    BROKER,
    COMMANDS,
    DECODE,
    DIAGNOSE,
    IAM,
    POLLING,
    README,
    RESUME,
    STOP_ASYNCIO,
    TESTING,
    defined_by,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.testing.kafka.broker import KafkaBroker
    from fanout.testing.kinesis.server import KinesisServer


@pytest.fixture
def orders(
    kinesis_server: KinesisServer,
    monkeypatch: pytest.MonkeyPatch,
    aws: None,  # noqa: ARG001 - used for what it does
) -> KinesisServer:
    for name, value in kinesis_server.environment.items():
        monkeypatch.setenv(name, value)
    kinesis_server.create_stream("orders", shards=2)
    return kinesis_server


def test_the_example_of_a_clean_stop_handles_each_record_once(orders: KinesisServer) -> None:
    handled: list[bytes] = []

    async def handle(batch: fanout.Batch) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0)
        handled.extend(batch.records.column("data").to_pylist())

    source = KinesisSource(stream="orders", consumer="etl", start="TRIM_HORIZON")
    names = {"source": source, "handle": handle}
    orders.put_records("orders", [("customer", b"1")])
    exec(STOP_ASYNCIO, names)  # noqa: S102 - the README is ours
    assert handled == [b"1"]


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


@pytest.mark.usefixtures("orders")
async def test_the_resume_example_ends_on_an_idle_stream(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with asyncio.timeout(30):
        await defined_by(RESUME)["main"]()
    assert "0 records of 0 batches" in capsys.readouterr().out


async def test_the_decode_example_sets_bad_records_aside(
    orders: KinesisServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    main = defined_by(DECODE)["main"]
    async with asyncio.TaskGroup() as tasks:
        example = tasks.create_task(main())
        printed = ""
        while "'order': 2" not in printed:
            data = b'{"order": 1, "amount": 9.5}', b"no", b'{"order": 2}'
            orders.put_records("orders", [("customer", each) for each in data])
            await asyncio.sleep(0.05)
            printed += capsys.readouterr().out
        example.cancel()
    assert "'amount': 9.5" in printed
    assert "JSONDecodeError" in (tmp_path / "refused.txt").read_text()


async def test_the_polling_example_goes_on_where_the_consumer_stopped(
    orders: KinesisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    orders.put_records("orders", [("customer", str(number).encode()) for number in range(5)])
    await defined_by(POLLING)["main"]()
    assert "4 records more, by polling" in capsys.readouterr().out
    assert orders.statistics().poll_calls


def test_the_testing_example_is_a_test_that_passes(
    kinesis_server: KinesisServer, fanout_fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {}
    exec(TESTING, names)  # noqa: S102 - the README is ours
    names["test_my_job"](kinesis_server, fanout_fast, monkeypatch)


def test_the_broker_example_runs(
    start_kafka_broker: Callable[..., KafkaBroker], capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    exec(BROKER, names)  # noqa: S102 - the README is ours
    names["test_on_kafka"](start_kafka_broker)
    assert capsys.readouterr().out.startswith("clients connect to 127.0.0.1:")


@pytest.mark.usefixtures("orders")
def test_every_command_works(tmp_path: Path) -> None:
    source = KinesisSource(stream="orders", consumer="orders-etl")
    stored(tmp_path, fanout.Checkpoint.from_json(asyncio.run(fanout.resolve_start(source))))
    assert len(COMMANDS) == 8
    for command in COMMANDS:
        arguments = command.replace("/var/lib/orders/checkpoint", str(tmp_path))
        result = CliRunner().invoke(app, shlex.split(arguments, comments=True)[1:])
        assert result.exit_code == 0, result.output


def test_the_policy_example_grants_to_register() -> None:
    names: dict[str, Any] = {}
    exec(IAM, names)  # noqa: S102 - the README is ours
    assert "RegisterConsumer" in [each["Sid"] for each in names["policy"]["Statement"]]


@pytest.mark.usefixtures("orders")
async def test_the_diagnosis_example_finds_no_problem() -> None:
    source = KinesisSource(stream="orders", consumer="orders-etl")
    async with fanout.open(source) as stream:
        names: dict[str, Any] = {"fanout": fanout, "source": source, "stream": stream}
        code = compile(DIAGNOSE, "README", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        await eval(code, names)  # noqa: S307 - the README is ours
    assert "problem" not in [finding.status for finding in names["findings"]]


def test_the_readme_names_every_option_of_a_query() -> None:
    section = README.split("\n`foreach_batch(")[1].split("\n\n")[0]
    words = set(re.findall(r"`(\w+)", section))
    options = inspect.signature(foreach_batch).parameters.values()
    assert {each.name for each in options if each.kind is each.KEYWORD_ONLY} - words == {
        "checkpoint_location"  # in the call itself
    }


def test_no_two_examples_share_a_consumer() -> None:
    """Of two readers of one consumer, one takes the other's subscriptions."""
    docs = Path(__file__).parent.parent / "docs"
    pages = [README, *(page.read_text() for page in docs.glob("*.md"))]
    codes = [code for page in pages for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL)]
    codes += [example.read_text() for example in docs.glob("examples/*.py")]
    consumers = [name for code in codes for name in re.findall(r"consumer=\"([^\"]*)\"", code)]
    assert len(consumers) > 4
    assert len(consumers) == len(set(consumers))


def test_the_readme_names_every_option() -> None:
    section = README.split("## Options")[1].split("\n## ")[0]
    first_cells = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    named = set(re.findall(r"`([a-z_]+)`", "".join(first_cells)))
    assert named == {option.name for option in fields(KinesisOptions)} - {"stream", "consumer"}
