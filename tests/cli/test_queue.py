from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from tests.support.kinesis.queue import QUEUE, STREAM, EmbeddedWork

if TYPE_CHECKING:
    from collections.abc import Iterator


class Shell:
    """`fanout queue`, against an embedded queue."""

    def __init__(self, work: EmbeddedWork) -> None:
        self.work = work

    def run(self, command: str, *arguments: str) -> Any:
        return CliRunner().invoke(app, ["queue", command, STREAM, QUEUE, *arguments])

    def json(self, command: str, *arguments: str) -> Any:
        result = self.run(command, *arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture
def shell(
    monkeypatch: pytest.MonkeyPatch,
    aws: None,  # noqa: ARG001 - used for what it does
) -> Iterator[Shell]:
    dead = {"TargetType": "BUILT_IN", "MaxReceiveCount": 1}
    with EmbeddedWork(DeadLetterConfiguration=dead) as work:
        for name, value in work.server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("TERM", "dumb")
        monkeypatch.setenv("COLUMNS", "200")
        yield Shell(work)


def test_a_queue_is_described(shell: Shell) -> None:
    found = shell.json("describe")["queue"]
    assert (found["name"], found["status"], found["max_receive_count"]) == (QUEUE, "ACTIVE", 1)
    assert "visibility_timeout" in shell.run("describe").stdout


def test_dead_letters_are_listed_and_restored(shell: Shell) -> None:
    work = shell.work
    work.put(range(12))
    while work.receive():
        pass
    letters = shell.json("dead-letters")["dead_letters"]
    assert len(letters) == 12
    assert "partition key" in shell.run("dead-letters").stdout
    first = letters[0]["record_id"]
    assert len(shell.json("restore", first)["would_restore"]) == 1
    assert len(shell.json("dead-letters")["dead_letters"]) == 12
    assert len(shell.json("restore", first, "--yes")["restored"]) == 1
    (again,) = work.receive()
    assert again["RecordId"] == first
    answer = shell.json("restore", "--yes")
    assert (len(answer["restored"]), answer["failed"]) == (12, 0)
    assert shell.json("dead-letters")["dead_letters"] == []


@pytest.mark.usefixtures("shell")
def test_a_queue_that_is_not_there_is_an_error() -> None:
    result = CliRunner().invoke(app, ["queue", "describe", STREAM, "other"])
    assert result.exit_code == 2
    assert "has no queue 'other'" in result.output
