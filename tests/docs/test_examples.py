"""The examples of the README, and of the pages about Kinesis, asyncio and operations."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import shlex
import signal
from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from typer.testing import CliRunner

import fanout
from fanout.cli.app import app
from fanout.kafka import Cluster, KafkaSource
from fanout.kinesis import KinesisSource
from fanout.kinesis.options import KinesisOptions
from fanout.spark import foreach_batch
from tests.support.groups import KAFKA_COMMANDS
from tests.support.kafka.topics import PLAINTEXT
from tests.support.pages import (
    PAGES,
    ROOT,
    commands,
    defined_by,
    page,
    python_blocks,
    session_block,
)
from tests.support.stored_query import stored

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fanout.testing.kafka.broker import KafkaBroker
    from fanout.testing.kafka.cluster import KafkaCluster
    from fanout.testing.kinesis.server import KinesisServer


_, ASYNCIO = python_blocks("README.md")
PRINTED, RESUME, COPIES = python_blocks("asyncio.md")
DECODE, _, DEAD_LETTERS = python_blocks("decoding.md")
SEVERAL, POLLING = python_blocks("kinesis.md")
_, STOP_ASYNCIO = python_blocks("operations.md")
TESTING, BROKER, CLUSTER = python_blocks("testing.md")
COMMAND_PAGES = ("kinesis.md", "security.md", "operations.md")
IAM = session_block("security.md")
DIAGNOSE = session_block("operations.md")


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
    exec(STOP_ASYNCIO, names)  # noqa: S102 - the page is ours
    assert handled == [b"1"]


@pytest.mark.parametrize("code", [ASYNCIO, PRINTED], ids=["README", "page"])
async def test_the_asyncio_example_prints_what_arrives(
    orders: KinesisServer, capsys: pytest.CaptureFixture[str], code: str
) -> None:
    main = defined_by(code)["main"]
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


def test_the_example_of_several_copies_divides_shards_and_partitions() -> None:
    example: dict[str, Any] = {}
    exec(COPIES, example)  # noqa: S102 - the page is ours
    assert example["orders"](1).shards == ("shardId-000000000002",)
    cluster = Cluster("127.0.0.1:9092", security=PLAINTEXT)
    one, other = (example["clicks"](cluster, copy, 2).selection.partitions for copy in range(2))
    assert len(one | other) == len(one) + len(other) == 12


OPTIONS: Final = re.compile(r"\| option \| default \| \|\n(.+?)\n\n", re.DOTALL)


@pytest.mark.parametrize(
    ("name", "opening"), [("asyncio.md", fanout.open), ("landing.md", fanout.land)]
)
def test_the_table_of_a_function_has_its_options(name: str, opening: Callable[..., Any]) -> None:
    (table,) = OPTIONS.findall(page(name))
    listed = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", table, re.MULTILINE))
    options = {
        option: parameter.default
        for option, parameter in inspect.signature(opening).parameters.items()
        if parameter.default is not parameter.empty or option == "resume"
    }
    assert [*listed] == [*options]
    for option, default in options.items():
        shown = listed[option].strip("`").replace(",", "")
        match default:
            case str():
                assert shown == f'"{default}"'
            case timedelta():
                assert shown == f"{default.days} days"
            case int() if shown.endswith(" MiB"):
                assert default == int(shown.removesuffix(" MiB")) << 20
            case float():
                assert float(shown.removesuffix(" s")) == default
            case _:
                assert shown == str(default)


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


@KAFKA_COMMANDS
async def test_bad_records_are_kept_in_a_topic(
    orders: KinesisServer, kafka_broker: KafkaBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    await asyncio.to_thread(kafka_broker.create_topic, "orders-refused", 1)
    names = defined_by(DEAD_LETTERS)
    names["decode"] = defined_by(DECODE)["decode"]
    names["cluster"] = Cluster(kafka_broker.bootstrap_servers, security=PLAINTEXT)
    refused = KafkaSource(cluster=names["cluster"], topics="orders-refused")
    async with asyncio.TaskGroup() as tasks, fanout.open(refused) as letters:
        example = tasks.create_task(names["main"]())
        printed = ""
        while "'order': 2" not in printed:
            data = b'{"order": 1, "amount": 9.5}', b"no", b'{"order": 2}'
            orders.put_records("orders", [("customer", each) for each in data])
            await asyncio.sleep(0.05)
            printed += capsys.readouterr().out
        letter = (await anext(letters)).records.to_pylist()[0]
        example.cancel()
    assert (letter["key"], letter["value"]) == (b"customer", b"no")
    headers = [(each["key"], each["value"]) for each in letter["headers"]]
    assert [name for name, _ in headers] == ["shard", "sequence", "error"]
    assert headers[2] == ("error", b"JSONDecodeError")


async def test_the_polling_example_goes_on_where_the_consumer_stopped(
    orders: KinesisServer, capsys: pytest.CaptureFixture[str]
) -> None:
    orders.put_records("orders", [("customer", str(number).encode()) for number in range(5)])
    await defined_by(POLLING)["main"]()
    assert "4 records more, by polling" in capsys.readouterr().out
    assert orders.statistics().poll_calls


async def test_the_example_of_several_streams_reads_each_from_its_start(
    orders: KinesisServer,
) -> None:
    orders.create_stream("payments")
    orders.put_records("payments", [("a", b"1")])
    names: dict[str, Any] = {}
    exec(SEVERAL, names)  # noqa: S102 - the page is ours
    async with fanout.open(names["source"]) as stream:
        drained = await stream.drain(max_records=1, first_wait=30)
    (batch,) = drained.batches
    assert batch.split.id.startswith("payments/")


def test_the_testing_example_is_a_test_that_passes(
    kinesis_server: KinesisServer, fanout_fast: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {}
    exec(TESTING, names)  # noqa: S102 - the page is ours
    names["test_my_job"](kinesis_server, fanout_fast, monkeypatch)


@pytest.mark.long
def test_the_broker_example_runs(
    start_kafka_broker: Callable[..., KafkaBroker], capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    exec(BROKER, names)  # noqa: S102 - the page is ours
    names["test_on_kafka"](start_kafka_broker)
    assert capsys.readouterr().out.startswith("clients connect to 127.0.0.1:")


@pytest.mark.long
def test_the_example_of_a_cluster_works(
    start_kafka_cluster: Callable[..., KafkaCluster], capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    exec(CLUSTER, names)  # noqa: S102 - the page is ours
    names["test_on_three_nodes"](start_kafka_cluster)
    assert capsys.readouterr().out.startswith("node by partition: {0: ")


@pytest.mark.long
@pytest.mark.usefixtures("orders")
def test_every_command_works(tmp_path: Path) -> None:
    source = KinesisSource(stream="orders", consumer="orders-etl")
    stored(tmp_path, fanout.Checkpoint.from_json(asyncio.run(fanout.resolve_start(source))))
    found = [command for name in COMMAND_PAGES for command in commands(name)]
    assert len(found) == 8
    for command in found:
        arguments = command.replace("/var/lib/orders/checkpoint", str(tmp_path))
        result = CliRunner().invoke(app, shlex.split(arguments, comments=True)[1:])
        assert result.exit_code == 0, result.output


def test_the_policy_example_grants_to_register() -> None:
    names: dict[str, Any] = {}
    exec(IAM, names)  # noqa: S102 - the page is ours
    assert "RegisterConsumer" in [each["Sid"] for each in names["policy"]["Statement"]]


@pytest.mark.usefixtures("orders")
async def test_the_diagnosis_example_finds_no_problem() -> None:
    source = KinesisSource(stream="orders", consumer="orders-etl")
    async with fanout.open(source) as stream:
        names: dict[str, Any] = {"fanout": fanout, "source": source, "stream": stream}
        code = compile(DIAGNOSE, "operations.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        await eval(code, names)  # noqa: S307 - the page is ours
    assert "problem" not in [finding.status for finding in names["findings"]]


def test_the_page_names_every_option_of_a_query() -> None:
    section = page("foreach-batch.md").split("\n## Options\n")[1].split("\n## ")[0]
    named = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    options = inspect.signature(foreach_batch).parameters.values()
    assert {each.name for each in options if each.kind is each.KEYWORD_ONLY} == named


def test_no_two_examples_share_a_consumer() -> None:
    """Of two readers of one consumer, one takes the other's subscriptions."""
    texts = [path.read_text() for path in PAGES]
    codes = {code for text in texts for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL)}
    codes |= {example.read_text() for example in ROOT.glob("docs/examples/*.py")}
    consumers = [name for code in codes for name in re.findall(r"consumer=\"([^\"]*)\"", code)]
    assert len(consumers) > 4
    assert len(consumers) == len(set(consumers))


def test_the_page_names_every_option_of_kinesis() -> None:
    section = page("kinesis.md").split("## Options")[1].split("\n## ")[0]
    first_cells = re.findall(r"^\| (.*?) \|", section, re.MULTILINE)
    named = set(re.findall(r"`([a-z_]+)`", "".join(first_cells)))
    assert named == {option.name for option in fields(KinesisOptions)} - {"stream", "consumer"}


def test_the_first_page_has_at_most_200_lines() -> None:
    assert len(page("README.md").splitlines()) <= 200


def test_the_home_page_shows_an_example_that_has_tests() -> None:
    assert python_blocks("index.md") == python_blocks("foreach-batch.md")[:1]
