"""Read the files that version 0.1.0 stored, and write them again unchanged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fanout import Checkpoint, Cursor, Horizon, Timestamp
from fanout.kafka.partitions import Partition
from fanout.kafka.share.unconfirmed import read_unconfirmed
from fanout.kafka.shuffle.producers import Producers
from fanout.landing.storage.local_storage import LocalStorage
from fanout.spark.sinks.kafka.stored_tokens import StoredTokens

STORED = Path(__file__).parents[1] / "checkpoints" / "version_0_1"


@pytest.fixture
def tokens(tmp_path: Path) -> StoredTokens:
    shutil.copytree(STORED / "sink" / "fanout", tmp_path / "fanout")
    return StoredTokens(LocalStorage(tmp_path / "fanout"), "kafka")


@pytest.mark.parametrize("name", ["kinesis", "kafka-shuffle"])
def test_positions_are_written_as_they_were(name: str) -> None:
    text = (STORED / "positions" / f"{name}.json").read_text()
    assert Checkpoint.from_json(text).to_json() == text


def test_positions_of_kinesis() -> None:
    stored = Checkpoint.from_json((STORED / "positions" / "kinesis.json").read_text())
    base = 49655000000000000000000000000000000000000000000000000000
    assert [state.position for state in stored.splits.values()] == [
        Cursor(base + 1),
        Cursor(base + 17, sub=3),
        Timestamp(1760000000123),
        Horizon(),
    ]
    assert [state.ended for state in stored.splits.values()] == [True, False, False, False]


def test_producers_of_a_shuffle() -> None:
    stored = Checkpoint.from_json((STORED / "positions" / "kafka-shuffle.json").read_text())
    position = stored.splits["orders-1"].position
    assert isinstance(position, Cursor)
    producers = Producers.from_state(position.state)
    assert (producers.watermark, producers.to_state()) == (10, position.state)


def test_unconfirmed_records_of_a_share_group() -> None:
    text = (STORED / "positions" / "share-unconfirmed.json").read_text()
    orders, returns = Partition("orders", 0), Partition("returns", 3)
    topic_ids = {"orders": "11", "returns": "22"}
    assert read_unconfirmed(text, "kafka-share:cluster:group", topic_ids) == [
        (orders, 0, 5),
        (orders, 7, 8),
        (returns, 10, 11),
    ]


def test_tokens_of_a_sink(tokens: StoredTokens) -> None:
    (left,) = tokens.unfinished()
    assert (tokens.is_committed(3), tokens.is_committed(4)) == (True, False)
    assert (left.batch_id, left.transactional_id) == (4, "fanout-query-kafka")
