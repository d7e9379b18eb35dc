"""A landing whose files several landers write at a time: their numbers are mixed in its entries."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fanout.core.checkpoint import Checkpoint
from fanout.landing.claims import ThisProcess, claim
from fanout.landing.log.entries import BatchEntry, EntryLog
from fanout.landing.retention import sweep_files_of_landers, sweep_orphans
from fanout.landing.segments.segments import SegmentFile
from fanout.landing.spark_log import SparkLog
from fanout.landing.storage.local_storage import LocalStorage
from tests.landing.spark_reader import read_log
from tests.support.retention import expire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.landing.claims import Ownership

# The names end with the sessions of landers and the numbers of their files, or with the latter
# where the run itself has filled it.
MIXED = ("1-50", "2-3", "1-51", "7", "8", "4-1", "3-90", "2-4", "4-2")


class Run:
    """A run that writes entries of one file each."""

    def __init__(
        self, storage: LocalStorage, log: EntryLog, spark_log: SparkLog, owner: Ownership
    ) -> None:
        self.log = log
        self.owner = owner
        self._storage = storage
        self._spark_log = spark_log

    def write(self, *names: str, run: int = 1) -> None:
        for name in names:
            file = publish(self._storage, name, run)
            entry = BatchEntry(self.log.next_number, "", (file,), Checkpoint("manual:one", {}))
            self.log.write(entry)
            self._spark_log.write(entry, (), 1)

    def let_go(self, name: str) -> None:
        """Let a file leave Spark's log, as it is too old; its entry is there still."""
        empty = BatchEntry(self.log.next_number, "", (), Checkpoint("manual:one", {}))
        self.log.write(empty)
        while full_name(name) in self._spark_log._lines:
            self._spark_log.write(empty, {full_name(name)}, 1)


def full_name(name: str, run: int = 1) -> str:
    *sessions, number = name.split("-")
    numbers = [*(f"{int(session):06}" for session in sessions), f"{int(number):08}"]
    return f"segments/run-{run:06}-{'-'.join(numbers)}.parquet"


def publish(storage: LocalStorage, name: str, run: int = 1) -> SegmentFile:
    storage.create(full_name(name, run), b"1234")
    return SegmentFile(full_name(name, run), 1, 4)


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "landing")


@contextmanager
def running(storage: LocalStorage) -> Iterator[Run]:
    with claim(storage, ThisProcess("test")) as owner:
        log = EntryLog(storage, owner)
        log.write(BatchEntry(log.next_number, "", (), Checkpoint("manual:one", {})))
        spark_log = SparkLog.open(storage, owner, log)
        assert spark_log is not None
        of_landers = sweep_orphans(storage, log, owner)
        sweep_files_of_landers(storage, log, of_landers, threading.Event())
        yield Run(storage, log, spark_log, owner)


def shown(storage: LocalStorage) -> list[str]:
    root = f"file://{storage.root}/"
    return [line["path"].removeprefix(root) for line in read_log(storage)]


def test_the_next_run_keeps_what_is_named_and_nothing_else(storage: LocalStorage) -> None:
    with running(storage) as run:
        run.write(*MIXED)
        for orphan in ("1-52", "2-5", "9", "5-1"):
            publish(storage, orphan)
    with running(storage):
        pass
    assert set(storage.walk("segments")) == {full_name(name) for name in MIXED}
    assert shown(storage) == [full_name(name) for name in MIXED]


@pytest.mark.parametrize("written", range(len(MIXED)))
def test_spark_sees_each_file_once_although_its_log_was_behind(
    storage: LocalStorage, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(storage) as run:
        run.write(*MIXED[:written])
        monkeypatch.setattr(SparkLog, "write", lambda *_: True)
        run.write(*MIXED[written:])
    monkeypatch.undo()
    with running(storage):
        pass
    assert shown(storage) == [full_name(name) for name in MIXED]


def test_what_was_deleted_without_the_log_leaves_it(storage: LocalStorage) -> None:
    with running(storage) as run:
        run.write(*MIXED)
    expire(Path(storage.location), 5)
    with running(storage):
        pass
    assert shown(storage) == [full_name(name) for name in MIXED[4:]]
    # Their entries have gone, and so they go.
    assert set(storage.walk("segments")) == {full_name(name) for name in MIXED[4:]}


def test_the_file_of_an_entry_that_is_about_to_go_stays_as_long(storage: LocalStorage) -> None:
    with running(storage) as run:
        run.write(*MIXED)
        run.let_go(MIXED[0])
        assert full_name(MIXED[0]) not in shown(storage)
    with running(storage):
        pass
    assert storage.size(full_name(MIXED[0])) == 4


def test_a_start_reads_the_entries_of_the_last_runs_alone(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 26):
        with running(storage) as run:
            run.write("1-1", run=number)
            publish(storage, "1-2", number)
    read, look_up = list[int](), EntryLog.look_up

    def looked_up(log: EntryLog, number: int) -> BatchEntry | None:
        read.append(number)
        return look_up(log, number)

    with running(storage) as run:
        of_landers = sweep_orphans(storage, run.log, run.owner)
        monkeypatch.setattr(EntryLog, "look_up", looked_up)
        sweep_files_of_landers(storage, run.log, of_landers, threading.Event())
    assert set(storage.walk("segments")) == {full_name("1-1", run) for run in range(1, 26)}
    assert len(of_landers) == 25
    # Each run has written two entries. Those of the last five are read, and some at once before.
    assert 10 < min(read) < 40
