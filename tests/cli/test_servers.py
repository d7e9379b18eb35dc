"""The servers for development, as processes, and the examples of the page about commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fanout.testing.ports import free_ports
from tests.support.commands import ENVIRONMENT, FANOUT, fanout
from tests.support.groups import KAFKA_COMMANDS
from tests.support.patience import PATIENCE
from tests.support.process_list import running_with

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = KAFKA_COMMANDS

PAGE = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
KINESIS_COMMAND, KAFKA_COMMAND = (
    shlex.split(command)
    for command in re.findall(r"^\$ fanout (kinesis-server.*|kafka-broker.*)$", PAGE, re.MULTILINE)
)
KINESIS_EXAMPLE, KAFKA_EXAMPLE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@dataclass
class Server:
    process: subprocess.Popen[str]
    answer: dict[str, Any]
    scratch: Path
    mark: str

    @property
    def address(self) -> tuple[str, int]:
        text = self.answer.get("bootstrap_servers") or self.answer["endpoint_url"]
        host, _, port = text.rpartition("/")[2].split(",")[0].partition(":")
        return host, int(port)

    def end(self, number: signal.Signals) -> tuple[int, str, str]:
        """Send a signal until the process has ended; return its exit code and what it printed."""
        while self.process.poll() is None:
            self.process.send_signal(number)
            time.sleep(0.01)  # the next one comes during the clean-up, which it must not disturb
        stdout, stderr = self.process.communicate()
        return self.process.returncode, stdout, stderr

    def is_gone(self) -> bool:
        """Return whether no process, no file and no listener is left."""
        with socket.socket() as probe:
            listens = probe.connect_ex(self.address) == 0
        return not listens and self.children() == {} and [*self.scratch.iterdir()] == []

    def children(self) -> dict[int, str]:
        """Return the command lines of the processes that it has started, by process id."""
        found = running_with(self.mark)
        found.pop(self.process.pid, None)
        return found


@contextmanager
def running(scratch: Path, *arguments: str) -> Iterator[Server]:
    """Start a command, and read its first line; kill it at the end."""
    mark = uuid.uuid4().hex  # all processes that it starts inherit it
    environment = ENVIRONMENT | {"TMPDIR": str(scratch), "FANOUT_TEST_SERVER": mark}
    with subprocess.Popen(  # noqa: S603 - our own code
        [*FANOUT, *arguments, "--json"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            yield Server(process, json.loads(line), scratch, mark)
        finally:
            process.kill()


def run_example(code: str, server: Server) -> str:
    done = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", code],
        env=ENVIRONMENT | server.answer["environment"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


ORDERS = sorted(f"order {n}" for n in range(10))


def test_the_example_of_kinesis_works_and_sigterm_ends_the_server(tmp_path: Path) -> None:
    with running(tmp_path, *KINESIS_COMMAND, "--port", "0") as server:
        assert server.answer["streams"] == {"orders": 4}
        printed = run_example(KINESIS_EXAMPLE, server)
        assert sorted(re.findall(r"order \d", printed)) == ORDERS
        assert server.end(signal.SIGTERM) == (0, "", "")
        assert server.is_gone()


@pytest.mark.long
def test_the_example_of_kinesis_works_over_tls(tmp_path: Path) -> None:
    with running(tmp_path, *KINESIS_COMMAND, "--port", "0", "--tls") as server:
        assert server.answer["endpoint_url"].startswith("https://")
        printed = run_example(KINESIS_EXAMPLE, server)
        assert sorted(re.findall(r"order \d", printed)) == ORDERS
        assert server.end(signal.SIGTERM) == (0, "", "")
        assert server.is_gone()


@pytest.mark.long
def test_the_example_of_kafka_works_and_sigterm_ends_the_broker(tmp_path: Path) -> None:
    with running(tmp_path, *KAFKA_COMMAND, "--port", "0") as server:
        assert server.answer["topics"] == {"orders": 4}
        printed = run_example(KAFKA_EXAMPLE, server)
        assert sorted(re.findall(r"order \d", printed)) == ORDERS
        assert server.children() != {}
        assert server.end(signal.SIGTERM) == (0, "", "")
        assert server.is_gone()


@pytest.mark.long
def test_ctrl_c_ends_a_server_and_its_port_can_be_used_again(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with running(tmp_path, "kinesis-server", "--port", str(port)) as server:
        assert server.address == ("127.0.0.1", port)
        assert server.end(signal.SIGINT) == (0, "", "")
    with running(tmp_path, "kinesis-server", "--port", str(port)) as server:
        assert server.address == ("127.0.0.1", port)


@pytest.mark.long
def test_a_broker_that_ends_by_itself_is_told_with_1(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with running(tmp_path, "kafka-broker", "--port", str(port)) as server:
        assert server.address == ("127.0.0.1", port)
        (java,) = [
            pid
            for pid, command in server.children().items()
            if "kafka.Kafka\0server.properties" in command and "keeper" not in command
        ]
        os.kill(java, signal.SIGKILL)
        stdout, stderr = server.process.communicate(timeout=PATIENCE)
        assert (server.process.returncode, stdout) == (1, "")
        assert stderr == "fanout: Kafka ended by itself, and its records are gone; start it again\n"
        assert server.is_gone()


@pytest.mark.long
def test_a_cluster_tells_its_nodes_and_goes_on_without_one(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with running(tmp_path, "kafka-broker", "--nodes", "2", "--port", str(port)) as server:
        servers = f"127.0.0.1:{port},127.0.0.1:{port + 1}"
        assert server.answer["environment"] == {"KAFKA_BOOTSTRAP_SERVERS": servers}
        os.kill(server.answer["processes"]["1"], signal.SIGKILL)
        assert server.end(signal.SIGINT) == (0, "", "")
        assert server.is_gone()


@pytest.mark.long
@pytest.mark.parametrize("command", ["kinesis-server", "kafka-broker"])
def test_a_port_that_is_taken_is_one_sentence(command: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = fanout(command, "--port", str(port))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"fanout {command}: --port {port} cannot be used on 127.0.0.1: Address already in use; "
        f"pass another one, or --port 0 for a free one\n"
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["kinesis-server", "--stream", "a b=4"],
            "--stream 'a b=4' is not a name and a number from 1 to 1000, such as orders=4",
        ),
        (["kinesis-server", "--stream", "a=0"], "--stream a=0 is not a name and a number"),
        (["kafka-broker", "--topic", "a=1001"], "--topic a=1001 is not a name and a number"),
        (["kafka-broker", "--topic", "a", "--topic", "a=2"], "--topic names a twice"),
    ],
)
def test_a_malformed_name_is_one_sentence(arguments: list[str], sentence: str) -> None:
    done = fanout(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"fanout {arguments[0]}: {sentence}")
    assert done.stderr.count("\n") == 1


@pytest.mark.long
def test_people_get_lines_to_paste_into_a_shell(tmp_path: Path) -> None:
    with subprocess.Popen(  # noqa: S603 - our own code
        [*FANOUT, "kinesis-server", "--port", "0"],
        env=ENVIRONMENT | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        process.terminate()
        rest = process.stdout.read()
    assert process.returncode == 0
    assert re.fullmatch(r"# Kinesis runs at (http://127.0.0.1:\d+); Ctrl-C ends it.\n", lines[0])
    assert lines[1].startswith("export AWS_ENDPOINT_URL_KINESIS=http://127.0.0.1:")
    shown = re.findall(r"^export (\w+)=", "".join(lines) + rest, re.MULTILINE)
    assert shown == re.findall(r"^export (AWS_\w+)=", PAGE, re.MULTILINE)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "waits", ["fanout.testing.kinesis.server.KinesisServer.__enter__", "fanout.cli.app.app"]
)
def test_a_server_that_does_not_serve_yet_ends_with_130(waits: str, number: signal.Signals) -> None:
    code = (
        "import fanout.cli.app, fanout.testing.kinesis.server, time\n"
        "def wait(*_):\n    print('waits', flush=True)\n    time.sleep(60)\n"
        f"{waits} = wait\n"
        "from fanout.cli import main; main()"
    )
    with subprocess.Popen(  # noqa: S603 - our own code
        [sys.executable, "-c", code, "kinesis-server", "--port", "0"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(number)
        assert (process.wait(PATIENCE), process.communicate()) == (130, ("", ""))
