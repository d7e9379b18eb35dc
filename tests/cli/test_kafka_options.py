"""The options of a cluster are the same in every command, and errors speak of them."""

from __future__ import annotations

import pickle  # noqa: TID251 - as what is landed by several processes
import re
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.cli.service_options import ClusterOptions
from fanout.errors import OptionError
from fanout.kafka.cluster import Server
from tests.support.commands import fanout
from tests.support.kafka.first_contact import CONNECT_TIMEOUT, ended_once_seen

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.kafka import Security
    from fanout.testing.kafka.broker import KafkaBroker

SECRET = "canary-password"
COMMANDS = [
    ["share", "describe", "group"],
    ["shuffle", "describe", "topic"],
    ["transactions", "list", "--checkpoint", "{}"],
    ["transactions", "commit", "--checkpoint", "{}"],
    ["transactions", "abort", "--checkpoint", "{}"],
]
OPTIONS = [
    "--bootstrap-servers",
    "--bootstrap-server",
    "--command-config",
    "--protocol",
    "--mechanism",
    "--username",
    "--ca-file",
    "--certificate-file",
    "--key-file",
    "--insecure",
    "--connect-timeout",
]
VARIABLES = [
    "KAFKA_BOOTSTRAP_SERVERS",
    "KAFKA_COMMAND_CONFIG",
    "KAFKA_PASSWORD",
    "KAFKA_KEY_PASSWORD",
    "KAFKA_TOKEN",
]


def named(value: list[str] | str) -> str:
    return " ".join(value) if isinstance(value, list) else ""


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    (tmp_path / "checkpoint" / "fanout").mkdir(parents=True)
    return str(tmp_path / "checkpoint")


def run(command: list[str], checkpoint: str, *more: str) -> tuple[int, str]:
    """Run a command that must fail; return its exit code and its sentence."""
    named = [part.replace("{}", checkpoint) for part in command]
    result = CliRunner().invoke(app, [*named, *more])
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    name, _, sentence = result.stderr.removesuffix("\n").partition(": ")
    assert name == f"fanout {command[0]}"
    return result.exit_code, sentence


@pytest.mark.parametrize(
    "command", [*COMMANDS, ["doctor", "orders"], ["status", "checkpoint"]], ids=named
)
def test_every_command_has_the_same_options_and_names_the_variables(command: list[str]) -> None:
    text = CliRunner().invoke(app, [*command[:2], "--help"]).stdout
    assert [option for option in OPTIONS if f"{option} " not in text.replace(",", " ")] == []
    words = text.replace("│", " ").split()
    assert [name for name in VARIABLES if not any(name in word for word in words)] == []
    assert "--password" not in text, "a secret would show in the list of processes"


BROKER = ["--bootstrap-servers", "127.0.0.1:1"]
MISTAKES = [
    ([], "pass --bootstrap-servers, or set bootstrap.servers in the file of --command-config"),
    (
        [*BROKER, "--protocol", "SASL_SSL"],
        (
            "--protocol SASL_SSL needs --username and KAFKA_PASSWORD, or KAFKA_TOKEN; for a broker "
            "without users there is --protocol SSL, and on this machine 'PLAINTEXT'"
        ),
    ),
    (
        [*BROKER, "--protocol", "TLS"],
        (
            "--protocol TLS is not understood; use 'SASL_SSL' or 'SSL' or 'SASL_PLAINTEXT' or "
            "'PLAINTEXT'"
        ),
    ),
    (
        [*BROKER, "--protocol", "SSL", "--mechanism", "PLAIN", "--username", "etl"],
        "--protocol SSL has no SASL, so leave --mechanism and --username out, or use SASL_SSL",
    ),
    (
        [*BROKER, "--protocol", "SASL_SSL", "--mechanism", "OAUTHBEARER"],
        "--mechanism OAUTHBEARER needs KAFKA_TOKEN",
    ),
    (
        [*BROKER, "--protocol", "SSL", "--key-file", "key.pem"],
        "--key-file belongs to --certificate-file, which is missing",
    ),
    (
        [*BROKER, "--protocol", "SSL", "--insecure", "--connect-timeout", "0"],
        "--connect-timeout 0 must be more than 0 seconds, and finite",
    ),
    (
        ["--bootstrap-servers", "kafka.example.com:9092"],
        (
            "the Kafka broker on kafka.example.com would be used without TLS: use SASL_SSL or SSL, "
            "or pass --insecure if the network is trusted"
        ),
    ),
    (
        ["--bootstrap-servers", "kafka://a"],
        (
            "--bootstrap-servers must be 'host:port' each, without a scheme, a user or a password; "
            "an IPv6 address stands in brackets"
        ),
    ),
    (
        [*BROKER, "--ca-file", "/nowhere.pem"],
        "--ca-file /nowhere.pem cannot be used: [Errno 2] No such file or directory",
    ),
]


