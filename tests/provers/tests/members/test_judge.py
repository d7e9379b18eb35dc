"""What the campaign of members says of journals in which a rule is broken."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.provers.members.judge import Verdict, judge

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.regression

PUT = {"key": 4}


def granted(time: float) -> dict[str, Any]:
    return {"time": time, "event": "granted", "split": "s", "complete": None}


def gone(time: float, event: str = "handed_over", *, complete: bool = True) -> dict[str, Any]:
    return {"time": time, "event": event, "split": "s", "complete": complete}


def got(time: float, batch: int, *numbers: int) -> dict[str, Any]:
    records = [{"key": "key", "number": number} for number in numbers]
    return {"time": time, "got": batch, "split": "s", "records": records}


def stored(time: float, batch: int) -> dict[str, Any]:
    return {"time": time, "stored": batch}


def left(time: float, *, complete: bool = True) -> dict[str, Any]:
    return {"time": time, "left": "a", "complete": complete}


def verdict_of(directory: Path, a: list[dict[str, Any]], b: list[dict[str, Any]]) -> Verdict:
    for name, lines in {"a": a, "b": b}.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (directory / f"{name}.log").write_text(text)
    return judge(directory, PUT)


NEXT = [granted(3), got(5, 0, 2, 3)]


def test_a_hand_over_in_order_is_a_move_and_a_pause(tmp_path: Path) -> None:
    found = verdict_of(tmp_path, [granted(0), got(1, 0, 0, 1), stored(2, 0), gone(2)], NEXT)
    assert found.holds
    assert (found.records, found.moves, found.pauses, found.again) == (4, 1, [4], 0)


def test_what_a_killed_member_had_not_stored_may_come_again(tmp_path: Path) -> None:
    found = verdict_of(
        tmp_path,
        [granted(0), got(1, 0, 0), stored(1, 0), got(2, 1, 1, 2)],
        [granted(3), got(5, 0, 1, 2, 3)],
    )
    assert found.holds
    assert (found.again, found.pauses) == (2, [])


@pytest.mark.parametrize(
    ("a", "b", "wrong"),
    [
        ([granted(0), got(1, 0, 0)], NEXT, {"lost": 1}),
        ([granted(0), got(1, 0, 0, 1, 2), stored(2, 0)], NEXT, {"stored_again": 1}),
        ([granted(0), got(1, 0, 0, 1, 2), gone(2)], NEXT, {"again_after_hand_over": 1}),
        ([granted(0), got(1, 0, 0, 1, 2), left(2)], NEXT, {"again_after_hand_over": 1}),
        ([granted(0), got(1, 0, 0), got(6, 1, 1)], NEXT, {"two_owners": 1}),
        ([granted(0), gone(1), got(2, 0, 0, 1)], NEXT, {"two_owners": 1, "lost": 2}),
        ([granted(0), got(1, 0, 1, 0), gone(2)], NEXT, {"disordered": 1}),
    ],
    ids=["lost", "stored", "handed over", "left", "two owners", "not owned", "disordered"],
)
def test_a_broken_rule_is_counted(
    tmp_path: Path, a: list[dict[str, Any]], b: list[dict[str, Any]], wrong: dict[str, int]
) -> None:
    found = verdict_of(tmp_path, a, b)
    assert {name: count for name, count in found.wrong().items() if count} == wrong
    assert found.examples
    assert not found.holds


@pytest.mark.parametrize("end", [gone(2, complete=False), left(2, complete=False)])
def test_an_end_of_which_the_service_did_not_hear_may_repeat(
    tmp_path: Path, end: dict[str, Any]
) -> None:
    found = verdict_of(tmp_path, [granted(0), got(1, 0, 0, 1, 2), end], NEXT)
    assert found.holds
    assert found.again == 1


def test_a_line_that_a_kill_cut_off_is_left_out(tmp_path: Path) -> None:
    verdict_of(tmp_path, [granted(0), got(1, 0, 0, 1)], NEXT)
    with (tmp_path / "a.log").open("a") as file:
        file.write('{"time": 2, "go')
    assert judge(tmp_path, PUT).holds
