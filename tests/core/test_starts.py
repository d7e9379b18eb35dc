from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from fanout.core.events import Split
from fanout.core.positions import Committed, Cursor, Horizon, Latest, Timestamp
from fanout.core.starts import Dialect, PerSplit, parse_start, start_of_each
from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

MOMENT = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001 - the point
A, B, C = Split("a"), Split("b"), Split("c")


def offset(start: object) -> Cursor | None:
    """Read the first number that is wanted."""
    if isinstance(start, int) and not isinstance(start, bool) and start >= 0:
        return Cursor(start - 1)
    return None


def after(start: object) -> Cursor | None:
    """Read the last number that is not wanted, as a text."""
    return Cursor(int(start)) if isinstance(start, str) and start.isdecimal() else None


OFFSETS = Dialect(choices="'earliest', or an offset", cursor=offset)
NUMBERS = Dialect(
    choices="'OLDEST', or a number",
    cursor=after,
    words={"oldest": Horizon()},
    no_commits="this service stores no commits",
)


def latest_of_each(splits: Sequence[Split]) -> dict[str, str]:
    return {split.id: "latest" for split in splits}


@pytest.mark.parametrize(
    ("written", "start"),
    [
        ("earliest", Horizon()),
        ("EARLIEST", Horizon()),
        ("latest", Latest()),
        ("committed", Committed()),
        (Committed("latest"), Committed("latest")),
        (Timestamp(3), Timestamp(3)),
        (MOMENT, Timestamp(1000)),
        ({"b": "LATEST", "a": MOMENT}, PerSplit((("a", Timestamp(1000)), ("b", Latest())))),
        ({"a": 42, "*": "latest"}, PerSplit((("a", Cursor(41)),), Latest())),
        ({"a": 0}, PerSplit((("a", Cursor(-1)),))),
        ({"a": Cursor(42, 3)}, PerSplit((("a", Cursor(42, 3)),))),
        ({"a": Committed("earliest")}, PerSplit((("a", Committed("earliest")),))),
        ({}, PerSplit(())),
        pytest.param(latest_of_each, latest_of_each, id="a function"),
    ],
    ids=repr,
)
def test_a_start_is_understood(written: object, start: object) -> None:
    assert parse_start(written, OFFSETS) == start
    assert parse_start(start, OFFSETS) == start


def test_a_dialect_has_words_and_numbers_of_its_own() -> None:
    written = {"a": "0042", "b": "Oldest", "*": "latest"}
    named = (("a", Cursor(42)), ("b", Horizon()))
    assert parse_start(written, NUMBERS) == PerSplit(named, Latest())
    with pytest.raises(
        OptionError, match=r"^start\['a'\]='0042' is not understood; use 'earliest'"
    ):
        parse_start(written, OFFSETS)


@pytest.mark.parametrize(
    "written",
    ["newest", 1_700_000_000, 17e8, None, Cursor(1), "42", NAIVE, Latest, Split],
    ids=repr,
)
@pytest.mark.parametrize("dialect", [OFFSETS, NUMBERS], ids=["offsets", "numbers"])
def test_a_start_that_could_mean_anything_is_refused(written: object, dialect: Dialect) -> None:
    with pytest.raises(OptionError, match=r"^start(=|: .* no time zone)"):
        parse_start(written, dialect)


@pytest.mark.parametrize(
    ("written", "error"),
    [
        ({"a": "newest"}, r"^start\['a'\]='newest' is not understood"),
        ({"a": -1}, r"^start\['a'\]=-1 is not understood"),
        ({"a": True}, r"^start\['a'\]=True is not understood"),
        ({"a": 1.0}, r"^start\['a'\]=1.0 is not understood"),
        ({"a": {"b": "LATEST"}}, "is not understood"),
        pytest.param({"a": latest_of_each}, "is not understood", id="a function"),
        ({"a": NAIVE}, r"^start\['a'\]: .* no time zone"),
        ({"*": 42}, r"^start\['\*'\] is a place in one split"),
    ],
    ids=repr,
)
def test_a_start_in_a_mapping_that_could_mean_anything_is_refused(
    written: object, error: str
) -> None:
    with pytest.raises(OptionError, match=error):
        parse_start(written, OFFSETS)