@pytest.mark.parametrize("command", COMMANDS[:3], ids=named)
@pytest.mark.parametrize(("given", "says"), MISTAKES, ids=named)
def test_a_mistake_is_named_by_its_option(
    command: list[str], given: list[str], says: str, checkpoint: str
) -> None:
    assert run(command, checkpoint, *given) == (2, says)


@pytest.mark.parametrize("command", COMMANDS, ids=named)
def test_a_dead_broker_is_an_error_within_the_timeout_also_with_no_token(
    command: list[str], checkpoint: str, unused_tcp_port: int
) -> None:
    dead = Server("127.0.0.1", unused_tcp_port)
    given = ["--bootstrap-servers", str(dead), "--connect-timeout", f"{CONNECT_TIMEOUT:g}"]
    says = (
        f"the cluster cannot be reached: {dead}: no server listens; check that the broker runs, "
        "and the port (tried with the protocol PLAINTEXT for --connect-timeout 100 seconds)"
    )
    with ended_once_seen(dead):
        assert run(command, checkpoint, *given) == (2, says)


@pytest.mark.parametrize(
    "command",
    [COMMANDS[0], *(pytest.param(command, marks=pytest.mark.long) for command in COMMANDS[1:])],
    ids=named,
)
def test_a_wrong_protocol_is_named_by_its_option(
    command: list[str], checkpoint: str, kafka_broker: KafkaBroker
) -> None:
    servers = kafka_broker.bootstrap_servers
    given = ["--bootstrap-servers", servers, "--protocol", "SSL"]
    says = (
        f"the cluster cannot be reached: {servers}: a Kafka listener of the protocol PLAINTEXT "
        "answers; set --protocol to PLAINTEXT, or use the port of SSL (tried with the protocol SSL)"
    )
    assert run(command, checkpoint, *given) == (2, says)


FILE = """
security.protocol=SASL_SSL
sasl.mechanism=PLAIN
sasl.jaas.config=PlainLoginModule required username="etl" password="{secret}";
"""


@pytest.mark.parametrize(
    ("text", "given", "says"),
    [
        (FILE, ["--protocol", "SSL"], "--protocol SSL has no SASL, so leave sasl.mechanism and "),
        ("security.protocol=TLS", [], "security.protocol='TLS' is not understood; use 'SASL_SSL'"),
        (
            "security.protocol=SSL",
            ["--username", "etl"],
            "security.protocol='SSL' has no SASL, so leave --username out, or use SASL_SSL",
        ),
        (
            "security.protocol=SSL\nssl.key.password={secret}",
            [],
            "ssl.key.password belongs to --certificate-file, which is missing",
        ),
    ],
    ids=["option", "protocol", "both", "key"],
)
def test_what_comes_from_a_file_is_named_as_there(
    tmp_path: Path, checkpoint: str, text: str, given: list[str], says: str
) -> None:
    path = tmp_path / "client.properties"
    path.write_text(text.replace("{secret}", SECRET))
    for command in COMMANDS[:3]:
        code, sentence = run(command, checkpoint, *BROKER, "--command-config", str(path), *given)
        assert code == 2
        assert sentence.startswith(f"{path}: {says}")
        assert SECRET not in sentence


def security(**options: Any) -> Security:
    found = ClusterOptions(**({"bootstrap_servers": "127.0.0.1:1"} | options)).cluster().security
    assert not callable(found)
    return found


@pytest.mark.parametrize(
    ("options", "protocol"),
    [
        ({}, "PLAINTEXT"),
        ({"username": "etl"}, "SASL_SSL"),
        ({"ca_file": "ca.pem"}, "SSL"),
        ({"certificate_file": "client.pem"}, "SSL"),
        ({"username": "etl", "protocol": "SASL_PLAINTEXT"}, "SASL_PLAINTEXT"),
    ],
)
def test_the_protocol_follows_from_the_other_options(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], protocol: str
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
    assert security(**options).protocol == protocol


