from __future__ import annotations

from datetime import UTC, datetime

import pytest

from fanout.core.positions import Cursor, Horizon, Latest, Timestamp
from fanout.core.starts import PerSplit, parse_start, start_of_each
from fanout.errors import OptionError

MOMENT = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("written", "start"),
    [
        ("TRIM_HORIZON", Horizon()),
        ("earliest", Horizon()),
        ("LATEST", Latest()),
        ("latest", Latest()),
        (Timestamp(3), Timestamp(3)),
        (MOMENT, Timestamp(1000)),
        ({"b": "LATEST", "a": MOMENT}, PerSplit((("a", Timestamp(1000)), ("b", Latest())))),
        ({"a": "0042", "*": "latest"}, PerSplit((("a", Cursor(42)),), Latest())),
        ({"a": Cursor(42, 3)}, PerSplit((("a", Cursor(42, 3)),))),
        ({}, PerSplit(())),
    ],
    ids=repr,
)
def test_a_start_is_understood(written: object, start: object) -> None:
    assert parse_start(written) == start
    assert parse_start(start) == start


@pytest.mark.parametrize(
    "written",
    ["newest", 1_700_000_000, None, Cursor(1), "42", datetime(2026, 1, 1)],  # noqa: DTZ001 - the point
)
def test_a_start_that_could_mean_anything_is_refused(written: object) -> None:
    with pytest.raises(OptionError):
        parse_start(written)


@pytest.mark.parametrize(
    ("written", "error"),
    [
        ({"a": "newest"}, r"^start\['a'\]='newest' is not understood"),
        ({"a": 42}, r"^start\['a'\]=42 is not understood"),
        ({"a": "-1"}, r"^start\['a'\]='-1' is not understood"),
        ({"a": "4\n"}, "is not understood"),
        ({"a": "\u0663"}, "is not understood"),
        ({"a": "1" * 129}, "is not understood"),
        ({"a": {"b": "LATEST"}}, "is not understood"),
        ({"a": datetime(2026, 1, 1)}, r"^start\['a'\]: .* no time zone"),  # noqa: DTZ001 - the point
        ({"*": "42"}, r"^start\['\*'\] is a sequence number, which one split has"),
    ],
    ids=repr,
)
def test_a_start_in_a_mapping_that_could_mean_anything_is_refused(
    written: object, error: str
) -> None:
    with pytest.raises(OptionError, match=error):
        parse_start(written)


def test_a_mapping_is_stored_in_one_form() -> None:
    one, other = parse_start({"a": "1", "b": "LATEST"}), parse_start({"b": "latest", "a": "01"})
    assert one == other
    assert hash(one) == hash(other)


def test_one_start_is_that_of_every_split() -> None:
    assert start_of_each(Latest(), ["a", "b"]) == {"a": Latest(), "b": Latest()}


def test_a_split_begins_where_the_mapping_says_and_the_others_at_the_asterisk() -> None:
    start = PerSplit((("b", Cursor(42)),), Latest())
    assert start_of_each(start, ["a", "b"]) == {"a": Latest(), "b": Cursor(42)}
    every_one = PerSplit((("a", Horizon()), ("b", Cursor(42))))
    assert start_of_each(every_one, ["a", "b"]) == {"a": Horizon(), "b": Cursor(42)}


@pytest.mark.parametrize("others", [None, Latest()])
def test_a_split_that_is_not_listed_is_an_error(others: Latest | None) -> None:
    start = PerSplit((("a", Horizon()), ("c", Horizon())), others)
    with pytest.raises(OptionError, match="not listed, or no longer: c; there are a, b"):
        start_of_each(start, ["b", "a"])


def test_a_split_that_the_mapping_lacks_is_an_error_without_an_asterisk() -> None:
    with pytest.raises(OptionError, match=r"no position for b, c; name them, .* as '\*'"):
        start_of_each(PerSplit((("a", Horizon()),)), ["c", "b", "a"])
