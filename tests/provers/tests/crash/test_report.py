from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from rich.console import Console

from fanout.testing.trials.oracle import OutputVerdict
from tests.provers.crash.moments import CrashMoment, Pipeline, Strike, StrikeKind
from tests.provers.crash.report import (
    CrashReport,
    RoundResult,
    Struck,
    moments_table,
    round_line,
    verdicts_table,
)

GOOD = OutputVerdict(produced=10, read=10, lost=0, duplicated=0, altered=0, out_of_order=0)
KILL = Strike(CrashMoment.BEFORE_END, StrikeKind.KILL_DRIVER, Pipeline.KAFKA)
PAUSE = Strike(CrashMoment.RANDOM, StrikeKind.PAUSE_BROKER, Pipeline.KINESIS)


def result(*strikes: Strike, **options: Any) -> RoundResult:
    struck = tuple(Struck(each, reached=options.pop("reached", True)) for each in strikes)
    known: dict[str, Any] = {"number": 1, "struck": struck, "failures": (), "caught_up": 2.0}
    return RoundResult(**known | options)


def report(*rounds: RoundResult, **options: Any) -> CrashReport:
    known: dict[str, Any] = {
        "seed": 7,
        "rounds": rounds,
        "verdicts": dict.fromkeys((Pipeline.KINESIS, Pipeline.KAFKA), GOOD),
        "open_transactions": 0,
        "seconds": 60.0,
    }
    return CrashReport(**known | options)


def printed(*things: Any) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(*things)
    return capture.get()


def test_a_campaign_holds_if_nothing_was_wrong() -> None:
    assert report(result(KILL)).holds


@pytest.mark.parametrize("name", ["lost", "duplicated", "altered", "out_of_order"])
def test_a_campaign_does_not_hold_if_one_pipeline_is_wrong(name: str) -> None:
    wrong = msgspec.structs.replace(GOOD, **{name: 1})
    found = report(result(KILL), verdicts={Pipeline.KINESIS: GOOD, Pipeline.KAFKA: wrong})
    assert not found.holds
    assert json.loads(found.to_json())[name] == 1
    assert "✗" in printed(verdicts_table(found))


@pytest.mark.parametrize(
    "wrong",
    [
        report(result(KILL), result(KILL, caught_up=None)),
        report(result(KILL, failures=("it failed",)), result(KILL)),
        report(result(KILL), open_transactions=1),
    ],
)
def test_a_campaign_does_not_hold_if_the_job_was_stuck_failed_or_left_something_open(
    wrong: CrashReport,
) -> None:
    assert not wrong.holds


def test_the_json_counts_what_struck_and_adds_the_pipelines_up() -> None:
    rounds = (
        result(KILL, KILL),
        result(PAUSE, caught_up=3.14),
        result(KILL, reached=False, failures=("it failed",), caught_up=None),
    )
    document = json.loads(report(*rounds).to_json())
    expected = {
        "seed": 7,
        "rounds": 3,
        "kills": 3,
        "not_reached": 1,
        "produced": 20,
        "lost": 0,
        "duplicated": 0,
        "altered": 0,
        "out_of_order": 0,
        "stuck": 1,
        "failures": ["it failed"],
        "slowest_catch_up": 3.1,
        "moments": {
            "before EndTxn": {"driver killed": 2, "not reached": 1},
            "a random moment": {"broker paused": 1},
        },
    }
    assert expected.items() <= document.items()
    assert document["pipelines"]["kafka"] == msgspec.to_builtins(GOOD)


def test_the_table_has_a_row_for_each_moment_in_the_order_of_a_batch() -> None:
    earlier = Strike(CrashMoment.BEFORE_SEGMENT, StrikeKind.KILL_DRIVER, Pipeline.KINESIS)
    rounds = (result(PAUSE), result(KILL, KILL), result(earlier, reached=False))
    rows = [line.split() for line in printed(moments_table(report(*rounds))).splitlines()]
    struck = [row for row in rows if "killed" in row or "paused" in row]
    assert [row[-1] for row in struck] == ["1", "2", "1"]
    assert [row[0] for row in struck] == ["before", "before", "a"]


def test_a_round_is_told_in_one_line_unless_the_job_failed() -> None:
    reported = " ".join(printed(round_line(result(KILL, PAUSE), 30)).split())
    assert reported == (
        "1/30 kafka driver killed before EndTxn, then broker paused at a random moment "
        "caught up in 2.0 s"
    )
    assert "(not reached)" in printed(round_line(result(KILL, reached=False), 30))
    failed = printed(round_line(result(KILL, failures=("no broker",), caught_up=None), 30))
    assert "never caught up" in failed
    assert "no broker" in failed
