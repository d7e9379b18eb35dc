from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.events import Split
from fanout.core.positions import Cursor, Horizon, Range
from fanout.errors import CheckpointError
from fanout.landing.log.entries import BatchEntry, TakenSegments, entry_name
from fanout.landing.log.ledger import BatchLedger, LedgerBatch
from fanout.landing.segments.segments import SegmentFile
from fanout.landing.storage.local_storage import LocalStorage
from tests.support.owner import Owner

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.landing.claims import Ownership

QUERY = "3f6e3a0c-7b1d-4a35-9d5f-000000000001"


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path)


def open_ledger(storage: LocalStorage, owner: Owner | None = None) -> BatchLedger:
    return BatchLedger(storage, cast("Ownership", owner or Owner()))


def positions(sequence: int) -> Checkpoint:
    split = Split("a")
    return Checkpoint("test", {"a": SplitPosition(split, Cursor(sequence), ended=False)})


def publish(storage: LocalStorage, name: str) -> SegmentFile:
    """Publish a segment; what is in it is none of the ledger's business."""
    file = storage.scratch() / name
    file.write_bytes(b"1234")
    storage.publish(file, f"segments/{name}")
    return SegmentFile(name=f"segments/{name}", rows=1, size=4)


def with_segment(storage: LocalStorage, batch_id: int, run: int = 1) -> BatchEntry:
    segment = publish(storage, f"run-{run:06}-{batch_id:08}.parquet")
    return BatchEntry(batch_id, QUERY, (segment,), positions(batch_id + 1))


def idle(batch_id: int) -> BatchEntry:
    return BatchEntry(batch_id, QUERY, (), positions(batch_id + 1))


def segments(storage: LocalStorage) -> list[str]:
    return [file.name for file in storage.list("segments")]


def batches(storage: LocalStorage) -> list[int]:
    return [int(file.name.removesuffix(".json")) for file in storage.list("batches")]


def spoil(root: Path, name: str, **fields: Any) -> None:
    """Change fields of a stored file."""
    path = root / name
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_an_entry_is_read_back_by_the_next_run(storage: LocalStorage) -> None:
    entry = with_segment(storage, 3)
    open_ledger(storage).write(entry)
    ledger = open_ledger(storage, Owner(2))
    assert ledger.newest == entry
    assert ledger.find(3, QUERY) == entry


def test_the_batch_id_after_the_newest_is_a_new_one(storage: LocalStorage) -> None:
    ledger = open_ledger(storage)
    assert ledger.find(0, QUERY) is None
    ledger.write(idle(3))
    assert ledger.find(4, QUERY) is None


def test_a_batch_id_whose_predecessor_has_no_entry_is_refused(storage: LocalStorage) -> None:
    ledger = open_ledger(storage)
    with pytest.raises(CheckpointError, match=r"for batch 1, .* no entry of batch 0: restore"):
        ledger.find(1, QUERY)
    ledger.write(idle(3))
    with pytest.raises(CheckpointError, match=r"for batch 5, .* no entry of batch 4: restore"):
        ledger.find(5, QUERY)


def test_a_reader_goes_on_after_the_newest_batch_or_from_the_origin(storage: LocalStorage) -> None:
    ledger = open_ledger(storage)
    assert ledger.positions() is None
    ledger.write_origin(positions(7).to_json())
    assert ledger.positions() == positions(7)
    ledger.write(idle(0))
    assert ledger.positions() == positions(1)


def test_a_batch_id_is_written_once(storage: LocalStorage) -> None:
    first, second = open_ledger(storage), open_ledger(storage)
    first.write(idle(3))
    with pytest.raises(CheckpointError, match=r"0003\.json is already in .* another run"):
        second.write(with_segment(storage, 3))
    assert open_ledger(storage).newest == idle(3)


def test_a_run_that_is_overtaken_while_it_writes_a_batch_says_so(storage: LocalStorage) -> None:
    ledger = open_ledger(storage, Owner(good_for=1))
    open_ledger(storage).write(idle(0))
    with pytest.raises(CheckpointError, match="taken over"):
        ledger.write(with_segment(storage, 0))


def test_nothing_is_written_after_the_checkpoint_was_lost(storage: LocalStorage) -> None:
    ledger = open_ledger(storage, Owner(lost=True))
    with pytest.raises(CheckpointError, match="taken over"):
        ledger.write(idle(0))
    with pytest.raises(CheckpointError, match="taken over"):
        ledger.write_origin(positions(1).to_json())
    assert batches(storage) == []
    assert open_ledger(storage).origin() is None


