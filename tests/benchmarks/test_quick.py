"""What the command line chooses, with scenarios that measure nothing."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks import __main__ as cli
from benchmarks.harness import Report

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Return what was run, for a command line."""
    ran: list[str] = []

    def measured(name: str, rounds: int = 0) -> Report:
        ran.append(f"{name} {rounds or 'quick'}")
        return Report(scenario=name, rows=[], ratios={}, machine={})

    fakes = {
        name: {
            source: cli.Scenario(
                partial(measured, f"{name}/{source}"), partial(measured, f"{name}/{source}")
            )
            for source in sources
        }
        for name, sources in cli.SCENARIOS.items()
    }
    monkeypatch.setattr(cli, "SCENARIOS", fakes)

    def command(*arguments: str) -> list[str]:
        ran.clear()
        cli.main(arguments)
        capsys.readouterr()
        return list(ran)

    return command


def test_a_quick_run_is_one_of_everything(run: Callable[..., list[str]]) -> None:
    every = [f"{name}/{source} quick" for name in cli.SCENARIOS for source in cli.SCENARIOS[name]]
    assert run("--quick") == every
    assert len(every) == 21


def test_a_quick_run_may_be_of_one_source_or_scenario(run: Callable[..., list[str]]) -> None:
    assert run("--quick", "--source", "kafka-share") == ["consume/kafka-share quick"]
    assert run("--quick", "spark") == ["spark/kinesis quick", "spark/kafka quick"]
    assert run("--quick", "spark", "--source", "kafka") == ["spark/kafka quick"]


def test_all_sources_are_measured_if_asked_for(run: Callable[..., list[str]]) -> None:
    every = [f"{name}/{source} 5" for name in cli.SCENARIOS for source in cli.SCENARIOS[name]]
    assert run("--source", "all") == every
    assert run("spark", "--source", "all") == ["spark/kinesis 5", "spark/kafka 5"]
    assert run("sink", "--source", "all") == ["sink/kafka 5"]


def test_make_bench_measures_everything(run: Callable[..., list[str]]) -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    (arguments,) = re.findall(r"^\t\$\(BIN\)/python -m benchmarks (.*)$", makefile, re.MULTILINE)
    assert len(run(*arguments.split())) == sum(map(len, cli.SCENARIOS.values()))


def test_without_arguments_all_that_reads_kinesis_is_run(run: Callable[..., list[str]]) -> None:
    names = ["decode", "consume", "land", "latency", "scale", "server", "spark"]
    assert run() == [f"{name}/kinesis 5" for name in names]
    assert run("consume", "sink", "--rounds", "2") == ["consume/kinesis 2", "sink/kafka 2"]


def test_a_scenario_without_the_source_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["sink", "--source", "kinesis"])
    assert "sink: not with --source kinesis" in capsys.readouterr().err


def test_a_scenario_that_fails_stops_no_other_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def offline() -> Report:
        raise ChildProcessError("the jars cannot be fetched")

    def measured() -> Report:
        return Report(scenario="measured", rows=[], ratios={}, machine={})

    fakes = {
        "spark": {
            "kinesis": cli.Scenario(lambda _: measured(), offline),
            "kafka": cli.Scenario(lambda _: measured(), measured),
        }
    }
    monkeypatch.setattr(cli, "SCENARIOS", fakes)
    with pytest.raises(SystemExit) as ended:
        cli.main(["--quick", "--json"])
    assert ended.value.code == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out.splitlines()[-1])["scenario"] == "measured"
    assert "spark of kinesis has failed: the jars cannot be fetched" in printed.err
