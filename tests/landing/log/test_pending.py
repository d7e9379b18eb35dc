from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.drain import Drained
from fanout.core.events import Batch, Split
from fanout.core.positions import Cursor, Range
from fanout.errors import CheckpointError
from fanout.landing.log.entries import BatchEntry, TakenSegments
from fanout.landing.log.ledger import BatchLedger
from fanout.landing.log.pending import PendingSegments
from fanout.landing.segments.segments import Filled, SegmentLog
from fanout.landing.storage.local_storage import LocalStorage
from tests.support.manual_source import SCHEMA, records_of
from tests.support.owner import Owner

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.landing.claims import Ownership
    from fanout.landing.log.pending import Pending

SPLIT = Split("member-0")


class Query:
    """The ledger of one run, and what makes its segments."""

    def __init__(self, root: Path, run: int = 1) -> None:
        self.storage = LocalStorage(root)
        self.owner = Owner(run)
        self.ledger = BatchLedger(self.storage, cast("Ownership", self.owner))
        self.pending = self.ledger.pending
        self._log = SegmentLog(
            self.storage.scratch(), run, SCHEMA, max_records=100, max_bytes=1 << 20
        )

    def keep(self, until: int, unconfirmed: str = "") -> Pending:
        """Keep a segment with one record."""
        segment = self._log.open()
        batch = Batch(SPLIT, records_of(SPLIT, [b"x"], until - 1), Range(Cursor(0), Cursor(until)))
        segment.add(Drained((batch,), at(until)))
        return self.pending.keep(Filled(segment, at(until)), unconfirmed)

    def write(self, batch_id: int, *taken: Pending) -> BatchEntry:
        """Write the entry of a batch, and tidy up."""
        taking = self.pending.taking(taken)
        segments = tuple(one.segment for one in taken)
        positions = taken[-1].positions if taken else at(0)
        entry = BatchEntry(batch_id, "query", segments, positions, None, taking)
        self.ledger.write(entry)
        self.ledger.prune()
        return entry

    def names(self, directory: str) -> list[str]:
        return [file.name for file in self.storage.list(directory)]

    def numbers(self) -> list[int]:
        return [int(name.removesuffix(".json")) for name in self.names("pending")]


def at(sequence: int) -> Checkpoint:
    return Checkpoint("lending:one", {SPLIT.id: SplitPosition(SPLIT, Cursor(sequence))})


def spoil(root: Path, **fields: Any) -> None:
    path = root / "pending/000000000001.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_what_is_pending_is_read_back_by_the_next_run(tmp_path: Path) -> None:
    first = Query(tmp_path)
    kept = (first.keep(1, "[1]"), first.keep(2, "[1,2]"))
    second = Query(tmp_path, run=2).pending
    assert second.left == kept
    assert second.unconfirmed == "[1,2]"
    assert second.positions == at(2)


def test_what_a_batch_has_taken_is_pending_no_more(tmp_path: Path) -> None:
    first = Query(tmp_path)
    kept = [first.keep(number) for number in (1, 2, 3)]
    entry = first.write(0, *kept[:2])
    assert first.numbers() == [3]
    assert [segment.name for segment in entry.segments] == [one.segment.name for one in kept[:2]]
    second = Query(tmp_path, run=2)
    assert second.ledger.newest == entry
    assert second.pending.left == (kept[2],)


def test_a_crash_before_the_files_are_deleted_repeats_nothing(tmp_path: Path) -> None:
    first = Query(tmp_path)
    kept = first.keep(1, "[1]")
    first.ledger.write(
        BatchEntry(0, "query", (kept.segment,), at(1), None, TakenSegments(1, "[1]"))
    )
    second = Query(tmp_path, run=2)
    assert second.pending.left == ()
    assert second.pending.unconfirmed == "[1]"
    second.write(1)
    assert second.numbers() == []
    assert Query(tmp_path, run=3).pending.unconfirmed == "[1]"


def test_a_file_that_is_there_again_after_a_loss_of_power_repeats_nothing(tmp_path: Path) -> None:
    first = Query(tmp_path)
    kept = first.keep(1)
    path = tmp_path / "pending/000000000001.json"
    data = path.read_bytes()
    first.write(0, kept)
    for batch_id in range(1, 15):
        first.write(batch_id, first.keep(batch_id + 1))
    path.write_bytes(data)
    assert Query(tmp_path, run=2).pending.left == ()