def test_a_batch_id_below_the_newest_is_refused(storage: LocalStorage) -> None:
    ledger = open_ledger(storage)
    ledger.write(idle(3))
    with pytest.raises(CheckpointError, match=r"asks for batch 0, .* holds batch 3.*restore"):
        ledger.find(0, QUERY)


@pytest.mark.parametrize("batch_id", [3, 4])
def test_another_query_is_refused(storage: LocalStorage, batch_id: int) -> None:
    ledger = open_ledger(storage)
    ledger.write(idle(3))
    with pytest.raises(CheckpointError, match="belongs to the Spark query"):
        ledger.find(batch_id, "another")


def test_the_origin_is_read_back(storage: LocalStorage) -> None:
    assert open_ledger(storage).origin() is None
    open_ledger(storage).write_origin(positions(7).to_json())
    assert open_ledger(storage).origin() == positions(7)


def test_an_origin_that_another_run_wrote_meanwhile_is_a_clear_error(
    storage: LocalStorage,
) -> None:
    open_ledger(storage).write_origin(positions(7).to_json())
    with pytest.raises(CheckpointError, match="another run"):
        open_ledger(storage).write_origin(positions(8).to_json())
    assert open_ledger(storage).origin() == positions(7)


def test_the_newest_ten_batches_keep_their_segments(storage: LocalStorage) -> None:
    ledger = open_ledger(storage)
    for batch_id in range(13):
        ledger.write(with_segment(storage, batch_id))
        ledger.prune()
    assert batches(storage) == list(range(3, 13))
    assert segments(storage) == [f"run-000001-{n:08}.parquet" for n in range(3, 13)]


def test_idle_entries_push_no_segment_out(storage: LocalStorage) -> None:
    ledger = open_ledger(storage)
    for batch_id in range(3):
        ledger.write(with_segment(storage, batch_id))
    for batch_id in range(3, 30):
        ledger.write(idle(batch_id))
        ledger.prune()
    assert batches(storage) == [0, 1, 2, 29]
    assert len(segments(storage)) == 3


def test_what_was_kept_is_kept_by_the_next_run(storage: LocalStorage) -> None:
    ledger = open_ledger(storage)
    for batch_id in range(10):
        ledger.write(with_segment(storage, batch_id))
    ledger = open_ledger(storage, Owner(2))
    ledger.write(with_segment(storage, 10, run=2))
    ledger.prune()
    assert batches(storage) == list(range(1, 11))
    assert len(segments(storage)) == 10


def test_orphans_of_earlier_runs_go_after_the_first_entry(storage: LocalStorage) -> None:
    publish(storage, "run-000001-00000009.parquet")
    ledger = open_ledger(storage, Owner(2))
    assert len(segments(storage)) == 1
    ledger.write(with_segment(storage, 0, run=2))
    ledger.prune()
    assert segments(storage) == ["run-000002-00000000.parquet"]


def test_the_next_segment_of_this_run_is_no_orphan(storage: LocalStorage) -> None:
    ledger = open_ledger(storage, Owner(2))
    ledger.write(with_segment(storage, 0, run=2))
    publish(storage, "run-000002-00000001.parquet")
    ledger.prune()
    assert len(segments(storage)) == 2


def test_a_run_that_was_overtaken_deletes_nothing_of_the_newer_one(storage: LocalStorage) -> None:
    ledger = open_ledger(storage, Owner(2))
    ledger.write(with_segment(storage, 0, run=2))
    # The newer run is here before the older one has come to tidying up.
    publish(storage, "run-000003-00000001.parquet")
    publish(storage, "run-1000000-00000001.parquet")
    ledger.prune()
    assert "run-000003-00000001.parquet" in segments(storage)
    assert "run-1000000-00000001.parquet" in segments(storage)


def test_a_foreign_file_beside_the_segments_stays(storage: LocalStorage) -> None:
    publish(storage, "notes.parquet")
    ledger = open_ledger(storage)
    ledger.write(with_segment(storage, 0))
    ledger.prune()
    assert "notes.parquet" in segments(storage)


@pytest.mark.parametrize("name", ["notes.json", "1.json.bak", "x", "²"])
def test_a_foreign_file_beside_the_entries_is_no_obstacle(
    storage: LocalStorage, tmp_path: Path, name: str
) -> None:
    open_ledger(storage).write(idle(3))
    (tmp_path / "batches" / name).write_text("hello")
    newest = open_ledger(storage).newest
    assert newest is not None
    assert newest.batch_id == 3


ENTRY = "batches/000000000003.json"


@pytest.mark.parametrize("length", [0, 1, 100])
def test_a_truncated_entry_is_damage(storage: LocalStorage, tmp_path: Path, length: int) -> None:
    open_ledger(storage).write(with_segment(storage, 3))
    path = tmp_path / ENTRY
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(
        CheckpointError, match=r"000000000003\.json .* is damaged .*; restore this file"
    ):
        open_ledger(storage)


