from __future__ import annotations

from enum import Enum

import pytest

from fanout.core.policy import (
    Fatal,
    Pace,
    Phase,
    PolicyRow,
    PolicyTable,
    Retry,
    kind_by_type,
)


class Remedy(Enum):
    ASK = "ask the service"


ROWS: dict[str, PolicyRow[Remedy]] = {
    "passing": PolicyRow(Retry(hint="wait", limit=3)),
    "access": PolicyRow(Retry(Pace.SLOW), first=Fatal("grant it")),
    "gone": PolicyRow(Remedy.ASK, listing=Fatal()),
}
TABLE = PolicyTable(
    ROWS,
    kind_of=lambda error: kind_by_type(
        error,
        [
            ((ConnectionError, TimeoutError), "passing"),
            ((PermissionError,), "access"),
            ((Exception,), "gone"),
        ],
    ),
    hint_of=lambda error: "turn it on" if isinstance(error, ConnectionRefusedError) else "",
)


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("first", [True, False])
def test_a_kind_that_always_means_the_same(phase: Phase, *, first: bool) -> None:
    verdict = TABLE.judge(TimeoutError(), phase, first=first)
    assert verdict == Retry(hint="wait", limit=3)


@pytest.mark.parametrize("phase", Phase)
def test_what_has_never_worked_means_another_thing(phase: Phase) -> None:
    assert TABLE.judge(PermissionError(), phase, first=True) == Fatal("grant it")
    assert TABLE.judge(PermissionError(), phase, first=False) == Retry(Pace.SLOW)


def test_a_later_listing_means_another_thing() -> None:
    assert TABLE.judge(KeyError(), Phase.STREAM, first=False) is Remedy.ASK
    assert TABLE.judge(KeyError(), Phase.DISCOVER, first=False) == Fatal()
    assert TABLE.judge(KeyError(), Phase.DISCOVER, first=True) is Remedy.ASK


def test_the_hint_of_an_error_replaces_that_of_its_row() -> None:
    verdict = TABLE.judge(ConnectionRefusedError(), Phase.STREAM, first=True)
    assert verdict == Retry(hint="turn it on", limit=3)


def test_the_first_type_that_fits_decides_the_kind() -> None:
    kinds = [((OSError,), 1), ((TimeoutError,), 2), ((Exception,), 3)]
    assert kind_by_type(TimeoutError(), kinds) == 1
    assert kind_by_type(ValueError(), kinds) == 3
