"""Check the examples and facts about writing in docs/writing-to-kafka.md."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pyarrow as pa
import pytest
from confluent_kafka.admin import AclOperation, ResourcePatternType, ResourceType
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.errors import ServiceError
from fanout.kafka import Security
from fanout.kafka.cluster import Cluster
from fanout.kafka.transactions.outcome import TransactionOutcome, TransactionVerdict
from fanout.kafka.transactions.transactions import open_transactions
from fanout.kafka.writing.producer_id import Transactional
from fanout.kafka.writing.write_options import _OPTIONS, DeliveryGuarantee, ProducerOptions
from fanout.kafka.writing.writer import open_writer
from fanout.spark import KafkaSink
from fanout.spark.sinks.kafka.partitioned_rows import _TYPES
from tests.spark.sinks.kafka.harness import Output, run
from tests.support.kafka.brokers import create
from tests.support.kafka.permissions import grant, permission, revoke
from tests.support.kafka.topics import Topic
from tests.support.kafka.transacting import Sink

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka.admin import AclBinding
    from pyspark.sql import SparkSession

    from fanout.kafka.transactions.commit_token import Incarnation
    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = pytest.mark.spark

TEXT = (Path(__file__).parents[4] / "docs" / "writing-to-kafka.md").read_text()
SINK, HANDLER, ARROW = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
WITHOUT_JVM = SINK.replace("query = foreach_batch", f"{ARROW}query = foreach_batch")
COMMANDS = re.findall(r"^\$ (fanout .*)$", TEXT, re.MULTILINE)
GRANTS = re.findall(r"^\$ (kafka-acls.sh .*)$", TEXT, re.MULTILINE)


def table(heading: str, number: int = 0) -> list[tuple[str, str]]:
    """Return the first two cells of each row of a table below a heading."""
    section = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    rows = [line.split("|") for line in tables[number].splitlines()[2:]]
    return [(row[1].strip(" `"), row[2].strip(" `")) for row in rows]


def run_here(
    code: str, names: dict[str, Any], broker: KafkaBroker, topics: dict[str, str], lake: Path
) -> dict[str, Any]:
    """Run an example on this machine, without its last line if that would block."""
    code = re.sub(r"Security\(username=.*\)(?=[,\n])", 'Security(protocol="PLAINTEXT")', code)
    code = code.replace("broker-1:9093,broker-2:9093", broker.bootstrap_servers)
    code = code.replace("s3a://lake", f"file://{lake}")
    for named, here in topics.items():
        code = code.replace(f'"{named}"', f'"{here}"')
    exec(code.replace("query.await_termination()", ""), names)  # noqa: S102 - the page is ours
    return names


@pytest.mark.long
def test_the_handler_of_the_page_writes_to_two_sinks(
    spark: SparkSession, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    copy, audit = Output(kafka_broker), Output(kafka_broker)
    topics = {"orders-copy": copy.name, "orders-audit": audit.name}
    cluster = Cluster(kafka_broker.bootstrap_servers, security=Security(protocol="PLAINTEXT"))
    names: dict[str, Any] = {"__name__": "__main__", "cluster": cluster, "KafkaSink": KafkaSink}
    handler = run_here(HANDLER, names, kafka_broker, topics, tmp_path)["handler"]
    rows = spark.createDataFrame(
        [(b"k", b"v", "orders", 3, 8)],
        "key binary, value binary, topic string, partition int, offset bigint",
    )
    with run(spark, tmp_path / "fanout") as here:
        here.call(handler, rows, 0)
    assert (copy.values(), audit.values()) == ([b"v"], [b"orders-3@8"])
    listing = ["transactions", "list", "--checkpoint", str(tmp_path), "--json"]
    result = CliRunner().invoke(
        app, [*listing, "--bootstrap-servers", kafka_broker.bootstrap_servers]
    )
    found = json.loads(result.stdout.splitlines()[-1])["transactions"]
    assert [(each["sink"], each["stands"]) for each in found] == [
        ("audit", "closed"),
        ("orders", "closed"),
    ]


@pytest.mark.long
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("code", [SINK, WITHOUT_JVM], ids=["SQL", "Arrow"])
def test_the_example_writes_what_it_reads(
    kafka_broker: KafkaBroker, tmp_path: Path, code: str
) -> None:
    orders, output = Topic(kafka_broker), Output(kafka_broker)
    orders.write([{"key": b"k%d" % n, "value": b"value %d" % n} for n in range(20)])
    topics = {"orders": orders.name, "orders-by-user": output.name}
    names: dict[str, Any] = {"__name__": "__main__"}
    query = run_here(code, names, kafka_broker, topics, tmp_path)["query"]
    try:
        while len(output.values()) < 20:
            assert query.is_active
            query.await_termination(0.5)
    finally:
        query.stop()
    assert output.values() == sorted(b"VALUE %d" % n for n in range(20))


def test_the_commands_of_the_page_work(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    (tmp_path / "fanout").mkdir()
    config = tmp_path / "client.properties"
    config.write_text("security.protocol=PLAINTEXT\n")
    here = {
        "/var/lib/orders/checkpoint": str(tmp_path),
        "broker-1:9093": kafka_broker.bootstrap_servers,
        "client.properties": str(config),
    }
    assert [shlex.split(command)[2] for command in COMMANDS] == ["list", "commit", "abort"]
    for command in COMMANDS:
        arguments = [here.get(word, word) for word in shlex.split(command)[1:]]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output


def test_the_page_names_every_option_with_its_default() -> None:
    documented = dict(table("Options"))
    parameters = inspect.signature(KafkaSink).parameters
    assert documented.keys() == parameters.keys()
    for name, parameter in parameters.items():
        default = parameter.default
        if name == "producer_options":
            default = {}
        expected = "required" if default is inspect.Parameter.empty else default
        assert documented[name].strip('"') == str(expected), name


def test_the_page_names_every_producer_option_with_its_default() -> None:
    defaults = ProducerOptions()
    expected = {}
    for name in (*_OPTIONS.numbers, *_OPTIONS.words):
        default = getattr(defaults, name.removesuffix(".ms").replace(".", "_"))
        expected[name] = str(round(default * 1000) if name.endswith(".ms") else default)
    assert {name: value.strip('"') for name, value in table("Options", 1)} == expected


def test_the_page_names_every_column_every_guarantee_and_every_verdict() -> None:
    assert {name for name, _ in table("Columns")} == _TYPES.keys()
    guarantees = [name.strip('"') for name, _ in table("Guarantees")]
    assert guarantees == list(get_args(DeliveryGuarantee))
    verdicts = {name for name, _ in table("fanout transactions")}
    assert verdicts == {verdict.value for verdict in TransactionVerdict}


def granted_by(command: str) -> AclBinding:
    """Return the permission that a command of the page grants."""
    words = shlex.split(command)
    options = dict(zip(words[2::2], words[3::2], strict=True))
    kinds = {"--transactional-id": ResourceType.TRANSACTIONAL_ID}
    kinds |= {"--group": ResourceType.GROUP, "--topic": ResourceType.TOPIC}
    (kind,) = kinds.keys() & options.keys()
    return permission(
        options["--allow-principal"].removeprefix("User:"),
        kinds[kind],
        options[kind],
        AclOperation[options["--operation"].upper()],
        pattern=ResourcePatternType[options.get("--resource-pattern-type", "literal").upper()],
    )


@pytest.mark.long
async def test_the_permissions_of_the_page_are_enough_and_each_is_needed(
    start_kafka_broker: Callable[..., KafkaBroker],
) -> None:
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    broker = await asyncio.to_thread(
        start_kafka_broker,
        settings={
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "listener.name.users.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.users.plain.sasl.jaas.config": f'{login} user_etl="canary";',
        },
        listeners={"USERS": "SASL_PLAINTEXT"},
    )
    await create(broker, "orders-by-user")
    permissions = [granted_by(command) for command in GRANTS]
    assert len(permissions) == 4
    for wanted in permissions:
        await asyncio.to_thread(grant, broker, wanted)
    assert await write(broker) is TransactionOutcome.COMMITTED
    for wanted in permissions:
        await asyncio.to_thread(revoke, broker, wanted)
        with pytest.raises(ServiceError, match="grant the principal"):
            await write(broker)
        await asyncio.to_thread(grant, broker, wanted)
    assert await write(broker) is TransactionOutcome.COMMITTED


async def write(broker: KafkaBroker) -> TransactionOutcome:
    """Do what the driver and the tasks of a sink do for a batch."""
    servers = broker.address("USERS")
    security = Security(
        protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="etl", password="canary"
    )
    sink = Sink(broker, "orders-by-user")
    async with open_transactions(Cluster(servers, security=security), patience=5.0) as driver:
        timeout = await driver.max_timeout()
        await driver.partitions(sink.topic)
        incarnation = await driver.begin(sink.id, timeout)
        await driver.marked(sink.group)
        await task(servers, security, sink, incarnation)
        token = sink.token(incarnation)
        await driver.mark(token)
        await driver.describe(sink.id)
        return await driver.commit(token)


async def task(servers: str, security: Security, sink: Sink, incarnation: Incarnation) -> None:
    mode = Transactional(sink.id, incarnation)
    row = {"topic": [sink.topic], "partition": pa.array([0], pa.int32()), "value": [b"v"]}
    async with open_writer(Cluster(servers, security=security), mode=mode) as writer:
        await writer.write(pa.record_batch(row))
        await writer.flush()