def test_secrets_come_from_the_environment_where_they_are_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
    monkeypatch.setenv("KAFKA_KEY_PASSWORD", f"{SECRET}-key")
    monkeypatch.setenv("KAFKA_TOKEN", f"{SECRET}-token")
    assert security(username="etl").password == SECRET
    assert security(username="etl").key_password is None
    certified = security(certificate_file="client.pem")
    assert (certified.password, certified.key_password) == (None, f"{SECRET}-key")
    bearer = security(protocol="SASL_SSL", mechanism="OAUTHBEARER")
    assert (bearer.password, bearer.token is None) == (None, False)
    assert security().password is None


def test_options_and_the_environment_come_before_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=127.0.0.1:2\n" + FILE.replace("{secret}", SECRET))
    found = security(bootstrap_servers=None, command_config=str(path))
    assert (found.sasl, found.username, found.password) == ("PLAIN", "etl", SECRET)
    monkeypatch.setenv("KAFKA_PASSWORD", "another")
    found = security(command_config=str(path), mechanism="SCRAM-SHA-256", username="ops")
    assert (found.sasl, found.username, found.password) == ("SCRAM-SHA-256", "ops", "another")


def test_the_password_of_the_file_stays_with_its_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "client.properties"
    monkeypatch.setenv("KAFKA_PASSWORD", "another")
    path.write_text(FILE.replace("{secret}", SECRET))
    found = security(command_config=str(path))
    assert (found.username, found.password) == ("etl", SECRET)
    path.write_text("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=etl\n")
    found = security(command_config=str(path))
    assert (found.username, found.password) == ("etl", "another")


def test_the_key_password_of_the_file_stays_with_its_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "client.properties"
    monkeypatch.setenv("KAFKA_KEY_PASSWORD", "another")
    certificate = "security.protocol=SSL\nssl.certificate.location=client.pem\n"
    path.write_text(certificate + f"ssl.key.password={SECRET}\n")
    file = str(path)
    assert security(command_config=file).key_password == SECRET
    assert security(command_config=file, key_file="other.pem").key_password == "another"
    assert security(command_config=file, certificate_file="x.pem").key_password == "another"
    path.write_text(certificate)
    assert security(command_config=file).key_password == "another"


OTHERS = [
    (["doctor", "a b"], "STREAM 'a b' is neither a stream's name"),
    (["doctor", "s", "a b"], "CONSUMER 'a b' is neither a consumer's name"),
    (["doctor", "s", "--endpoint-url", "ftp://x"], "--endpoint-url must begin with https://"),
    (["consumers", "list", "a b"], "STREAM 'a b' is neither a stream's name"),
    (["consumers", "register", "s", "a b"], "CONSUMER 'a b' is neither a consumer's name"),
    (["iam-policy", "arn"], "STREAM_ARN 'arn' is not the ARN of a stream"),
    (["demo", "--shuffle"], "--shuffle needs a topic of Kafka; pass --source kafka"),
]


@pytest.mark.parametrize(("given", "says"), OTHERS, ids=named)
def test_no_command_names_a_keyword_of_python(given: list[str], says: str) -> None:
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"fanout {given[0]}: {says}")
    assert re.search(r"(?<![\w.-])[a-z_]+=[^=\s]", result.stderr) is None


def test_a_process_takes_the_options_from_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text(FILE.replace("{secret}", SECRET))
    done = fanout(
        *COMMANDS[0],
        "--ca-file",
        "/nowhere.pem",
        KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1",
        KAFKA_COMMAND_CONFIG=str(path),
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fanout share: --ca-file /nowhere.pem cannot be used")


def test_a_cluster_travels_without_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
    options = ClusterOptions(bootstrap_servers="broker:9092", username="ann")
    with pytest.raises(OptionError, match="is not sent to other processes"):
        pickle.dumps(options.cluster())
    sent = pickle.dumps(options.cluster(travels=True))
    assert SECRET.encode() not in sent
    security = pickle.loads(sent).load_security()  # noqa: S301 - it was made here
    assert (security.username, security.password) == ("ann", SECRET)
