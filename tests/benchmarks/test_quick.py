"""What the command line chooses, with scenarios that measure nothing."""

from __future__ import annotations

import json
import re
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, final

import pytest

from benchmarks import __main__ as cli
from benchmarks import turns
from benchmarks.harness import Report
from benchmarks.spark_contender import compare, reason, started
from benchmarks.turns import OutOfTimeError, TimeLimit, limited, take_turns

if TYPE_CHECKING:
    from collections.abc import Callable


@final
class Clock:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def go_on(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of what is measured."""
    made = Clock()
    monkeypatch.setattr(cli, "time", made)
    monkeypatch.setattr(turns, "time", made)
    return made


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
    assert len(every) == 22


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
    (arguments,) = re.findall(r"^\t\$\(BIN\)/python -m benchmarks (--.*)$", makefile, re.MULTILINE)
    every = [f"{name}/{source}" for name in cli.SCENARIOS for source in cli.SCENARIOS[name]]
    looks = [f"{name} quick" for name in every] + [f"{name} 5" for name in every]
    assert run(*arguments.split()) == looks


def test_without_arguments_all_that_reads_kinesis_is_run(run: Callable[..., list[str]]) -> None:
    names = ["decode", "consume", "land", "scale", "server", "shards", "latency", "spark"]
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


def test_what_is_not_here_is_one_line_without_a_stack(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def offline() -> Report:
        raise ChildProcessError("its jars are not to be had: org.apache.spark:kafka:4.3.0")

    scenario = cli.Scenario(lambda _: offline(), offline)
    monkeypatch.setattr(cli, "SCENARIOS", {"spark": {"kafka": scenario}})
    with pytest.raises(SystemExit):
        cli.main(["--quick"])
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "jars" in line] == [
        "spark of kafka has failed: its jars are not to be had: org.apache.spark:kafka:4.3.0"
    ]
    assert "Traceback" not in "".join(lines)


def test_what_does_not_fit_into_the_time_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    ran: list[str] = []
    begun: list[str] = []

    def measured(name: str) -> Report:
        begun.append(name)
        take_turns(name, {"us": partial(ran.append, name)}, 5)
        return Report(scenario=name, rows=[], ratios={}, machine={})

    def slow() -> Report:
        clock.go_on(61)
        return measured("slow")

    fakes = {
        "slow": {"kinesis": cli.Scenario(lambda _: slow(), slow)},
        "late": {"kinesis": cli.Scenario(lambda _: measured("late"), partial(measured, "late"))},
    }
    monkeypatch.setattr(cli, "SCENARIOS", fakes)
    cli.main(["--quick", "--minutes", "1"])
    assert ran == []
    assert begun == ["slow"]
    told = capsys.readouterr().err
    assert "slow of kinesis is left out: the time is over" in told
    assert "late of kinesis is left out: the time is over" in told


def test_what_does_not_fit_has_its_quick_look(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    def measured(name: str, seconds: float) -> Report:
        take_turns(name, {"us": partial(clock.go_on, seconds)}, 1)
        return Report(scenario=name, rows=[], ratios={name: seconds}, machine={})

    def whole(name: str) -> Callable[[int], Report]:
        return lambda _: measured(name, 61)

    fakes = {
        name: {"kinesis": cli.Scenario(whole(name), partial(measured, name, 0))}
        for name in ("one", "two")
    }
    monkeypatch.setattr(cli, "SCENARIOS", fakes)
    cli.main(["--minutes", "1", "--json"])
    printed = capsys.readouterr()
    reports = [json.loads(line) for line in printed.out.splitlines() if line.startswith("{")]
    assert [one["ratios"] for one in reports] == [{"one": 0}, {"two": 0}, {"one": 61}]
    assert "two of kinesis has its quick look alone: the time is over" in printed.err


def test_each_scenario_has_a_look_however_long_these_take(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    def measured(name: str, *_: int) -> Report:
        take_turns(name, {"us": partial(clock.go_on, 200)}, 1)
        return Report(scenario=name, rows=[], ratios={name: 1}, machine={})

    names = ["one", "two", "three", "four"]
    fakes = {
        name: {"kinesis": cli.Scenario(partial(measured, name), partial(measured, name))}
        for name in names
    }
    monkeypatch.setattr(cli, "SCENARIOS", fakes)
    cli.main(["--minutes", "14", "--json"])
    printed = capsys.readouterr()
    reports = [json.loads(line) for line in printed.out.splitlines() if line.startswith("{")]
    assert [[*one["ratios"]] for one in reports] == [[name] for name in [*names, "one"]]
    assert "is left out" not in printed.err


def test_an_ivy_report_becomes_one_line() -> None:
    log = """
    :: problems summary ::
    :::: WARNINGS
        ::          UNRESOLVED DEPENDENCIES         ::
        :: org.apache.spark#spark-sql-kafka-0-10_2.13;4.3.0: not found
Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: \
org.apache.spark#spark-sql-kafka-0-10_2.13;4.3.0: not found]
        at org.apache.spark.util.MavenUtils$.resolveMavenCoordinates(MavenUtils.scala:468)
""".replace("\\\n", "")
    assert reason(log) == (
        "its jars are not to be had: org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0"
    )
    assert reason("one\nValueError: two\n\n") == "ValueError: two"


def test_the_end_of_the_log_of_a_job_that_dies_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "dying_job.py").write_text(
        "print('warm', flush=True)\ninput()\nraise ValueError('no memory')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with started("dying_job", []) as run:
        for _ in range(2):
            with pytest.raises(ChildProcessError, match="ValueError: no memory"):
                run(1)


def test_no_job_of_spark_starts_when_the_time_is_over() -> None:
    over = TimeLimit(time.monotonic() - 1, time.monotonic() - 1)
    with limited(over), pytest.raises(OutOfTimeError):
        compare("kafka", "nowhere", 1, record_bytes=1, records={"no job": 10}, rounds=1)