NESTED = b'{"version":1,"positions":' + b"[" * 100_000


@pytest.mark.parametrize(
    "data", [b"\xff\xfe", NESTED, b"null", b'{"version":"1"}', b'{"a":"\xff"}']
)
def test_an_entry_that_is_no_entry_is_damage(
    storage: LocalStorage, tmp_path: Path, data: bytes
) -> None:
    open_ledger(storage).write(idle(3))
    (tmp_path / ENTRY).write_bytes(data)
    with pytest.raises(CheckpointError, match="is damaged"):
        open_ledger(storage)


@pytest.mark.parametrize(
    "segment",
    [
        {"name": "../../etc/passwd", "rows": 1, "size": 4},
        {"name": "segments/../../secret.parquet", "rows": 1, "size": 4},
        {"name": "/segments/x.parquet", "rows": 1, "size": 4},
        {"name": "segments/_x.parquet", "rows": 1, "size": 4},
        {"name": "segments/x.parquet\n", "rows": 1, "size": 4},
        {"name": "segments/*.parquet", "rows": 1, "size": 4},
        {"name": "segments/x.parquet", "rows": -1, "size": 4},
        {"name": "segments/x.parquet", "rows": 1, "size": "4"},
        {"name": "segments/x.parquet", "rows": 1},
        {"name": "segments/x.parquet", "rows": 1, "size": 4, "more": 1},
    ],
)
def test_a_segment_that_cannot_be_ours_is_damage(
    storage: LocalStorage, tmp_path: Path, segment: object
) -> None:
    open_ledger(storage).write(with_segment(storage, 3))
    spoil(tmp_path, ENTRY, segment=segment)
    with pytest.raises(CheckpointError, match="is damaged"):
        open_ledger(storage)


@pytest.mark.parametrize("fields", [{"more": 1}, {"batch": -3}, {"run": "1"}, {"query": None}])
def test_a_field_that_cannot_be_ours_is_damage(
    storage: LocalStorage, tmp_path: Path, fields: dict[str, Any]
) -> None:
    open_ledger(storage).write(idle(3))
    spoil(tmp_path, ENTRY, **fields)
    with pytest.raises(CheckpointError, match="is damaged"):
        open_ledger(storage)


def test_an_entry_under_the_name_of_another_batch_is_refused(
    storage: LocalStorage, tmp_path: Path
) -> None:
    open_ledger(storage).write(idle(3))
    spoil(tmp_path, ENTRY, batch=4)
    with pytest.raises(CheckpointError, match=r"0003\.json .* batch 4\); restore this file"):
        open_ledger(storage)


def test_damaged_positions_are_refused(storage: LocalStorage, tmp_path: Path) -> None:
    open_ledger(storage).write(idle(3))
    spoil(tmp_path, ENTRY, positions={"version": 1, "source": "test"})
    with pytest.raises(CheckpointError, match="positions are damaged"):
        open_ledger(storage)


def test_an_entry_of_a_newer_version_is_refused(storage: LocalStorage, tmp_path: Path) -> None:
    open_ledger(storage).write(idle(3))
    spoil(tmp_path, ENTRY, version=3, shiny="new")
    with pytest.raises(CheckpointError, match=r"format version 3, .* reads version 2; use"):
        open_ledger(storage)


def test_an_origin_of_a_newer_version_is_refused(storage: LocalStorage, tmp_path: Path) -> None:
    open_ledger(storage).write_origin(positions(1).to_json())
    spoil(tmp_path, "origin.json", version=2)
    with pytest.raises(CheckpointError, match=r"origin\.json .* format version 2"):
        open_ledger(storage).origin()


def test_a_file_that_is_far_too_large_is_not_read(storage: LocalStorage, tmp_path: Path) -> None:
    open_ledger(storage).write(idle(3))
    with (tmp_path / ENTRY).open("r+b") as file:
        file.truncate(1 << 30)
    with pytest.raises(CheckpointError, match="larger than"):
        open_ledger(storage)


def test_the_watermark_of_a_batch_is_read_back(storage: LocalStorage) -> None:
    entry = replace(with_segment(storage, 0), watermark=-5)
    open_ledger(storage).write(entry)
    assert open_ledger(storage).newest == entry


def test_an_entry_without_a_watermark_has_no_such_field(storage: LocalStorage) -> None:
    open_ledger(storage).write(idle(0))
    stored = json.loads(storage.read("batches/000000000000.json", limit=10_000) or b"")
    assert sorted(stored) == ["batch", "positions", "query", "run", "segments", "version"]
    assert open_ledger(storage).newest == idle(0)


