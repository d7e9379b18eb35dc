from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanout.errors import CheckpointError
from fanout.kafka.transactions.commit_token import MAX_TOKEN_BYTES, CommitToken, Incarnation

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
TIMES = st.datetimes(
    datetime(2020, 1, 1),  # noqa: DTZ001 - hypothesis adds the time zone
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))]),
)
TOKENS = st.builds(
    CommitToken,
    transactional_id=NAMES,
    incarnation=st.builds(Incarnation, st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1)),
    marker_group=NAMES,
    batch_id=st.integers(0, 2**63 - 1),
    partitions=st.dictionaries(
        NAMES,
        st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5).map(tuple),
        min_size=1,
        max_size=4,
    ),
    created_at=TIMES,
    expires_at=TIMES,
)
TOKEN = CommitToken(
    transactional_id="fanout-q-orders",
    incarnation=Incarnation(4000, 7),
    marker_group="fanout-q-orders-marker",
    batch_id=12,
    partitions={"orders": (0, 3), "audit": (1,)},
    created_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    expires_at=datetime(2026, 1, 2, 3, 19, 5, tzinfo=UTC),
)


@given(TOKENS)
def test_a_token_is_read_back_as_it_was_written(token: CommitToken) -> None:
    assert CommitToken.from_json(token.to_json()) == token
    assert CommitToken.from_json(token.to_json().encode()) == token


def test_the_format_of_a_stored_token_does_not_change() -> None:
    assert json.loads(TOKEN.to_json()) == {
        "version": 1,
        "transactional_id": "fanout-q-orders",
        "producer_id": 4000,
        "epoch": 7,
        "marker_group": "fanout-q-orders-marker",
        "batch": 12,
        "partitions": {"orders": [0, 3], "audit": [1]},
        "created_at": "2026-01-02T03:04:05Z",
        "expires_at": "2026-01-02T03:19:05Z",
    }


def test_times_are_kept_in_utc_and_partitions_cannot_be_changed() -> None:
    partitions = {"orders": (0,)}
    at = datetime(2026, 1, 2, 5, 0, tzinfo=timezone(timedelta(hours=2)))
    token = CommitToken(
        transactional_id="id",
        incarnation=Incarnation(1, 0),
        marker_group="group",
        batch_id=0,
        partitions=partitions,
        created_at=at,
        expires_at=at,
    )
    partitions["audit"] = (1,)
    assert token.topics == ("orders",)
    assert "03:00:00Z" in token.to_json()


@pytest.mark.parametrize(
    "change",
    [
        {"version": "1"},
        {"version": None},
        {"transactional_id": ""},
        {"transactional_id": "x" * 2**15},
        {"producer_id": -1},
        {"producer_id": 2**63},
        {"producer_id": 1.5},
        {"epoch": -1},
        {"epoch": 2**15},
        {"marker_group": ""},
        {"marker_group": 5},
        {"batch": -1},
        {"batch": "12"},
        {"batch": True},
        {"partitions": {}},
        {"partitions": {"orders": []}},
        {"partitions": {"": [0]}},
        {"partitions": {"orders": [-1]}},
        {"partitions": {"orders": [2**31]}},
        {"created_at": "2026-01-02T03:04:05"},
        {"created_at": 5},
        {"expires_at": "soon"},
        {"expires_at": "2026-13-02T03:04:05Z"},
        {"more": 1},
    ],
)
def test_a_token_that_is_not_what_was_written_is_refused(change: dict[str, Any]) -> None:
    stored = json.loads(TOKEN.to_json()) | change
    with pytest.raises(CheckpointError, match="the commit token is damaged"):
        CommitToken.from_json(json.dumps(stored))


@pytest.mark.parametrize("name", sorted(json.loads(TOKEN.to_json())))
def test_a_token_that_lacks_something_is_refused(name: str) -> None:
    stored = json.loads(TOKEN.to_json())
    del stored[name]
    with pytest.raises(CheckpointError, match="the commit token is damaged"):
        CommitToken.from_json(json.dumps(stored))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", b"\xff", "[" * 100_000])
def test_what_is_no_token_is_refused(text: str | bytes) -> None:
    with pytest.raises(CheckpointError, match="the commit token is damaged"):
        CommitToken.from_json(text)


def test_a_token_of_a_newer_version_says_what_to_do() -> None:
    stored = json.loads(TOKEN.to_json()) | {"version": 2, "more": 1}
    with pytest.raises(
        CheckpointError, match="has format version 2, which is newer: this library reads version 1"
    ):
        CommitToken.from_json(json.dumps(stored))


def test_a_token_that_is_too_large_is_refused_before_it_is_read() -> None:
    with pytest.raises(CheckpointError, match=f"more than {MAX_TOKEN_BYTES}"):
        CommitToken.from_json(TOKEN.to_json() + " " * MAX_TOKEN_BYTES)
