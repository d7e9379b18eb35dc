from __future__ import annotations

import json
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from typer.testing import CliRunner

from fanout.cli.app import app

if TYPE_CHECKING:
    from typer.testing import Result

    from fanout.testing.kinesis.server import KinesisServer


class Shell:
    """`fanout consumers`, against an embedded Kinesis that has the stream `orders`."""

    def __init__(self, server: KinesisServer) -> None:
        self.server = server
        self.arn = server.create_stream("orders", shards=2)

    def __call__(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, ["consumers", *arguments])

    def json(self, *arguments: str) -> Any:
        result = self(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout.splitlines()[-1])

    def names(self) -> list[str]:
        return [consumer["name"] for consumer in self.json("list", "orders")["consumers"]]


@pytest.fixture
def shell(
    kinesis_server: KinesisServer,
    monkeypatch: pytest.MonkeyPatch,
    aws: None,  # noqa: ARG001 - used for what it does
) -> Shell:
    for name, value in kinesis_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "200")
    return Shell(kinesis_server)


def test_a_registered_consumer_is_active_and_listed(shell: Shell) -> None:
    answer = shell.json("register", "orders", "etl")
    assert answer["registered"] is True
    (consumer,) = answer["consumers"]
    assert consumer["status"] == "ACTIVE"
    assert consumer["arn"].startswith(f"{shell.arn}/consumer/etl:")
    assert shell.json("list", "orders") == {"stream": "orders", "consumers": [consumer]}


def test_a_consumer_of_another_accounts_stream_is_left_alone(shell: Shell) -> None:
    theirs = f"{shell.arn.replace('123456789012', '222222222222')}/consumer/etl:1"
    result = shell("deregister", "orders", theirs, "--yes")
    assert result.exit_code != 0
    assert f"{theirs} is no consumer of {shell.arn}" in result.stderr


def test_registering_a_consumer_that_exists_changes_nothing(shell: Shell) -> None:
    first = shell.json("register", "orders", "etl")
    second = shell.json("register", "orders", "etl")
    assert second == first | {"registered": False}


def test_the_oldest_consumer_is_listed_first(shell: Shell) -> None:
    for name in ("b", "a", "c"):
        shell.json("register", "orders", name)
    assert shell.names() == ["b", "a", "c"]