@pytest.mark.parametrize("segments", [0, 1, 3])
@pytest.mark.parametrize("taken", [None, TakenSegments(3, "[1]")])
def test_an_entry_of_version_1_is_read(
    storage: LocalStorage, segments: int, taken: TakenSegments | None
) -> None:
    files: list[dict[str, Any]] = [
        {"name": f"segments/run-{n}.parquet", "rows": n, "size": n} for n in range(segments)
    ]
    stored = {
        "version": 1,
        "run": 1,
        "batch": 3,
        "query": QUERY,
        "segment": files[0] if files else None,
        "positions": json.loads(positions(4).to_json()),
    }
    named = tuple(SegmentFile(**file) for file in files)
    if taken is None:
        named = named[:1]
    else:
        stored["lent"] = {"taken": 3, "doubts": "[1]", "more": files[1:]}
    storage.create(entry_name(3), json.dumps(stored).encode())
    assert open_ledger(storage).newest == BatchEntry(3, QUERY, named, positions(4), None, taken)


@pytest.mark.parametrize("watermark", ["5", 1.5, 2**63, -(2**63) - 1, [], True])
def test_a_damaged_watermark_is_refused(
    storage: LocalStorage, tmp_path: Path, watermark: Any
) -> None:
    open_ledger(storage).write(idle(0))
    spoil(tmp_path, "batches/000000000000.json", watermark=watermark)
    with pytest.raises(CheckpointError, match="damaged"):
        open_ledger(storage)


def test_the_ledger_tells_what_a_batch_covers(storage: LocalStorage) -> None:
    ledger = open_ledger(storage)
    ledger.write_origin(positions(0).to_json())
    ledger.write(replace(with_segment(storage, 0), watermark=9))
    ledger.write(idle(1))
    ledger.write(with_segment(storage, 2))
    for reported in (ledger, open_ledger(storage)):
        covered = {"a": Range(Cursor(0), Cursor(1))}
        assert reported.batch(0) == LedgerBatch(0, rows=1, bytes=4, ranges=covered, watermark=9)
        covered = {"a": Range(Cursor(1), Cursor(2))}
        assert reported.batch(1) == LedgerBatch(1, rows=0, bytes=0, ranges=covered, watermark=None)
        covered = {"a": Range(Cursor(2), Cursor(3))}
        assert reported.batch(2) == LedgerBatch(2, rows=1, bytes=4, ranges=covered, watermark=None)
        assert reported.batch(3) is None


def test_a_batch_covers_what_was_idle_before_it_where_that_is_forgotten(
    storage: LocalStorage,
) -> None:
    ledger = open_ledger(storage)
    ledger.write_origin(positions(0).to_json())
    for batch_id in range(20):
        ledger.write(idle(batch_id) if batch_id % 2 else with_segment(storage, batch_id))
        ledger.prune()
    reported = ledger.batch(18)
    assert reported is not None
    assert reported.ranges == {"a": Range(Cursor(17), Cursor(19))}
    oldest = ledger.batch(0)
    assert oldest is not None
    assert oldest.ranges == {"a": Range(Cursor(0), Cursor(1))}
    ledger.write(with_segment(storage, 20))
    ledger.prune()
    assert ledger.batch(0) is None
    oldest = ledger.batch(2)
    assert oldest is not None
    assert (oldest.rows, oldest.ranges) == (1, None)


def test_a_batch_covers_the_splits_that_have_moved(storage: LocalStorage) -> None:
    def at(**sequences: int) -> Checkpoint:
        splits = {
            id_: SplitPosition(Split(id_), Cursor(sequence)) for id_, sequence in sequences.items()
        }
        return Checkpoint("test", splits)

    ledger = open_ledger(storage)
    ledger.write_origin(at(a=1, b=1).to_json())
    ledger.write(replace(with_segment(storage, 0), positions=at(a=1, b=5, new=3)))
    reported = ledger.batch(0)
    assert reported is not None
    assert reported.ranges == {
        "b": Range(Cursor(1), Cursor(5)),
        "new": Range(Horizon(), Cursor(3)),
    }


def test_a_batch_may_end_before_the_one_before_it_where_a_split_began_anew(
    storage: LocalStorage,
) -> None:
    def at(sequence: int) -> Checkpoint:
        return Checkpoint("test", {"a": SplitPosition(Split("a"), Cursor(sequence))})

    ledger = open_ledger(storage)
    ledger.write_origin(at(-1).to_json())
    ledger.write(replace(with_segment(storage, 0), positions=at(9)))
    ledger.write(replace(with_segment(storage, 1), positions=at(4)))
    assert open_ledger(storage).positions() == at(4)
