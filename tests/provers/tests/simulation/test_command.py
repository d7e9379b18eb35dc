from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from tests.provers.__main__ import app
from tests.provers.planted.hunt import planted
from tests.provers.planted.kafka_bugs import KAFKA_BUGS
from tests.provers.simulation.campaign.failures import FailureKind, RunFailure
from tests.provers.simulation.campaign.replay import replay
from tests.provers.simulation.kafka.plan_draws import draw_kafka_plan
from tests.provers.simulation.kinesis.plan_draws import draw_kinesis_plan
from tests.provers.simulation.landers.plan import draw_landers_plan
from tests.provers.simulation.plans import read_plan
from tests.provers.tests.simulation.planted_defect import SHOWING, begin_again

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typer.testing import Result

HERE = ["sim", "run", "--processes", "0"]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("tests.provers.simulation.command._UNASKED", 1.0)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def row(name: str, text: str) -> list[str]:
    """Return the cells behind a name in a table."""
    found = re.search(rf"^│ {name} +│(.*)│$", text, re.MULTILINE)
    assert found is not None, name
    return [cell.strip() for cell in found[1].split("│")]


def test_a_run_that_finds_nothing_says_so_for_each_promise_and_exits_with_0() -> None:
    result = run(*HERE, "--seeds", "3", "--first", "5")

    assert result.exit_code == 0, result.output
    assert row("seeds", result.stdout)[0] == "3"
    for promise in ("lost", "duplicated", "out of order", "altered", "leaked", "stuck"):
        assert row(promise, result.stdout) == ["0", "✓"]
    assert result.stderr == ""


def test_what_goes_wrong_on_purpose_is_not_logged_to_the_terminal() -> None:
    code = "from tests.provers.__main__ import app; app()"
    done = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", code, *HERE, "--seeds", "5", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_json_is_one_object_and_nothing_else() -> None:
    result = run(*HERE, "--seeds", "3", "--first", "5", "--json")

    assert (result.exit_code, result.stderr, result.stdout.count("\n")) == (0, "", 1)
    answer = json.loads(result.stdout)
    assert (answer["first"], answer["seeds"], answer["failed"]) == (5, 3, [])
    assert answer["failures"] == dict.fromkeys(map(str, FailureKind), 0)
    assert answer["records"] > 0
    assert answer["smallest_plan"] is None


def test_a_defect_is_counted_named_and_shrunk_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin_again(monkeypatch)

    result = run(*HERE, "--seeds", "8", "--json")

    assert result.exit_code == 1, result.output
    answer = json.loads(result.stdout)
    first = answer["failed"][0]
    assert answer["failures"][first["kind"]] > 0
    smallest = read_plan(json.dumps(answer["smallest_plan"]))
    assert len(smallest.faults) < len(draw_kinesis_plan(first["seed"]).faults)
    again = replay(smallest).failure
    assert again is not None
    assert again.kind == first["kind"]
    assert first["replay"] == f"python -m tests.provers sim replay {first['seed']}"


def test_the_table_names_what_failed_and_how_to_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def hanging(seeds: range, **_: object) -> Iterator[RunFailure]:
        for seed in seeds:
            yield RunFailure(seed, FailureKind.HUNG, "hung: it ran for more than 60 s")

    monkeypatch.setattr("tests.provers.simulation.campaign.campaign.run_campaign", hanging)
    result = run(*HERE, "--seeds", "8")

    assert result.exit_code == 1
    assert row("hung", result.stdout) == ["8", "✗ seed 0, 1, 2, 3, 4 and 3 more"]
    assert row("lost", result.stdout) == ["0", "✓"]
    assert (
        "python -m tests.provers sim replay 3  # hung: it ran for more than 60 s\n" in result.stdout
    )


def test_ctrl_c_shows_what_was_found_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> Iterator[RunFailure]:
        yield RunFailure(4, FailureKind.HUNG, "hung")
        raise KeyboardInterrupt

    monkeypatch.setattr("tests.provers.simulation.campaign.campaign.run_campaign", interrupted)
    assert (run("sim", "run").exit_code, row("hung", run("sim", "run").stdout)[0]) == (1, "1")


def test_ctrl_c_before_anything_was_found_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> Iterator[RunFailure]:
        yield from ()
        raise KeyboardInterrupt

    monkeypatch.setattr("tests.provers.simulation.campaign.campaign.run_campaign", interrupted)
    result = run("sim", "run")
    assert (result.exit_code, row("seeds", result.stdout)[0]) == (130, "0")


def test_a_replay_shows_the_plan_what_happened_and_when() -> None:
    plan = draw_kinesis_plan(8)

    result = run("sim", "replay", "8")

    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("KinesisPlan(seed=8,")
    assert f"  {plan.faults[0]}" in lines
    assert "       0.000  process 1 starts" in lines
    assert any(" got " in line for line in lines)
    assert any(" log: resubscribing to shardId-" in line for line in lines)
    assert lines[-1] == "every promise was kept"


