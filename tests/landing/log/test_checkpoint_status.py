from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.events import Split
from fanout.core.positions import Cursor
from fanout.errors import CheckpointError, OptionError
from fanout.landing.claims import claim_stopped, is_claimed, read_owner
from fanout.landing.log.checkpoint_status import read_status
from fanout.landing.log.entries import (
    BatchEntry,
    TakenSegments,
    encode_entry,
    encode_origin,
    entry_name,
)
from fanout.landing.log.pending import Pending, encode_pending, pending_name
from fanout.landing.segments.segments import SegmentFile
from fanout.landing.storage.local_storage import LocalFiles, LocalStorage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOLD = """
import sys
from pathlib import Path
from fanout.landing.storage.local_storage import LocalStorage
from fanout.landing.claims import claim_stopped
with claim_stopped(LocalStorage(Path(sys.argv[1])), "holder"):
    print("held", flush=True)
    sys.stdin.read()
"""


def at(number: int) -> Checkpoint:
    return Checkpoint("kinesis:orders", {"a": SplitPosition(Split("a"), Cursor(number))})


def segment(number: int, rows: int) -> SegmentFile:
    return SegmentFile(f"segments/{number}.parquet", rows, 100)


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    """A checkpoint with an origin, two batches and a run that has ended."""
    storage = LocalStorage(tmp_path / "fanout")
    with claim_stopped(storage, "job"):
        storage.create("origin.json", encode_origin(at(0).to_json()))
        for number in (1, 2):
            entry = BatchEntry(number, "query", (segment(number, 10 * number),), at(number))
            storage.create(entry_name(number), encode_entry(entry, run=1))
    return storage


@pytest.fixture
def holder(storage: LocalStorage) -> Iterator[subprocess.Popen[str]]:
    """Another process that owns the checkpoint."""
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", HOLD, str(storage.root)]
    with subprocess.Popen(command, **pipes) as process:  # noqa: S603 - our own code
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_newest_batch_and_the_run_that_wrote_it_are_read(storage: LocalStorage) -> None:
    status = read_status(LocalFiles(storage.root))
    assert status.positions == at(2)
    assert status.batch is not None
    assert (status.batch.entry.batch_id, status.batch.rows) == (2, 20)
    written = (storage.root / entry_name(2)).stat().st_mtime
    assert status.batch.written_at == pytest.approx(written * 1000, abs=1)
    assert status.owner is not None
    assert status.owner.holder is not None
    holder = status.owner.holder
    assert (status.owner.run, holder.application, holder.pid) == (1, "job", os.getpid())
    assert status.owner.since == pytest.approx(
        (storage.root / "runs" / "1").stat().st_mtime * 1000, abs=1
    )
    assert status.owner.running is False


def test_before_the_first_batch_the_positions_are_those_of_the_origin(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.create("origin.json", encode_origin(at(0).to_json()))
    status = read_status(storage)
    assert (status.positions, status.batch, status.owner) == (at(0), None, None)


def test_a_run_that_has_not_found_its_start_yet_has_no_positions(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    with claim_stopped(storage, "job"):
        status = read_status(storage)
    assert (status.positions, status.batch) == (None, None)
    assert status.owner is not None


def test_pending_segments_that_no_batch_has_taken_are_counted(storage: LocalStorage) -> None:
    entry = BatchEntry(3, "query", (segment(3, 5),), at(3), taken=TakenSegments(2, ""))
    storage.create(entry_name(3), encode_entry(entry, run=1))
    for number in (2, 3, 4):
        kept = Pending(number, segment(number, number), at(number), None, "")
        storage.create(pending_name(number), encode_pending(number, kept, run=1))
    storage.create(pending_name(5), encode_pending(5, None, run=1))
    pending = read_status(storage).pending
    assert (pending.segments, pending.rows, pending.positions) == (2, 7, at(4))


@pytest.mark.long
@pytest.mark.usefixtures("holder")
def test_a_running_owner_is_seen_and_not_disturbed(
    storage: LocalStorage, holder: subprocess.Popen[str]
) -> None:
    owner = read_owner(storage)
    assert owner is not None
    assert owner.holder is not None
    assert (owner.running, owner.run, owner.holder.pid) == (True, 2, holder.pid)


def test_who_looks_at_the_lock_does_not_take_it(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the lock was taken")

    monkeypatch.setattr("fcntl.lockf", refuse)
    assert not is_claimed(storage)


def test_nothing_is_written_and_nothing_is_made(storage: LocalStorage, tmp_path: Path) -> None:
    def everything() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

    before = everything()
    read_status(LocalFiles(storage.root))
    assert everything() == before
    with pytest.raises(OptionError, match="no checkpoint of fanout at"):
        read_status(LocalFiles(tmp_path / "missing" / "fanout"))
    assert everything() == before


def test_a_file_that_goes_while_its_directory_is_listed_hides_no_other(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = os.scandir

    @contextmanager
    def pruned(path: Path) -> Iterator[list[os.DirEntry[str]]]:
        with scan(path) as entries:
            found = list(entries)
        (path / "000000000001.json").unlink(missing_ok=True)
        yield found

    monkeypatch.setattr("os.scandir", pruned)
    assert [info.name for info in storage.list("batches")] == ["000000000002.json"]


def test_an_entry_that_was_replaced_before_it_is_read_is_looked_for_again(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = LocalFiles.read

    def replaced(files: LocalFiles, name: str, *, limit: int) -> bytes | None:
        if name == entry_name(2) and (files.root / name).exists():
            (files.root / name).unlink()
            entry = BatchEntry(3, "query", (), at(3))
            storage.create(entry_name(3), encode_entry(entry, run=1))
        return read(files, name, limit=limit)

    monkeypatch.setattr(LocalFiles, "read", replaced)
    assert read_status(LocalFiles(storage.root)).positions == at(3)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"not json", "000000000009.json in .* is damaged .*; restore this file alone"),
        (b'{"version":3}', "has format version 3, which is newer: this library reads version 2"),
    ],
)
def test_an_entry_that_cannot_be_read_is_refused(
    storage: LocalStorage, data: bytes, sentence: str
) -> None:
    storage.create(entry_name(9), data)
    with pytest.raises(CheckpointError, match=sentence):
        read_status(storage)
