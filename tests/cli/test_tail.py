"""`fanout tail`, from an embedded Kinesis."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import time
import urllib.request
import uuid
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, final

import boto3
import psutil
import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.cli.record_output import StandardOutput
from fanout.cli.tail import _searched
from fanout.errors import SetupError
from fanout.kinesis.writing.kpl_format import encode_aggregate
from fanout.testing.kinesis.rules import KinesisRules
from fanout.testing.kinesis.server import KinesisServer
from tests.support.commands import ENVIRONMENT, FANOUT
from tests.support.patience import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typer.testing import Result

SHARDS = [f"shardId-{number:012}" for number in range(6)]


@pytest.fixture(scope="module")
def kinesis() -> Iterator[KinesisServer]:
    with KinesisServer(KinesisRules.fast()) as server:
        yield server


@final
class Stream:
    """A stream of two shards."""

    def __init__(self, server: KinesisServer) -> None:
        self.server = server
        self.name = f"orders-{uuid.uuid4().hex}"
        self.source = f"kinesis://{self.name}"
        server.create_stream(self.name, 2)

    def put(self, *values: bytes, shard: int | None = 0) -> None:
        chosen = None if shard is None else SHARDS[shard]
        self.server.put_records(self.name, [("me", value) for value in values], shard=chosen)

    def consumers(self) -> list[str]:
        client = boto3.client("kinesis", **self.server.client_options)
        (arn,) = {client.describe_stream(StreamName=self.name)["StreamDescription"]["StreamARN"]}
        found = client.list_stream_consumers(StreamARN=arn)["Consumers"]
        client.close()
        return [each["ConsumerName"] for each in found]


@pytest.fixture
def stream(
    kinesis: KinesisServer,
    monkeypatch: pytest.MonkeyPatch,
    fanout_fast: None,  # noqa: ARG001 - used for what it does
    aws: None,  # noqa: ARG001 - the same
) -> Stream:
    for name, value in kinesis.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("KAFKA_BOOTSTRAP_SERVERS", "KAFKA_COMMAND_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return Stream(kinesis)


def tail(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["tail", *arguments], env={"COLUMNS": "240", "TERM": "dumb"})


@pytest.fixture
def shown(capfd: pytest.CaptureFixture[str]) -> Any:
    """Run the command until it ends by itself; return the values that it shows, in order.

    It writes to the file of the process, not to the object that a CliRunner replaces.
    """

    def run(*arguments: str) -> list[str]:
        result = tail(*arguments)
        assert (result.exit_code, result.stderr) == (0, ""), result.stderr
        return [line.split("\t")[3] for line in capfd.readouterr().out.splitlines()]

    return run


def test_a_line_of_text_has_time_shard_key_and_value(
    stream: Stream, capfd: pytest.CaptureFixture[str]
) -> None:
    stream.put(b"a\x1b\n\xff", shard=1)
    assert tail(stream.source, "--since", "earliest", "--max", "1").exit_code == 0
    time_, *fields = capfd.readouterr().out.removesuffix("\n").split("\t")
    assert abs(datetime.fromisoformat(time_) - datetime.now(UTC)) < timedelta(hours=1)
    assert fields == [SHARDS[1], "me", r"a\x1b\n\xff"]


def test_a_record_without_a_key_is_shown(stream: Stream, capfd: pytest.CaptureFixture[str]) -> None:
    stream.server.put_records(stream.name, [(None, b"1")], shard=SHARDS[0])
    command = [stream.source, "--since", "earliest", "--max", "1"]
    assert tail(*command).exit_code == 0
    assert capfd.readouterr().out.removesuffix("\n").split("\t")[2:] == ["null", "1"]
    assert tail(*command, "--json").exit_code == 0
    assert json.loads(capfd.readouterr().out)["key"] is None


def test_several_streams_are_told_apart(stream: Stream, capfd: pytest.CaptureFixture[str]) -> None:
    other = Stream(stream.server)
    stream.put(b"1", shard=0)
    other.put(b"2", shard=0)
    both = f"{stream.source},{other.name}"
    assert tail(both, "--since", "earliest", "--max", "2").exit_code == 0
    found = sorted(line.split("\t")[1:] for line in capfd.readouterr().out.splitlines())
    assert found == sorted(
        [f"{name}/{SHARDS[0]}", "me", value]
        for name, value in ((stream.name, "1"), (other.name, "2"))
    )


def test_a_chosen_shard_is_read_of_each_of_several_streams(
    stream: Stream, capfd: pytest.CaptureFixture[str]
) -> None:
    other = Stream(stream.server)
    for one in (stream, other):
        one.put(b"no", shard=0)
        one.put(b"yes", shard=1)
    both = f"{stream.source},{other.name}"
    command = [both, "--since", "earliest", "--max"]
    assert tail(*command, "2", "--shard", "1").exit_code == 0
    found = sorted(line.split("\t")[1:] for line in capfd.readouterr().out.splitlines())
    assert found == sorted([f"{each.name}/{SHARDS[1]}", "me", "yes"] for each in (stream, other))
    of_one = f"{other.name}/{SHARDS[0]}"
    assert tail(*command, "1", "--shard", of_one).exit_code == 0
    assert capfd.readouterr().out.split("\t")[1:] == [of_one, "me", "no\n"]


def test_json_has_an_object_for_each_record_also_of_an_aggregate(
    stream: Stream, capfd: pytest.CaptureFixture[str]
) -> None:
    stream.put(encode_aggregate([("a", b"1"), ("b", b"\xff")]))
    assert tail(stream.source, "--since", "earliest", "--max", "2", "--json").exit_code == 0
    first, second = map(json.loads, capfd.readouterr().out.splitlines())
    assert (first["key"], first["value"], first["sub_sequence_number"]) == ("a", "1", 0)
    assert (second["key"], second["value_base64"], second["sub_sequence_number"]) == (
        "b",
        "/w==",
        1,
    )
    assert second["sequence_number"] == first["sequence_number"]
    assert (first["stream"], first["shard"]) == (stream.name, SHARDS[0])


def test_max_counts_what_the_filter_lets_through(stream: Stream, shown: Any) -> None:
    stream.put(*(b"%d" % number for number in range(100)))
    command = [stream.source, "--since", "TRIM_HORIZON"]
    assert shown(*command, "--filter", "^.?7$", "--max", "4") == ["7", "17", "27", "37"]


def test_an_age_and_a_time_are_where_it_begins(stream: Stream, shown: Any) -> None:
    stream.put(b"old")
    assert shown(stream.source, "--since", "10m", "--max", "1") == ["old"]
    assert shown(stream.source, "--since", "30s", "--max", "1") == ["old"]
    between = datetime.now(UTC) + timedelta(milliseconds=2)
    while datetime.now(UTC) <= between:
        time.sleep(0.001)  # the service stamps a record by this clock
    stream.put(b"new")
    moment = between.isoformat().replace("+00:00", "Z")
    assert shown(stream.source, "--since", moment, "--max", "1") == ["new"]


def test_shards_that_replace_others_are_read_after_them(stream: Stream, shown: Any) -> None:
    stream.put(b"1", b"2")
    _, child = stream.server.split_shard(stream.name, SHARDS[0])
    stream.put(b"3", shard=SHARDS.index(child))
    assert shown(stream.source, "--since", "earliest", "--max", "3") == ["1", "2", "3"]


@pytest.mark.parametrize("name", ["0", SHARDS[0]])
def test_a_chosen_shard_is_read_with_its_children_and_no_other(
    stream: Stream, shown: Any, name: str
) -> None:
    stream.put(b"1")
    stream.put(b"no", shard=1)
    left, right = stream.server.split_shard(stream.name, SHARDS[0])
    stream.put(b"2", shard=SHARDS.index(left))
    # It has another parent, which was not chosen.
    merged = stream.server.merge_shards(stream.name, right, SHARDS[1])
    stream.put(b"3", shard=SHARDS.index(merged))
    before = stream.server.statistics().poll_calls
    command = [stream.source, "--since", "earliest", "--shard", name]
    assert sorted(shown(*command, "--max", "3")) == ["1", "2", "3"]
    calls = stream.server.statistics().poll_calls
    assert {shard for shard in calls if calls[shard] > before.get(shard, 0)} == {
        SHARDS[0],
        left,
        right,
        merged,
    }


def test_a_consumer_that_it_registers_is_gone_at_the_end_and_another_one_stays(
    stream: Stream, shown: Any
) -> None:
    stream.put(b"1")
    command = [stream.source, "--since", "earliest", "--max", "1", "--consumer"]
    assert shown(*command, "looks") == ["1"]
    assert stream.consumers() == []
    assert CliRunner().invoke(app, ["consumers", "register", stream.name, "stays"]).exit_code == 0
    assert shown(*command, "stays") == ["1"]
    assert stream.consumers() == ["stays"]


@contextmanager
def running(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(  # noqa: S603 - our own code
        [*FANOUT, "tail", *arguments],
        env=ENVIRONMENT | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def values(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().removesuffix("\n").split("\t")[3] for _ in range(count)]


def test_new_records_come_across_a_reshard_until_ctrl_c_ends_it_quietly(stream: Stream) -> None:
    stream.put(b"old")
    # The service says the time in whole seconds: the next one is after that record.
    second = datetime.now(UTC).replace(microsecond=0)
    while datetime.now(UTC) < second + timedelta(seconds=1):
        time.sleep(0.01)
    command = [stream.source, "--consumer", "looks"]
    with running(*command, **stream.server.environment) as process:
        while not stream.server.statistics().open_subscriptions:
            assert process.poll() is None
            time.sleep(0.01)
        stream.put(b"new")
        assert values(process, 1) == ["new"]
        left, _ = stream.server.split_shard(stream.name, SHARDS[0])
        stream.put(b"newer", shard=SHARDS.index(left))
        assert values(process, 1) == ["newer"]
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE) == ("", "")
    assert process.returncode == 130
    assert stream.consumers() == []
    assert stream.server.statistics().open_subscriptions == 0


@pytest.mark.long
def test_a_signal_ends_it_while_the_service_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
        command = ["kinesis://orders", "--endpoint-url", endpoint, "--region", "us-east-1"]
        with running(*command, **keys) as process, silent.accept()[0]:
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=PATIENCE) == ("", "")
    assert process.returncode == 130


@pytest.mark.long
def test_a_second_ctrl_c_ends_a_search_that_backtracks(stream: Stream) -> None:
    stream.put(b"found")
    command = [stream.source, "--since", "earliest", "--filter", "found|(a+)+$"]
    with running(*command, **stream.server.environment) as process:
        assert values(process, 1) == ["found"]
        own = psutil.Process(process.pid)
        stream.put(b"a" * 60 + b"b")
        for _ in range(2):
            # It searches, for years; the first one it notes meanwhile.
            eventually(lambda: own.cpu_percent(0.5) > 25)
            process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE) == ("", "")
    assert process.returncode == 130


@pytest.mark.long
@pytest.mark.parametrize("idle", [False, True], ids=["busy", "idle"])
def test_a_pipe_that_is_closed_ends_it_quietly(stream: Stream, *, idle: bool) -> None:
    # More than a pipe holds, or one record after which no other comes.
    stream.put(*[b"x" * 1000] * (1 if idle else 500))
    command = [stream.source, "--since", "earliest"]
    with running(*command, **stream.server.environment) as process:
        assert values(process, 1) == ["x" * 1000]
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(PATIENCE) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.long
def test_ctrl_c_ends_it_while_the_pipe_is_full(stream: Stream) -> None:
    stream.put(*[b"x" * 1000] * 500)
    command = [stream.source, "--since", "earliest"]
    with running(*command, **stream.server.environment) as process:
        assert process.stdout is not None
        waiting = 0
        while waiting < 60_000:  # of 64 KiB
            time.sleep(0.01)
            answer = fcntl.ioctl(process.stdout, termios.FIONREAD, bytes(4))
            waiting = int.from_bytes(answer, sys.byteorder)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.long
def test_a_terminal_gets_a_hint_and_colors(stream: Stream) -> None:
    ours, theirs = pty.openpty()
    environment = ENVIRONMENT | stream.server.environment | {"TERM": "xterm"}
    with (
        os.fdopen(ours, "rb", buffering=0) as terminal,
        subprocess.Popen(  # noqa: S603 - our own code
            [*FANOUT, "tail", stream.source],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        ) as process,
    ):
        os.close(theirs)
        try:
            shown = b""
            while b"value" not in shown:
                stream.put(b"value")
                shown += terminal.read(65536) if ready(terminal) else b""
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 130
        finally:
            process.kill()
    hint, line, *_ = shown.decode().splitlines()
    assert hint == (
        "fanout tail: waiting for new records; --since 10m shows earlier ones too, and Ctrl-C ends "
        "it"
    )
    # A terminal turns tabs into spaces.
    where = rf"\x1b\[2m[-0-9T:.]+Z\s+{SHARDS[0]}\x1b\[0m"
    assert re.fullmatch(rf"{where}\s+me\s+value", line), line


def test_colors_are_for_terminals_of_those_who_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert not StandardOutput().colored
    monkeypatch.setattr(os, "isatty", lambda _: True)
    assert StandardOutput().colored
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert not StandardOutput().colored


def ready(file: IO[Any]) -> bool:
    """Wait a moment until something can be read."""
    return bool(select.select([file], [], [], 0.1)[0])


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["orders"], "SOURCE 'orders' must be kinesis://STREAM or kafka://TOPIC"),
        (["kinesis://none"], "the stream 'none' cannot be described: "),
        (["kafka://orders"], "pass --bootstrap-servers, or set "),
        (
            ["kafka://orders", "--consumer", "looks"],
            "--consumer looks cannot be used with kafka://",
        ),
        (
            ["kafka://orders", "--bootstrap-servers", "127.0.0.1:1", "--connect-timeout", "0.2"],
            "the cluster cannot be reached: 127.0.0.1:1: ",
        ),
        (
            ["kafka://a,b", "--partition", "c-1", "--bootstrap-servers", "127.0.0.1:1"],
            "--shard c-1 must be a partition of a or b, such as 3 or a-3",
        ),
        (
            ["{stream}", "--shard", "7"],
            "--shard shardId-000000000007 is no shard of the stream, or has expired; it has ",
        ),
        (["{stream}", "--filter", "(lost"], "--filter '(lost' is no regular expression: missing )"),
        *(
            (
                ["{stream}", "--since", since],
                f"--since {since} must be an age such as 30s, 10m, 12h or 7d, a time with its zone",
            )
            for since in ("yesterday", "2026-11-22T08:00:00", "999999w", "10")
        ),
        *(
            (
                ["{stream}", "--since", since],
                f"--since {since} is before 1970; earliest shows all records",
            )
            for since in ("99999d", "1969-12-31T23:59:59Z")
        ),
        (
            ["{stream}", "--since", "2126-11-22T08:00:00Z"],
            "--since 2126-11-22T08:00:00Z is in the future; leave --since out for new records",
        ),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)
def test_what_is_wrong_is_one_sentence_in_words_of_the_options(
    stream: Stream, command: list[str], sentence: str
) -> None:
    result = tail(*(part.format(stream=stream.source) for part in command))
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.startswith(f"fanout tail: {sentence}"), result.stderr
    assert result.stderr.count("\n") == 1, result.stderr


@pytest.mark.long
def test_a_disk_that_is_full_is_one_sentence(stream: Stream) -> None:
    stream.put(b"1")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(  # noqa: S603 - our own code
            [*FANOUT, "tail", stream.source, "--since", "earliest"],
            env=ENVIRONMENT | stream.server.environment,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    sentence = "fanout tail: the records cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, sentence)


def test_an_output_that_is_closed_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # as Python does
    with pytest.raises(SetupError, match="there is no standard output to write to: it is closed"):
        StandardOutput()


@pytest.mark.long
def test_a_stream_that_is_deleted_ends_it_with_one_sentence(stream: Stream) -> None:
    with running(stream.source, "--since", "earliest", **stream.server.environment) as process:
        stream.put(b"1")
        assert values(process, 1) == ["1"]
        client = boto3.client("kinesis", **stream.server.client_options)
        client.delete_stream(StreamName=stream.name, EnforceConsumerDeletion=True)
        client.close()
        _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    # Warnings of the library may come before it.
    assert re.match(r"fanout tail: .*it was deleted", stderr.splitlines()[-1]), stderr
    assert "Traceback" not in stderr


@pytest.mark.long
def test_prometheus_reads_what_was_shown(stream: Stream) -> None:
    stream.put(b"1")
    opened = [stream.source, "--since", "earliest", "--metrics-port", "127.0.0.1:0"]
    with subprocess.Popen(  # noqa: S603 - our own code
        [*FANOUT, "tail", *opened],
        env=ENVIRONMENT | dict(stream.server.environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = process.stderr.readline()
        url = re.fullmatch(r"metrics are at (http://127\.0\.0\.1:\d+/metrics)\n", said)
        assert url is not None, said
        assert process.stdout.readline().endswith("\t1\n")
        with urllib.request.urlopen(url[1]) as answer:  # noqa: S310 - our own server's
            text = answer.read().decode()
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert re.search(r"^messaging_client_consumed_messages_total{.*} 1\.0$", text, re.MULTILINE)


@pytest.mark.parametrize("pattern", ["ünï", "\udcc3\udcbcn\udcc3\udcaf"])
def test_a_pattern_is_that_of_the_records_in_any_locale(pattern: str) -> None:
    """Python takes bytes of the command line for others where the locale is not UTF-8."""
    found = _searched(pattern)
    assert found is not None
    assert found.search("1 ünï")