def test_a_replay_runs_what_the_campaign_ran() -> None:
    answer = json.loads(run("sim", "replay", "8", "--json").stdout)

    assert answer["digest"] == replay(draw_kinesis_plan(8)).digest
    assert read_plan(json.dumps(answer["plan"])) == draw_kinesis_plan(8)
    assert answer["failure"] is None
    assert answer["trace"][0] == "       0.000  process 1 starts"


@pytest.fixture
def showing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Plant a defect, and write down a plan that shows it."""
    begin_again(monkeypatch)
    path = tmp_path / "plan.json"
    path.write_text(SHOWING.to_json())
    return path


def test_a_replay_that_fails_says_why_and_exits_with_1(showing: Path) -> None:
    result = run("sim", "replay", "--plan", str(showing))

    assert result.exit_code == 1, result.output
    assert result.stdout.splitlines()[-1].startswith("OracleError: ")
    answer = json.loads(run("sim", "replay", "--plan", str(showing), "--json").stdout)
    assert answer["failure"]["error"] == result.stdout.splitlines()[-1]


def test_a_shrunk_plan_is_printed_as_json_that_can_be_replayed(showing: Path) -> None:
    result = run("sim", "replay", "--plan", str(showing), "--shrink")

    assert result.exit_code == 1, result.output
    document, _ = json.JSONDecoder().raw_decode(result.stdout)
    assert len(document["faults"]) == 1
    showing.write_text(json.dumps(document))
    again = run("sim", "replay", "--plan", str(showing))
    assert again.stdout.splitlines()[-1] == result.stdout.splitlines()[-1]


def test_what_does_not_fail_is_not_shrunk() -> None:
    result = run("sim", "replay", "8", "--shrink")

    assert result.exit_code == 0
    assert json.JSONDecoder().raw_decode(result.stdout)[0] == json.loads(
        draw_kinesis_plan(8).to_json()
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["replay"], "name a seed, or a plan with --plan FILE"),
        (["replay", "7", "--plan", "here.json"], "name a seed, or a plan with --plan FILE"),
        (["replay", "--plan", "/nowhere.json"], "/nowhere.json cannot be read: No such file or"),
        (["replay", "--plan", "/dev/null"], "this is not a plan of a simulation: "),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_replayed_is_one_line_on_stderr_and_exits_with_2(
    arguments: list[str], complaint: str
) -> None:
    result = run("sim", *arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"python -m tests.provers sim: {complaint}")
    assert result.stderr.count("\n") == 1


def test_seeds_over_kafka_are_run_and_replayed() -> None:
    campaign = run(*HERE, "--source", "kafka", "--seeds", "3", "--json")
    one = run("sim", "replay", "7", "--source", "kafka", "--json")

    assert (campaign.exit_code, one.exit_code) == (0, 0)
    assert json.loads(campaign.stdout)["calls"].keys() >= {"Fetch", "Metadata"}
    assert json.loads(one.stdout)["plan"] == json.loads(draw_kafka_plan(7).to_json())


def test_seeds_of_landers_are_run_and_replayed(tmp_path: Path) -> None:
    campaign = run(*HERE, "--source", "landers", "--seeds", "3", "--json")
    one = run("sim", "replay", "7", "--source", "landers", "--json")
    kept = tmp_path / "plan.json"
    kept.write_text(draw_landers_plan(7).to_json())
    again = run("sim", "replay", "--plan", str(kept), "--json")

    assert (campaign.exit_code, one.exit_code, again.exit_code) == (0, 0, 0)
    assert json.loads(campaign.stdout)["calls"].keys() == {"attempts of landers"}
    assert json.loads(one.stdout)["plan"] == json.loads(draw_landers_plan(7).to_json())
    assert json.loads(again.stdout)["digest"] == json.loads(one.stdout)["digest"]


def test_a_failure_over_kafka_names_the_command_that_shows_it() -> None:
    with planted(KAFKA_BUGS["aborted records are delivered"]):
        result = run(*HERE, "--source", "kafka", "--seeds", "1", "--first", "89")

    assert result.exit_code == 1
    assert (
        "python -m tests.provers sim replay 89 --source kafka  # OracleError: broke a rule: "
        in result.stdout
    )


@pytest.mark.parametrize("option", ["--seeds=0", "--first=-1", "--processes=-1", "--fast"])
def test_a_bad_option_exits_with_2(option: str) -> None:
    result = run("sim", "run", option)

    assert (result.exit_code, result.stdout) == (2, "")


def test_without_the_extra_one_sentence_names_it_and_help_works() -> None:
    code = (
        "import sys; sys.modules['aioboto3'] = None\n"
        "from typer.testing import CliRunner; from tests.provers.__main__ import app\n"
        "assert CliRunner().invoke(app, ['sim', 'run', '--help']).exit_code == 0\n"
        "for command in (['run'], ['replay', '7']):\n"
        "    result = CliRunner().invoke(app, ['sim', *command])\n"
        "    print(result.exit_code, result.output)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 - our own code
    expected = (
        "2 python -m tests.provers sim: "
        "the simulator needs more: pip install 'fanout-streams[testing]'\n\n"
    )
    assert done.stdout == expected * 2
