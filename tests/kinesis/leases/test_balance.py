"""Which member is to have which lease."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.core.events import Split
from fanout.kinesis.leases.balance import plan
from fanout.kinesis.leases.lease import Lease
from fanout.kinesis.leases.sightings import missing

SHARDS = [f"shardId-{n:012d}" for n in range(12)]
IDLE = dict.fromkeys(SHARDS, 0.0)


def moved(before: dict[str, str | None], after: dict[str, str]) -> int:
    return sum(before[id_] != member for id_, member in after.items())


@pytest.mark.parametrize(
    ("members", "most", "least"), [("a", 12, 12), ("abc", 4, 4), ("abcde", 3, 2)]
)
def test_idle_shards_are_divided_evenly(members: str, most: int, least: int) -> None:
    counts = Counter(plan(IDLE, {}, members).values())
    assert (max(counts.values()), min(counts.values())) == (most, least)


def test_a_member_that_comes_gets_its_share_and_nothing_else_moves() -> None:
    owners: dict[str, str | None] = {id_: "ab"[n % 2] for n, id_ in enumerate(SHARDS)}
    after = plan(IDLE, owners, "abc")
    assert Counter(after.values()) == {"a": 4, "b": 4, "c": 4}
    assert moved(owners, dict(after)) == 4
    assert plan(IDLE, dict(after), "abc") == after


def test_what_a_dead_member_had_goes_to_those_with_the_least() -> None:
    owners: dict[str, str | None] = dict.fromkeys(SHARDS[:8], "a") | dict.fromkeys(SHARDS[8:])
    after = plan(IDLE, owners, "abc")
    assert Counter(after.values()) == {"a": 4, "b": 4, "c": 4}


def test_bytes_count_where_they_are_known() -> None:
    rates = {**IDLE, SHARDS[0]: 900.0, SHARDS[1]: 900.0}
    after = plan(rates, dict.fromkeys(SHARDS, "a"), "ab")
    assert {after[SHARDS[0]], after[SHARDS[1]]} == {"a", "b"}


def test_rates_that_vary_a_little_move_nothing() -> None:
    owners: dict[str, str | None] = {id_: "abc"[n % 3] for n, id_ in enumerate(SHARDS)}
    rates = {id_: 500.0 + 40 * (n % 3) for n, id_ in enumerate(SHARDS)}
    assert plan(rates, owners, "abc") == owners


RATES = st.one_of(st.just(0.0), st.floats(0, 2_000))


@given(
    st.dictionaries(st.sampled_from(SHARDS), RATES, min_size=1),
    st.dictionaries(st.sampled_from(SHARDS), st.sampled_from("abcd")),
    st.sets(st.sampled_from("abcd"), min_size=1),
)
def test_everything_is_given_to_members_that_live_and_then_stays(
    rates: dict[str, float], owners: dict[str, str], members: set[str]
) -> None:
    found = plan(rates, owners, members)
    assert found.keys() == rates.keys()
    assert set(found.values()) <= members
    assert plan(rates, dict(found), members) == found


PARENTS = {"a": (), "b": (), "c": ("a",), "d": ("a",), "e": ("b", "d")}
LISTED = [Split(id_, parents) for id_, parents in PARENTS.items()]


@pytest.mark.parametrize(
    ("leases", "wanted"),
    [
        ("", "abcde"),
        ("b", "acd"),  # e gets its lease when b or d ends
        ("ab", ""),
        ("cdb", ""),  # a is read, and cleaned up
        ("ce", ""),
        ("c", "b"),  # d is read: with c it got a lease from a
    ],
)
def test_shards_that_nobody_has_read_are_found(leases: str, wanted: str) -> None:
    known = {id_: Lease(id_, 1, parents=PARENTS[id_]) for id_ in leases}
    found = missing(LISTED, known)
    assert "".join(split.id for split in found) == wanted


def test_a_shard_that_is_listed_after_its_child_goes_before_it() -> None:
    """The service says nowhere that a child has the later id."""
    child, parent = Split("a", ("b",)), Split("b")
    assert missing([child, parent], {}) == [parent, child]