def test_a_table_has_all_of_the_arn_however_narrow_it_is(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    (consumer,) = shell.json("register", "orders", "etl")["consumers"]
    assert consumer["arn"] in shell("list", "orders").stdout
    monkeypatch.setenv("COLUMNS", "100")
    assert "…" not in shell("list", "orders").stdout


@pytest.mark.long
@pytest.mark.parametrize("command", [["deregister", "orders", "etl"], ["gc", "orders"]])
def test_what_deletes_only_says_so_at_first(shell: Shell, command: list[str]) -> None:
    shell.json("register", "orders", "etl")
    age(shell, timedelta(days=8))
    older = ["--older-than", "7d"] if command[0] == "gc" else []
    result = shell(*command, *older)
    assert result.exit_code == 0
    assert "1 of 1 would be deregistered; pass --yes to do it" in result.stdout
    assert shell.json(*command, *older)["dry_run"] is True
    assert shell.names() == ["etl"]
    assert [each["name"] for each in shell.json(*command, *older, "--yes")["consumers"]] == ["etl"]
    assert shell.names() == []


def age(shell: Shell, by: timedelta) -> None:
    """Have the consumers been registered longer ago."""
    for consumer in shell.server._stream("orders").consumers:
        consumer.created -= by


def test_gc_spares_what_is_younger(shell: Shell) -> None:
    shell.json("register", "orders", "old")
    age(shell, timedelta(hours=3))
    shell.json("register", "orders", "young")
    answer = shell.json("gc", "orders", "--older-than", "2h", "--yes")
    assert [each["name"] for each in answer["consumers"]] == ["old"]
    assert shell.names() == ["young"]


def test_a_consumer_that_is_being_deleted_is_neither_deleted_nor_paid_for(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fanout.testing.kinesis.consumers import Consumer  # noqa: PLC0415 - loaded with the server

    shell.json("register", "orders", "etl")
    age(shell, timedelta(hours=3))
    monkeypatch.setattr(Consumer, "status", "DELETING")
    assert shell.json("gc", "orders", "--older-than", "2h")["consumers"] == []
    assert shell.json("cost", "orders")["consumers"] == 0


def test_a_deletion_that_fails_is_named_and_exits_with_1(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moto.core.exceptions import JsonRESTError  # noqa: PLC0415 - loaded with the server

    from fanout.testing.kinesis.moto_backend import Backend  # noqa: PLC0415 - loaded with the server

    deregister = Backend.deregister_stream_consumer

    def refuse_one(backend: Backend, *named: str | None, **more: Any) -> None:
        if "/a:" in str(more["consumer_arn"]):
            raise JsonRESTError("AccessDeniedException", "no")
        deregister(backend, *named, **more)

    for name in ("a", "b"):
        shell.json("register", "orders", name)
    age(shell, timedelta(hours=3))
    monkeypatch.setattr(Backend, "deregister_stream_consumer", refuse_one)
    result = shell("gc", "orders", "--older-than", "2h", "--yes", "--json")
    answer = json.loads(result.stdout.splitlines()[-1])
    assert result.exit_code == 1
    assert [each["name"] for each in answer["consumers"]] == ["b"]
    assert list(answer["failed"]) == ["a"]
    assert result.stderr.startswith("fanout consumers: the consumer arn:")
    assert shell.names() == ["a"]


def test_cost_counts_consumers_open_shards_and_gigabytes(shell: Shell) -> None:
    for name in ("a", "b"):
        shell.json("register", "orders", name)
    shell.server.split_shard("orders", "shardId-000000000000")
    answer = shell.json("cost", "orders", "--gb-per-month", "1000")
    assert answer == {
        "stream": "orders",
        "consumers": 2,
        "shards": 3,
        "shard_hour_price": 0.015,
        "gb_price": 0.013,
        "gb_per_month": 1000.0,
        "per_consumer": 45.85,  # 3 x 730 x 0.015 + 1000 x 0.013
        "total": 91.7,
    }


def test_cost_of_a_stream_in_on_demand_mode_is_that_of_its_gigabytes(shell: Shell) -> None:
    with closing(boto3.client("kinesis", **shell.server.client_options)) as kinesis:
        arn = kinesis.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"][
            "StreamARN"
        ]
        kinesis.update_stream_mode(StreamARN=arn, StreamModeDetails={"StreamMode": "ON_DEMAND"})
    shell.json("register", "orders", "a")
    answer = shell.json("cost", "orders", "--gb-per-month", "1000")
    assert (answer["shard_hour_price"], answer["gb_price"]) == (0.0, 0.05)
    assert answer["total"] == 50.0
    assert shell.json("cost", "orders", "--gb-price", "1")["gb_price"] == 1.0


def test_cost_takes_the_prices_of_another_region(shell: Shell) -> None:
    prices = ["--shard-hour-price", "0.02", "--gb-price", "0.5", "--gb-per-month", "10"]
    answer = shell.json("cost", "orders", *prices)
    assert (answer["per_consumer"], answer["total"]) == (34.2, 0.0)
    assert "$34.20" in shell("cost", "orders", *prices).stdout


@pytest.mark.parametrize("figure", ["--gb-per-month", "--gb-price", "--shard-hour-price"])
def test_a_cost_without_end_exits_with_2(shell: Shell, figure: str) -> None:
    assert shell("cost", "orders", figure, "inf").exit_code == 2


def test_where_there_is_no_consumer_a_sentence_says_so(shell: Shell) -> None:
    assert shell("list", "orders").stdout == "orders has no consumers\n"
    assert (
        shell("gc", "orders", "--older-than", "1d").stdout == "orders has no consumer of that age\n"
    )


@pytest.mark.long
def test_a_consumer_is_registered_and_deregistered_by_its_arn_as_well(shell: Shell) -> None:
    (consumer,) = shell.json("register", "orders", "etl")["consumers"]
    assert shell.json("register", "orders", consumer["arn"])["consumers"] == [consumer]
    assert shell.json("deregister", "orders", consumer["arn"], "--yes")["consumers"] == [consumer]
    assert shell.names() == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["list", "payments"], "the stream 'payments' cannot be described"),
        (["deregister", "orders", "etl"], "orders has no consumer 'etl'; `fanout consumers list`"),
        (["list", "a b"], "STREAM 'a b' is neither a stream's name"),
        (["register", "orders", "a/b"], "CONSUMER 'a/b' is neither a consumer's name"),
        (["list", "orders", "--endpoint-url", "http://10.0.0.1"], "http"),
    ],
    ids=" ".join,
)
def test_an_error_is_one_line_on_stderr_and_exits_with_2(
    shell: Shell, arguments: list[str], sentence: str
) -> None:
    result = shell(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("fanout consumers: ")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("text", ["7", "d", "-1d", "1.5h", "9999999d", "7 d", ""])
def test_an_age_that_is_none_exits_with_2(shell: Shell, text: str) -> None:
    result = shell("gc", "orders", "--older-than", text)
    assert result.exit_code == 2
    assert "is not an age such as" in result.stderr
