"""Each command, as a process, ends with the exit code that docs/commands.md documents."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.cli.command import ExitCode
from tests.support.commands import ENVIRONMENT, FANOUT, fanout
from tests.support.groups import KAFKA_COMMANDS
from tests.support.kafka.topics import Topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.testing.kafka.broker import KafkaBroker
    from fanout.testing.kinesis.server import KinesisServer

pytestmark = KAFKA_COMMANDS

PAGE = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
CHECKPOINT = Path(__file__).parents[1] / "checkpoints" / "version_0_1" / "sink"
ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"


@pytest.fixture
def empty(tmp_path: Path) -> str:
    """A checkpoint without a token."""
    (tmp_path / "empty" / "fanout").mkdir(parents=True)
    return str(tmp_path / "empty")


@pytest.fixture
def dead() -> Iterator[str]:
    """An address at which nothing answers: connections are refused."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{kept.getsockname()[1]}"


def test_the_page_has_the_exit_codes_of_the_code() -> None:
    table = PAGE.partition("## Exit codes")[2].partition("| command |")[0]
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert codes == {*map(int, ExitCode)}


def test_help_has_the_exit_codes() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"TERM": "dumb", "COLUMNS": "200"}).stdout
    codes = re.findall(r"\b(\d+)\b", " ".join(shown.split()).partition("Exit codes: ")[2])
    assert [*map(int, codes[:4])] == [*ExitCode]


def test_the_page_has_every_command() -> None:
    table = PAGE.partition("| command |")[2].partition("\n## ")[0]
    rows = [re.findall(r"`([a-z -]+)`", row.split("|")[1]) for row in table.splitlines()[2:] if row]
    named = {first for row in rows for first in [row[0].split()[0], *row[1:]]}
    shown = CliRunner().invoke(app, ["--help"], env={"TERM": "dumb", "COLUMNS": "200"}).stdout
    commands = set(re.findall(r"^│ ([a-z-]+) ", shown.partition("Commands")[2], re.MULTILINE))
    assert commands
    assert commands - named == set()


def leaves(command: Any) -> list[Any]:
    below = getattr(command, "commands", {})
    return [leaf for each in below.values() for leaf in leaves(each)] if below else [command]


def test_every_command_has_json() -> None:
    commands = leaves(get_command(app))
    assert len(commands) > 12
    assert [each.name for each in commands if "--json" not in options_of(each)] == []


def options_of(command: Any) -> list[str]:
    return [option for parameter in command.params for option in parameter.opts]


UNREACHABLE = [
    ["tail", "kafka://topic"],
    ["share", "describe", "group"],
    ["shuffle", "describe", "topic"],
    *(["transactions", verb, "--checkpoint", str(CHECKPOINT)] for verb in ("list", "commit")),
    ["transactions", "list", "--checkpoint", "{empty}"],
    ["transactions", "abort", "--checkpoint", "{empty}"],
]


@pytest.mark.long
@pytest.mark.parametrize("command", UNREACHABLE, ids=lambda command: " ".join(command[:2]))
def test_an_unreachable_cluster_is_2_within_seconds(
    command: list[str], dead: str, empty: str
) -> None:
    given = [part.replace("{empty}", empty) for part in command]
    begun = time.monotonic()
    done = fanout(*given, "--bootstrap-servers", dead, "--connect-timeout", "0.5", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"fanout {command[0]}: the cluster cannot be reached: {dead}: ")
    assert done.stderr.count("\n") == 1
    assert time.monotonic() - begun < 30


@pytest.mark.long
def test_a_wrong_protocol_is_2_and_names_the_option(kafka_broker: KafkaBroker) -> None:
    servers = kafka_broker.bootstrap_servers
    options = ["--bootstrap-servers", servers, "--username", "etl", "--protocol", "SASL_PLAINTEXT"]
    done = fanout("share", "describe", "group", *options, KAFKA_PASSWORD="canary")
    assert (done.returncode, done.stdout) == (2, "")
    assert "a Kafka listener of the protocol PLAINTEXT answers" in done.stderr
    assert "set --protocol to PLAINTEXT" in done.stderr
    assert "canary" not in done.stderr
    done = fanout("doctor", "--topic", "orders", "--json", *options, KAFKA_PASSWORD="canary")
    assert (done.returncode, done.stderr) == (1, "")
    assert "set --protocol to PLAINTEXT" in done.stdout
    assert "canary" not in done.stdout


