from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from fanout.errors import SetupError
from fanout.testing.trials.oracle import OutputVerdict
from tests.provers.__main__ import app
from tests.provers.crash.moments import Pipeline, Sink
from tests.provers.crash.plan import CampaignFailedError, CrashOptions
from tests.provers.crash.report import CrashReport

if TYPE_CHECKING:
    from typer.testing import Result

GOOD = OutputVerdict(produced=1, read=1, lost=0, duplicated=0, altered=0, out_of_order=0)


def report(**counts: int) -> CrashReport:
    verdict = OutputVerdict(
        **{name: getattr(GOOD, name) for name in GOOD.__struct_fields__} | counts
    )
    return CrashReport(
        seed=1, rounds=(), verdicts={Pipeline.KAFKA: verdict}, open_transactions=0, seconds=1.0
    )


def crash(monkeypatch: pytest.MonkeyPatch, outcome: Any, *arguments: str) -> tuple[Result, Any]:
    """Run the command with a campaign that comes to what is wanted; return what it was asked."""
    asked: list[CrashOptions] = []

    def run_campaign(options: CrashOptions, *, on_round: object) -> CrashReport:
        del on_round
        asked.append(options)
        if isinstance(outcome, BaseException):
            raise outcome
        assert isinstance(outcome, CrashReport)
        return outcome

    monkeypatch.setattr("tests.provers.crash.campaign.run_campaign", run_campaign)
    result = CliRunner().invoke(app, ["crash", *arguments])
    return result, asked[0] if asked else None


def test_the_options_are_those_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    _, asked = crash(monkeypatch, report(), "--rounds", "3", "--seed", "9", "--pipeline", "kafka")
    assert asked == CrashOptions(rounds=3, seed=9, pipelines=(Pipeline.KAFKA,))
    _, asked = crash(monkeypatch, report())
    assert asked == CrashOptions()
    _, asked = crash(monkeypatch, report(), "--sink", "delta")
    assert asked == CrashOptions(sink=Sink.DELTA, pipelines=(Pipeline.KINESIS,))


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (report(), 0),
        (report(duplicated=1), 1),
        (CampaignFailedError("the job never got under way"), 1),
        (SetupError("no Java found"), 2),
        (KeyboardInterrupt(), 130),
    ],
)
def test_the_exit_code_says_what_it_came_to(
    monkeypatch: pytest.MonkeyPatch, outcome: Any, code: int
) -> None:
    result, _ = crash(monkeypatch, outcome)
    assert result.exit_code == code


def test_the_last_line_of_json_is_one_object(monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = crash(monkeypatch, report(lost=2), "--json")
    assert result.stdout.splitlines() == [report(lost=2).to_json()]


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tests.provers.crash.command.find_spec", lambda name: None if name == "moto" else name
    )
    result, asked = crash(monkeypatch, report())
    assert (result.exit_code, asked) == (2, None)
    assert "pip install 'fanout-streams[testing]'" in result.stderr
