from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.core.events import Split, startable

if TYPE_CHECKING:
    from random import Random

A, B = Split("a"), Split("b")
LEFT, RIGHT = Split("left", ("a",)), Split("right", ("a",))
MERGED = Split("merged", ("a", "b"))


def start(*known: Split, finished: str = "", listed: str | None = None) -> list[str]:
    names = {split.id for split in known} if listed is None else set(listed.split())
    splits = {split.id: split for split in known}
    return [split.id for split in startable(splits, set(finished.split()), names)]


def test_original_splits_start_at_once() -> None:
    assert start(A, B) == ["a", "b"]


def test_the_children_of_a_split_wait_for_its_end() -> None:
    assert start(A, LEFT, RIGHT) == ["a"]
    assert start(A, LEFT, RIGHT, finished="a") == ["left", "right"]


def test_a_merged_split_waits_for_both_parents() -> None:
    assert start(A, B, MERGED, finished="a") == ["b"]
    assert start(A, B, MERGED, finished="a b") == ["merged"]


def test_a_grandchild_waits_for_the_child() -> None:
    grandchild = Split("grandchild", ("left",))
    assert start(A, LEFT, grandchild) == ["a"]
    assert start(A, LEFT, grandchild, finished="a") == ["left"]
    assert start(A, LEFT, grandchild, finished="a left") == ["grandchild"]


def test_a_listed_child_of_a_parent_that_has_expired_starts() -> None:
    assert start(LEFT) == ["left"]


def test_a_child_with_a_parent_that_nobody_has_seen_waits_for_a_listing() -> None:
    assert start(A, MERGED, finished="a", listed="a") == []
    assert start(A, MERGED, finished="a", listed="a merged") == ["merged"]


def test_a_finished_split_does_not_start_again() -> None:
    assert start(A, finished="a") == []


@st.composite
def families(draw: st.DrawFn) -> list[Split]:
    """Splits in the order of their birth, each a child of up to two of the earlier ones."""
    splits: list[Split] = []
    for number in range(draw(st.integers(1, 12))):
        parents = draw(st.sets(st.integers(0, number - 1), max_size=2)) if number else set()
        splits.append(Split(str(number), tuple(str(parent) for parent in sorted(parents))))
    return splits


@pytest.mark.fault("Children begin at their horizon, after all their parents")
@given(families(), st.randoms(use_true_random=False))
def test_every_split_is_read_once_and_after_all_its_parents(
    family: list[Split], random: Random
) -> None:
    known = list(family)
    random.shuffle(known)
    splits = {split.id: split for split in known}
    finished: list[str] = []
    while ready := list(startable(splits, finished, splits)):
        chosen = random.choice(ready)
        assert set(chosen.parents) <= set(finished)
        finished.append(chosen.id)
    assert sorted(finished) == sorted(splits)
