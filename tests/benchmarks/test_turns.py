from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import pytest

from benchmarks.harness import Measurement
from benchmarks.turns import OutOfTimeError, TimeLimit, limited, take_turns

if TYPE_CHECKING:
    from collections.abc import Callable


def test_each_run_is_told_when_it_is_over(capfd: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []

    def contend(figure: int) -> int:
        told.append(capfd.readouterr().err)
        return figure

    contenders = {"us": partial(contend, 3), "peer": partial(contend, 1)}
    assert take_turns("decode", contenders, 2) == {"us": [3, 3], "peer": [1, 1]}
    told.append(capfd.readouterr().err)
    assert [line.strip() for line in told] == [
        "",
        "decode, round 1 of 2: us: 3",
        "decode, round 1 of 2: peer: 1",
        "decode, round 2 of 2: us: 3",
        "decode, round 2 of 2: peer: 1",
    ]


def test_an_interrupted_run_has_told_what_it_knew(capfd: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> NoReturn:
        raise KeyboardInterrupt

    contenders: dict[str, Callable[[], Measurement]] = {
        "us": lambda: Measurement(218_000.0, 3.4, 1 << 20, (0.0031, 0.005, 0.007)),
        "peer": interrupted,
    }
    with pytest.raises(KeyboardInterrupt):
        take_turns("consume", contenders, 1)
    assert capfd.readouterr().err.strip() == (
        "consume, round 1 of 1: us: 218,000 records/s, 3.40 CPU s/million, p50 3.1 ms"
    )


def test_both_halves_of_a_run_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    take_turns("shuffle", {"us": lambda: (1, 2)}, 1)
    assert capfd.readouterr().err.strip() == "shuffle, round 1 of 1: us: 1; 2"


def test_rounds_stop_where_the_time_leaves_no_other_one(capfd: pytest.CaptureFixture[str]) -> None:
    ran: list[str] = []
    now = time.monotonic()
    with limited(TimeLimit(now, now + 60)):
        assert take_turns("decode", {"us": partial(ran.append, "us")}, 5) == {"us": [None]}
    assert "decode: its time is over after 1 of 5 rounds" in capfd.readouterr().err
    assert take_turns("decode", {"us": partial(ran.append, "us")}, 5) == {"us": [None] * 5}
    assert len(ran) == 6


def test_nothing_is_run_when_all_time_is_over() -> None:
    now = time.monotonic()
    with limited(TimeLimit(now - 1, now - 1)), pytest.raises(OutOfTimeError):
        take_turns("decode", {"us": partial(pytest.fail, "it was run")}, 5)