@pytest.mark.parametrize(
    "written",
    [
        "committed",
        Committed(),
        {"a": Committed("latest")},
        {"*": "committed"},
        PerSplit((), Committed()),
        PerSplit((("a", Committed()),)),
    ],
    ids=repr,
)
def test_committed_is_refused_with_the_reason_where_nobody_commits(written: object) -> None:
    with pytest.raises(
        OptionError, match=r"Committed\(.* cannot be: this service stores no commits"
    ):
        parse_start(written, NUMBERS)


@pytest.mark.parametrize("reset", ["none", "LATEST", True])
def test_another_reset_strategy_is_refused(reset: Any) -> None:
    with pytest.raises(OptionError, match=f"reset={reset!r} is not understood"):
        Committed(reset)


def test_an_error_names_the_option_that_is_wrong() -> None:
    with pytest.raises(OptionError, match=r"^stop=5 is not understood"):
        parse_start(5, OFFSETS, option="stop")
    with pytest.raises(OptionError, match=r"^stop names what is not listed, or no longer: c"):
        start_of_each(PerSplit((("c", Cursor(1)),)), [A], OFFSETS, option="stop")


def test_a_mapping_is_stored_in_one_form() -> None:
    one = parse_start({"a": 1, "b": "LATEST"}, OFFSETS)
    other = parse_start({"b": "latest", "a": 1}, OFFSETS)
    assert one == other
    assert hash(one) == hash(other)


@pytest.mark.parametrize("start", [Latest(), Horizon(), Timestamp(5), Committed()], ids=repr)
def test_one_start_is_that_of_every_split(start: Any) -> None:
    assert start_of_each(start, [A, B], OFFSETS) == {"a": start, "b": start}


def test_a_split_begins_where_the_mapping_says_and_the_others_at_the_asterisk() -> None:
    start = PerSplit((("b", Cursor(42)),), Latest())
    assert start_of_each(start, [A, B], OFFSETS) == {"a": Latest(), "b": Cursor(42)}
    every_one = PerSplit((("a", Horizon()), ("b", Cursor(42))))
    assert start_of_each(every_one, [A, B], OFFSETS) == {"a": Horizon(), "b": Cursor(42)}


@pytest.mark.parametrize("others", [None, Latest()])
def test_a_split_that_is_not_listed_is_an_error(others: Latest | None) -> None:
    start = PerSplit((("a", Horizon()), ("c", Horizon())), others)
    with pytest.raises(OptionError, match="not listed, or no longer: c; there are a, b"):
        start_of_each(start, [B, A], OFFSETS)


def test_a_split_that_the_mapping_lacks_is_an_error_without_an_asterisk() -> None:
    with pytest.raises(OptionError, match=r"no position for b, c; name them, .* as '\*'"):
        start_of_each(PerSplit((("a", Horizon()),)), [C, B, A], OFFSETS)


def test_a_function_chooses_from_the_splits_in_the_words_of_its_dialect() -> None:
    asked = []

    def choose(splits: Sequence[Split]) -> dict[str, object]:
        asked.append(list(splits))
        return {"a": 7, "*": MOMENT}

    start = parse_start(choose, OFFSETS)
    assert asked == []
    assert start_of_each(start, [A, B], OFFSETS) == {"a": Cursor(6), "b": Timestamp(1000)}
    assert asked == [[A, B]]


@pytest.mark.parametrize(
    ("chosen", "error"),
    [
        ({"a": 1}, "start names no position for b"),
        ({"a": 1, "b": 1, "c": 1}, "not listed, or no longer: c"),
        ({"a": 1, "b": "newest"}, r"start\['b'\]='newest' is not understood"),
        ([("a", 1), ("b", 1)], "the function that was passed as start returned list; .* mapping"),
        ("latest", "returned str"),
    ],
    ids=repr,
)
def test_what_a_function_chooses_is_checked_like_a_mapping(chosen: Any, error: str) -> None:
    with pytest.raises(OptionError, match=error):
        start_of_each(lambda _: chosen, [A, B], OFFSETS)


def test_a_function_that_raises_is_the_cause_of_the_error() -> None:
    def choose(_: Sequence[Split]) -> dict[str, object]:
        raise LookupError("no such table")

    with pytest.raises(OptionError, match="passed as start raised LookupError: no such") as raised:
        start_of_each(choose, [A], OFFSETS)
    assert isinstance(raised.value.__cause__, LookupError)
