from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.core.checkpoint import MAX_JSON_BYTES, MAX_STATE, Checkpoint, SplitPosition
from fanout.core.events import Split
from fanout.core.positions import WHOLE_RECORD, Cursor, Horizon, Timestamp
from fanout.errors import PositionError

counts = st.integers(0, WHOLE_RECORD)
positions = st.one_of(
    st.just(Horizon()),
    st.builds(Timestamp, counts),
    st.builds(Cursor, st.integers(-1, 10**128 - 1), counts),
)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@st.composite
def checkpoints(draw: st.DrawFn) -> Checkpoint:
    splits = {}
    for name in draw(st.sets(names, max_size=5)):
        split = Split(name, tuple(draw(st.lists(names, max_size=2))))
        splits[name] = SplitPosition(
            split, draw(positions), draw(st.booleans()), draw(st.none() | counts)
        )
    return Checkpoint(draw(names), MappingProxyType(splits))


def stored(**changes: Any) -> str:
    split = {
        "parents": [],
        "position": {"type": "cursor", "sequence": "7"},
        "ended": False,
    }
    split.update(changes.pop("split", {}))
    return json.dumps({"version": 1, "source": "s", "splits": {"a": split}, **changes})


@given(checkpoints())
def test_positions_survive_json(checkpoint: Checkpoint) -> None:
    assert Checkpoint.from_json(checkpoint.to_json()) == checkpoint


def test_the_stored_form_is_stable() -> None:
    splits = {
        "a": SplitPosition(Split("a"), Cursor(7), ended=True),
        "b": SplitPosition(Split("b", ("a",)), Horizon()),
        "c": SplitPosition(Split("c"), Timestamp(5)),
        "d": SplitPosition(Split("d"), Cursor(7, 2), newest=1_700_000_000_000),
        "e": SplitPosition(Split("e"), Cursor(-1)),
    }
    assert json.loads(Checkpoint("s", splits).to_json()) == {
        "version": 1,
        "source": "s",
        "splits": {
            "a": {
                "parents": [],
                "position": {"type": "cursor", "sequence": "7"},
                "ended": True,
            },
            "b": {"parents": ["a"], "position": {"type": "horizon"}, "ended": False},
            "c": {"parents": [], "position": {"type": "timestamp", "millis": 5}, "ended": False},
            "d": {
                "parents": [],
                "position": {"type": "cursor", "sequence": "7", "sub": 2},
                "ended": False,
                "newest": 1_700_000_000_000,
            },
            "e": {
                "parents": [],
                "position": {"type": "cursor", "sequence": "-1"},
                "ended": False,
            },
        },
    }


def test_what_a_source_keeps_at_a_position_is_stored_with_it_and_compared_with_nothing() -> None:
    splits = {"a": SplitPosition(Split("a"), Cursor(7, state='[1, "x"]'))}
    text = Checkpoint("s", splits).to_json()
    position = Checkpoint.from_json(text).splits["a"].position
    assert isinstance(position, Cursor)
    assert position.state == '[1, "x"]'
    assert json.loads(text)["splits"]["a"]["position"]["state"] == '[1, "x"]'
    assert position == Cursor(7)
    assert hash(position) == hash(Cursor(7))
    assert "x" not in repr(position)


def test_positions_that_could_not_be_read_back_are_not_written() -> None:
    large = Cursor(7, state="x" * MAX_STATE)
    splits = {str(n): SplitPosition(Split(str(n)), large) for n in range(300)}
    with pytest.raises(PositionError, match=r"positions of 300 splits take .* more than"):
        Checkpoint("s", splits).to_json()


def test_the_example_of_the_damage_tests_is_itself_sound() -> None:
    assert Checkpoint.from_json(stored()).splits["a"].position == Cursor(7)


@pytest.mark.parametrize("version", [0, 2, 10**6])
def test_another_version_is_refused_by_its_number(version: int) -> None:
    with pytest.raises(PositionError, match=f"format version {version}, .* version 1"):
        Checkpoint.from_json(stored(version=version, news="of that version"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        stored()[:-1],
        stored() + "x",
        "\ud800",
        "[" * 100_000,
        '{"version":1,"x":' + "[" * 100_000,
        stored(version=True),
        stored(version="1"),
        stored(version=int("9" * 200)),
        stored(source=""),
        stored(source=None),
        stored(source="x" * (64 * 1024 + 1)),
        stored(more=1),
        stored(splits=[]),
        stored(splits={"": {}}),
        stored(split={"more": 1}),
        stored(split={"ended": 0}),
        stored(split={"parents": "a"}),
        stored(split={"parents": [1]}),
        stored(split={"position": {"type": "latest"}}),
        stored(split={"position": {"type": "horizon", "more": 1}}),
        stored(split={"position": {"type": "timestamp", "millis": -1}}),
        stored(split={"position": {"type": "timestamp", "millis": 1.5}}),
        stored(split={"position": {"type": "cursor", "sequence": 7}}),
        stored(split={"position": {"type": "cursor", "sequence": ""}}),
        stored(split={"position": {"type": "cursor", "sequence": "-7"}}),
        stored(split={"position": {"type": "cursor", "sequence": "-2"}}),
        stored(split={"position": {"type": "cursor", "sequence": "-01"}}),
        stored(split={"position": {"type": "cursor", "sequence": "-10"}}),
        stored(split={"position": {"type": "cursor", "sequence": "--1"}}),
        stored(split={"position": {"type": "cursor", "sequence": "-1\n"}}),
        stored(split={"position": {"type": "cursor", "sequence": "-"}}),
        stored(split={"position": {"type": "cursor", "sequence": "7\n"}}),
        stored(split={"position": {"type": "cursor", "sequence": "1_0"}}),
        stored(split={"position": {"type": "cursor", "sequence": "\u0667"}}),
        stored(split={"position": {"type": "cursor", "sequence": "9" * 200}}),
        stored(split={"position": {"type": "cursor", "sequence": "7", "sub": -1}}),
        stored(split={"position": {"type": "cursor", "sequence": "7", "sub": 2**63}}),
        stored(split={"position": {"type": "cursor", "sequence": "7", "state": 1}}),
        stored(
            split={"position": {"type": "cursor", "sequence": "7", "state": "x" * (MAX_STATE + 1)}}
        ),
    ],
    ids=lambda text: text[:60] if len(text) < 200 else f"{text[:20]}... {len(text)}",
)
def test_damaged_positions_are_refused(text: str) -> None:
    with pytest.raises(PositionError):
        Checkpoint.from_json(text)


def test_oversized_positions_are_refused_unread() -> None:
    with pytest.raises(PositionError, match="more than"):
        Checkpoint.from_json(" " * (MAX_JSON_BYTES + 1))
