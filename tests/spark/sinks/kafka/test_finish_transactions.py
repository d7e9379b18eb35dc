"""Finish the transactions of a killed driver with `fanout transactions`, and start the next."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from fanout.cli.app import app
from fanout.kafka.transactions.transactions import Transactions
from fanout.spark.sinks.kafka.transaction import ExactlyOnce
from tests.spark.sinks.kafka.harness import Output, run
from tests.spark.sinks.kafka.test_transaction import FIRST, SECOND, KilledError, Sink, kill

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from fanout.testing.kafka.broker import KafkaBroker

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.fixture
def output(kafka_broker: KafkaBroker) -> Output:
    return Output(kafka_broker)


def transactions(output: Output, checkpoint: Path, *arguments: str, code: int = 0) -> Any:
    where = ["--checkpoint", str(checkpoint)]
    servers = ["--bootstrap-servers", output.broker.bootstrap_servers]
    command = ["transactions", *arguments, *where, *servers, "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == code, result.output
    return json.loads(result.stdout.splitlines()[-1]) if code < 2 else result.stderr


@pytest.mark.fault("A dead job cannot be started for now")
@pytest.mark.parametrize("place", ["commit", "mark"], ids=["recorded", "not recorded"])
@pytest.mark.parametrize("verb", ["commit", "abort"])
def test_a_killed_driver(
    spark: SparkSession, output: Output, tmp_path: Path, place: str, verb: str
) -> None:
    root = tmp_path / "fanout"
    with run(spark, root) as here, pytest.MonkeyPatch.context() as patch:
        sink = Sink(output, here)
        sink.write(0, *FIRST)
        patch.setattr(ExactlyOnce, "_abort", lambda *_: None)  # the dead do not clean up
        patch.setattr(Transactions, place, kill)
        with pytest.raises(KilledError):
            sink.write(1, *SECOND)
        patch.undo()
        assert transactions(output, tmp_path, "list", code=1)["running"] is True
        refusal = transactions(output, tmp_path, verb, "--yes", code=2)
        assert "is still running; stop it first" in refusal
        assert "application" in refusal
    (found,) = transactions(output, tmp_path, "list", code=1)["transactions"]
    recorded = place == "commit"
    assert found["stands"] == ("can be committed" if recorded else "open, not recorded")
    impossible = verb == "commit" and not recorded
    transactions(output, tmp_path, verb, "--yes", code=1 if impossible else 0)
    committed = verb == "commit" and recorded
    transactions(output, tmp_path, "list", code=1 if impossible else 0)
    assert output.values() == sorted(FIRST + SECOND * committed)
    with run(spark, root) as here:
        sink = Sink(output, here)
        sink.batch(1).recover()
        sink.write(1, *SECOND)
        assert len(sink.modes) == 1 - committed
        sink.write(2, *FIRST)
    assert output.values() == sorted(FIRST * 2 + SECOND)
    assert transactions(output, tmp_path, "list")["open"] is False