def test_a_number_is_never_given_again(tmp_path: Path) -> None:
    first = Query(tmp_path)
    first.write(0, first.keep(1))
    second = Query(tmp_path, run=2)
    assert second.keep(2).number == 2


def test_the_segments_of_a_batch_go_together(tmp_path: Path) -> None:
    query = Query(tmp_path)
    for batch_id in range(12):
        query.write(batch_id, query.keep(2 * batch_id + 1), query.keep(2 * batch_id + 2))
    assert len(query.names("segments")) == 20
    known = query.ledger.batch(11)
    assert known is not None
    assert known.rows == 2


def test_a_pending_segment_is_no_orphan(tmp_path: Path) -> None:
    kept = Query(tmp_path).keep(1)
    second = Query(tmp_path, run=2)
    second.write(0)
    assert [f"segments/{name}" for name in second.names("segments")] == [kept.segment.name]
    assert Query(tmp_path, run=3).pending.left == (kept,)


def test_a_segment_that_was_not_named_is_an_orphan(tmp_path: Path) -> None:
    first = Query(tmp_path)
    first.owner.lost = True
    with pytest.raises(CheckpointError, match="taken over"):
        first.keep(1)
    assert len(first.names("segments")) == 1
    assert first.numbers() == []
    second = Query(tmp_path, run=2)
    second.write(0)
    assert second.names("segments") == []


def test_a_run_that_was_overtaken_can_name_nothing(tmp_path: Path) -> None:
    older = Query(tmp_path)
    older.pending.open()
    newer = Query(tmp_path, run=2)
    newer.pending.open()
    # The claim is looked at before a number is taken; this run was held up just then.
    with pytest.raises(CheckpointError, match="another run writes"):
        older.keep(1)
    newer.write(0, newer.keep(1))
    with pytest.raises(CheckpointError, match="another run writes"):
        older.keep(1)
    older.owner.good_for = 1
    with pytest.raises(CheckpointError, match="taken over"):
        older.keep(1)


def test_the_number_of_a_run_that_has_ended_goes(tmp_path: Path) -> None:
    first = Query(tmp_path)
    first.pending.open()
    first.write(0, first.keep(1))
    assert first.numbers() == [1]
    second = Query(tmp_path, run=2)
    second.pending.open()
    second.write(1, second.keep(2))
    assert second.numbers() == [3]


def test_a_source_that_does_not_lend_leaves_no_trace(tmp_path: Path) -> None:
    query = Query(tmp_path)
    query.ledger.write(BatchEntry(0, "query", (), at(1), taken=query.pending.taking()))
    query.ledger.prune()
    stored = json.loads((tmp_path / "batches/000000000000.json").read_text())
    assert "lent" not in stored
    assert not (tmp_path / "pending").exists()
    assert Query(tmp_path, run=2).pending.left == ()


def test_a_pending_segment_that_is_missing_is_missed(tmp_path: Path) -> None:
    first = Query(tmp_path)
    for number in (1, 2):
        first.keep(number)
    (tmp_path / "pending/000000000001.json").unlink()
    with pytest.raises(
        CheckpointError, match=r"000000000001\.json is missing .*; restore this file"
    ):
        Query(tmp_path, run=2)


@pytest.mark.parametrize("length", [0, 1, 50])
def test_a_truncated_file_is_damage(tmp_path: Path, length: int) -> None:
    Query(tmp_path).keep(1)
    path = tmp_path / "pending/000000000001.json"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=r"0001\.json .* is damaged .*; restore this file"):
        Query(tmp_path, run=2)


@pytest.mark.parametrize(
    "fields", [{"number": 2}, {"more": 1}, {"run": -1}, {"kept": {"doubts": ""}}, {"kept": 1}]
)
def test_a_file_that_cannot_be_ours_is_damage(tmp_path: Path, fields: dict[str, Any]) -> None:
    Query(tmp_path).keep(1)
    spoil(tmp_path, **fields)
    with pytest.raises(CheckpointError, match="is damaged"):
        Query(tmp_path, run=2)


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    Query(tmp_path).keep(1)
    spoil(tmp_path, version=2)
    with pytest.raises(CheckpointError, match="format version 2"):
        Query(tmp_path, run=2)


def test_a_damaged_file_that_a_batch_has_taken_is_in_nobodys_way(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.create("pending/000000000001.json", b"")
    owner = cast("Ownership", Owner())
    assert PendingSegments(storage, owner, TakenSegments(1, "")).left == ()
