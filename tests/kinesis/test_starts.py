from __future__ import annotations

import pytest

from fanout.core.positions import Committed, Cursor, Horizon, Latest
from fanout.core.starts import PerSplit, parse_start
from fanout.errors import OptionError
from fanout.kinesis.starting_position import DIALECT


@pytest.mark.parametrize(
    ("written", "start"),
    [
        ("TRIM_HORIZON", Horizon()),
        ("earliest", Horizon()),
        ("LATEST", Latest()),
        ("latest", Latest()),
        ({"a": "0042", "*": "latest"}, PerSplit((("a", Cursor(42)),), Latest())),
        ({"a": "trim_horizon"}, PerSplit((("a", Horizon()),))),
    ],
    ids=repr,
)
def test_the_services_words_and_everyones_are_understood(written: object, start: object) -> None:
    assert parse_start(written, DIALECT) == start


@pytest.mark.parametrize(
    "start", [42, "-1", "4\n", "\u0663", "1" * 129, ""], ids=lambda s: repr(s)[:20]
)
def test_a_sequence_number_is_a_string_of_digits(start: object) -> None:
    with pytest.raises(OptionError, match=r"^start\['a'\]=.* is not understood"):
        parse_start({"a": start}, DIALECT)


@pytest.mark.parametrize("start", ["committed", Committed("latest"), {"*": Committed()}], ids=repr)
def test_committed_positions_are_refused_as_nobody_keeps_them(start: object) -> None:
    with pytest.raises(OptionError, match=r"Kinesis stores no positions .* resume="):
        parse_start(start, DIALECT)
