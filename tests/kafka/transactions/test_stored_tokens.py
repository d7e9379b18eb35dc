from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from fanout.errors import CheckpointError
from fanout.kafka.transactions.commit_token import CommitToken, Incarnation
from fanout.landing.claims import Ownership
from fanout.landing.storage.local_storage import LocalStorage
from fanout.spark.sinks.kafka.stored_tokens import SinkState, StoredTokens

if TYPE_CHECKING:
    from pathlib import Path

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def token(batch_id: int) -> CommitToken:
    return CommitToken(
        transactional_id="fanout-query-kafka",
        incarnation=Incarnation(7, 3),
        marker_group="fanout-query-kafka-marker",
        batch_id=batch_id,
        partitions={"out": (0, 2)},
        created_at=NOW,
        expires_at=NOW,
    )


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    storage = LocalStorage(tmp_path)
    storage.create("runs/1", b"{}")
    return storage


@pytest.fixture
def ownership(storage: LocalStorage) -> Ownership:
    return Ownership(storage, 1, b"{}", None)


@pytest.fixture
def state(storage: LocalStorage, ownership: Ownership) -> SinkState:
    return SinkState(storage, ownership, "kafka")


def test_a_token_is_there_until_it_is_forgotten(state: SinkState) -> None:
    assert state.token(4) is None
    state.record(token(4))
    assert state.token(4) == token(4)
    assert state.unfinished() == [token(4)]
    state.forget(4)
    assert (state.token(4), state.unfinished()) == (None, [])
    state.record(token(4))


def test_what_is_committed_is_known_and_nothing_before_it_is_kept(
    state: SinkState, storage: LocalStorage
) -> None:
    for batch_id in (3, 4):
        state.record(token(batch_id))
        state.record_committed(batch_id)
        state.record_committed(batch_id)  # a later run may find it out again
    assert (state.is_committed(4), state.is_committed(5)) == (True, False)
    assert state.unfinished() == []
    assert [file.name for file in storage.list("sinks/kafka")] == [
        "000000000004.committed.json",
        "000000000004.json",
    ]


def test_the_newest_token_is_there_whatever_became_of_it(
    state: SinkState, storage: LocalStorage
) -> None:
    tokens = StoredTokens(storage, "kafka")
    assert tokens.newest() is None
    state.record(token(3))
    state.record(token(4))
    state.record_committed(3)
    assert tokens.newest() == token(4)
    assert tokens.unfinished() == [token(4)]
    state.record_committed(4)
    assert tokens.newest() == token(4)


def test_sinks_do_not_see_each_other(
    state: SinkState, storage: LocalStorage, ownership: Ownership
) -> None:
    state.record(token(4))
    assert SinkState(storage, ownership, "other").unfinished() == []


def test_a_token_that_another_run_has_stored_is_left(state: SinkState) -> None:
    state.record(token(4))
    with pytest.raises(CheckpointError, match="another run writes there"):
        state.record(token(4))


def test_a_run_that_is_overtaken_while_it_stores_a_token_says_so(
    state: SinkState, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = storage.create

    def overtaken(_: LocalStorage, name: str, data: bytes) -> None:
        create("runs/2", b"{}")
        create(name, data)

    state.record(token(4))
    monkeypatch.setattr(LocalStorage, "create", overtaken)
    with pytest.raises(CheckpointError, match="taken over by a newer run"):
        state.record(token(4))


def test_a_run_that_lost_the_checkpoint_changes_nothing(
    state: SinkState, storage: LocalStorage
) -> None:
    state.record(token(4))
    storage.create("runs/2", b"{}")
    with pytest.raises(CheckpointError, match="taken over by a newer run"):
        state.record(token(5))
    with pytest.raises(CheckpointError, match="taken over by a newer run"):
        state.forget(4)
    assert state.unfinished() == [token(4)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "000000000004.json in .* is damaged"),
        (b'{"version": 2}', "000000000004.json in .* version 2"),
        (token(3).to_json().encode(), "000000000004.json in .* is of batch 3"),
    ],
)
def test_a_damaged_token_is_refused(
    state: SinkState, storage: LocalStorage, data: bytes, message: str
) -> None:
    storage.create("sinks/kafka/000000000004.json", data)
    for read in (lambda: state.token(4), state.unfinished):
        with pytest.raises(CheckpointError, match=message):
            read()


def test_the_first_generation_is_stored_once(state: SinkState) -> None:
    assert state.first_generation(1000) == 1000
    assert state.first_generation(2000) == 1000


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", r"generation\.json in .* is damaged .*; restore this file alone"),
        (b'{"version": 1, "first": "x"}', r"generation\.json in .* is damaged"),
        (
            b'{"version": 2, "first": [1]}',
            r"generation\.json in .* has format version 2, which is newer: .* the library version",
        ),
    ],
)
def test_a_generation_that_cannot_be_read_is_refused_by_what_it_is(
    state: SinkState, storage: LocalStorage, data: bytes, message: str
) -> None:
    storage.create("sinks/kafka/generation.json", data)
    with pytest.raises(CheckpointError, match=message):
        state.first_generation(1000)