@pytest.mark.long
def test_what_kafka_does_not_have_is_2_or_1(kafka_broker: KafkaBroker, empty: str) -> None:
    servers = ["--bootstrap-servers", kafka_broker.bootstrap_servers, "--json"]
    unknown = "no-such-name"
    done = fanout("share", "describe", unknown, *servers)
    assert (done.returncode, done.stdout) == (2, "")
    done = fanout("shuffle", "describe", unknown, *servers)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"there is no topic {unknown}; check the name" in done.stderr
    done = fanout("shuffle", "describe", Topic(kafka_broker).name, *servers)
    assert done.returncode == 1
    assert len(json.loads(done.stdout)["partitions"]) == 1
    done = fanout("transactions", "list", "--checkpoint", empty, "--sink", unknown, *servers)
    assert (done.returncode, done.stdout) == (2, "")
    done = fanout("transactions", "list", "--checkpoint", empty, *servers)
    assert (done.returncode, json.loads(done.stdout)["transactions"]) == (0, [])


@pytest.mark.long
def test_a_transaction_that_the_brokers_do_not_know_is_not_committed(
    kafka_broker: KafkaBroker,
) -> None:
    servers = ["--bootstrap-servers", kafka_broker.bootstrap_servers, "--json"]
    done = fanout("transactions", "list", "--checkpoint", str(CHECKPOINT), *servers)
    (found,) = json.loads(done.stdout)["transactions"]
    assert (done.returncode, found["stands"]) == (1, "nobody knows")
    done = fanout("transactions", "commit", "--checkpoint", str(CHECKPOINT), *servers)
    assert (done.returncode, json.loads(done.stdout)["done"]) == (1, [])


@pytest.mark.usefixtures("aws")
def test_the_commands_of_kinesis(
    kinesis_server: KinesisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinesis_server.create_stream("orders")
    for name, value in kinesis_server.environment.items():
        monkeypatch.setenv(name, value)
    for command, code in (
        (["doctor", "orders", "--json"], 0),
        (["doctor", "unknown", "--json"], 1),
        (["consumers", "list", "orders", "--json"], 0),
        (["consumers", "list", "unknown", "--json"], 2),
        (["consumers", "deregister", "orders", "unknown", "--json"], 2),
        (["consumers", "gc", "orders", "--older-than", "7d", "--json"], 0),
    ):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == code, (command, done.stderr)
        if code == 2:
            assert done.stdout == ""
            assert done.stderr.count("\n") == 1, done.stderr
        else:
            assert json.loads(done.stdout)


@pytest.mark.long
def test_an_unreachable_kinesis_is_2_for_consumers_and_a_problem_for_the_doctor(dead: str) -> None:
    environment = {
        "AWS_ENDPOINT_URL_KINESIS": f"http://{dead}",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
    }
    done = fanout("consumers", "list", "orders", **environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1, done.stderr
    assert fanout("doctor", "orders", **environment).returncode == 1


@pytest.mark.long
def test_the_policy_is_json() -> None:
    done = fanout("iam-policy", ARN, "--json")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1)
    assert json.loads(done.stdout) == json.loads(fanout("iam-policy", ARN).stdout)
    assert fanout("iam-policy", "arn").returncode == 2


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_command_that_waits_for_a_broker_with_130(number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:{silent.getsockname()[1]}"
        command = ["share", "describe", "readers", "--bootstrap-servers", servers]
        process = subprocess.Popen(  # noqa: S603 - our own code
            [*FANOUT, *command, "--protocol", "PLAINTEXT"],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process, silent.accept()[0]:
            process.send_signal(number)
            assert process.communicate() == ("", "")
    assert process.returncode == 130
