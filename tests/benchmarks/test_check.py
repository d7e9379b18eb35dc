"""A cost that grows is found, by instructions and by processor time; an unchanged one is not."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from benchmarks import check, pinned
from benchmarks.__main__ import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EVENTS = "decode events of Kinesis, 1 KB"
# One event of four is decoded twice, from when the second work is made.
SLOWER = f"""
import sys
from benchmarks import decode, pinned

once, calls = decode.decode_event, []

def slower(payload, **where):
    calls.append(None)
    if len(calls) % 4 == 0:
        once(payload, **where)
    return once(payload, **where)

def planted():
    decode.decode_event = slower
    return pinned.PINNED["{EVENTS}"]()

pinned.PINNED["planted"] = planted
pinned.main(sys.argv[1:])
"""


def loop(times: int) -> Callable[[], int]:
    def work() -> int:
        sum(range(times))
        return 1000

    return work


def test_what_has_grown_by_more_than_the_bound_is_a_regression() -> None:
    lines = check.compared(
        {"a": 109.0, "b": 111.0, "c": 50.0, "new": 1.0}, {"a": 100, "b": 100, "c": 100}, 0.1
    )
    assert [name for name, line in lines.items() if line["regression"]] == ["b"]
    assert [line["ratio"] for line in lines.values()] == [1.09, 1.11, 0.5, None]


def test_what_is_stored_must_be_measured() -> None:
    with pytest.raises(ValueError, match="not measured, but stored: b"):
        check.compared({"a": 100.0}, {"a": 100, "b": 100}, 0.1)


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_what_is_not_counted_is_an_error() -> None:
    with pytest.raises(ChildProcessError, match="valgrind has counted nothing of a, b"):
        check.instructions(["a", "b"], ("-c", ""))


def test_the_command_fails_at_work_that_takes_twice_the_processor_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    arguments = ["check", "--processor-time", "--stored", str(tmp_path / "pinned.json"), "--json"]

    def ended() -> int | str | None:
        with pytest.raises(SystemExit) as done:
            main(arguments)
        return done.value.code

    work = {EVENTS: lambda: loop(100_000), "other": lambda: loop(100_000)}
    monkeypatch.setattr(check, "PINNED", work)
    assert ended() == 2
    assert "store them with --store" in capsys.readouterr().err.replace("\n", " ")
    arguments.append("--store")
    assert ended() == 0
    arguments.pop()
    work[EVENTS] = lambda: loop(200_000)
    assert ended() == 1
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [name for name, line in told["pinned"].items() if line["regression"]] == [EVENTS]


@pytest.mark.skipif(shutil.which("callgrind_control") is None, reason="valgrind is not installed")
def test_instructions_find_an_event_of_four_that_is_decoded_twice() -> None:
    counts = check.instructions([EVENTS, "planted"], ("-c", SLOWER))
    lines = check.compared(
        {EVENTS: counts["planted"]}, {EVENTS: counts[EVENTS]}, check.INSTRUCTIONS.bound
    )
    assert lines[EVENTS]["regression"]


def test_each_pinned_work_says_how_many_records_it_did() -> None:
    for make in pinned.PINNED.values():
        assert make()() > 0
