from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fanout.core.checkpoint import Checkpoint
from fanout.errors import CheckpointError
from fanout.landing.claims import ThisProcess, claim
from fanout.landing.log.entries import BatchEntry, EntryLog, entry_name
from fanout.landing.log.ledger import BatchLedger
from fanout.landing.retention import check_no_files, sweep_orphans
from fanout.landing.segments.segments import SegmentFile
from fanout.landing.storage.local_storage import LocalStorage
from tests.landing.lagging_lists import LaggingLists

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.landing.claims import Lock

PROCESS = ThisProcess("test")


@pytest.fixture
def storage(tmp_path: Path) -> LaggingLists:
    return LaggingLists(tmp_path / "landing")


class BusyProcess:
    """A process that gets the lock at the third attempt, when another one has released it."""

    def __init__(self, failures: int) -> None:
        self._failures = failures

    def try_lock(self, path: Path) -> Lock | None:
        self._failures -= 1
        return None if self._failures >= 0 else PROCESS.try_lock(path)

    def has_locked(self, path: Path) -> bool:
        return PROCESS.has_locked(path)

    def describe(self) -> tuple[str, int]:
        return PROCESS.describe()


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_run_that_waits_says_so_at_once_and_only_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, failures: int
) -> None:
    storage = LocalStorage(tmp_path / "landing")
    with claim(storage, PROCESS):
        pass
    caplog.clear()
    with claim(storage, BusyProcess(failures), 7.5):
        pass
    waits = [
        each for each in caplog.records if vars(each)["event.name"] == "fanout.checkpoint.awaited"
    ]
    assert len(waits) == min(failures, 1)
    for each in waits:
        assert each.levelname == "WARNING"
        assert re.fullmatch(
            rf"waiting for {re.escape(storage.location)} for at most 7\.5 s: "
            rf"application 'test', process \d+ on '.*' is still running",
            each.getMessage(),
        )
        assert vars(each)["fanout.wait"] == 7.5


def entry(number: int) -> BatchEntry:
    return BatchEntry(number, "query", (), Checkpoint("kinesis:there", {}))


def test_a_check_of_ownership_lists_nothing(storage: LaggingLists) -> None:
    with claim(storage, PROCESS) as owner:
        before = storage.lists
        owner.check()
    assert storage.lists == before


def test_a_newer_run_is_noticed_although_lists_lag(storage: LaggingLists) -> None:
    with claim(storage, PROCESS) as older:
        storage.list("runs")
        storage.lagging = True
        with claim(storage, PROCESS) as newer:
            assert newer.run == older.run + 1
            newer.check()
            with pytest.raises(CheckpointError, match="taken over by a newer run"):
                older.check()


def test_many_runs_begin_although_lists_lag(storage: LaggingLists) -> None:
    with claim(storage, PROCESS) as first:
        storage.list("runs")
    storage.lagging = True
    runs = []
    for _ in range(3):
        with claim(storage, PROCESS) as owner:
            runs.append(owner.run)
    assert runs == [first.run + 1, first.run + 2, first.run + 3]


def test_the_newest_entry_is_found_although_lists_lag(storage: LaggingLists) -> None:
    with claim(storage, PROCESS) as owner:
        log = EntryLog(storage, owner)
        log.write(entry(0))
        storage.list("batches")
        storage.lagging = True
        log.write(entry(1))
        log.write(entry(2))
        assert EntryLog(storage, owner).newest == entry(2)


def test_an_entry_that_has_gone_is_passed_over_although_a_list_still_shows_it(
    storage: LaggingLists,
) -> None:
    with claim(storage, PROCESS) as owner:
        log = EntryLog(storage, owner)
        log.write(entry(0))
        log.write(entry(1))
        storage.list("batches")
        storage.lagging = True
        storage.delete(entry_name(0))
        ledger = BatchLedger(storage, owner)
    assert ledger.newest == entry(1)
    assert ledger.batch(0) is None


def test_an_entry_is_known_although_a_list_misses_it(storage: LaggingLists) -> None:
    with claim(storage, PROCESS) as owner:
        ledger = BatchLedger(storage, owner)
        for number in range(3):
            ledger.write(with_file(storage, number, owner.run))
    storage.hidden.add("000000000001.json")
    with claim(storage, PROCESS) as owner:
        ledger = BatchLedger(storage, owner)
        ledger.write(entry(3))
        ledger.prune()
        assert ledger.batch(1) is not None
    assert [storage.size(file_name(number, owner.run - 1)) for number in range(3)] == [4, 4, 4]


def with_file(storage: LaggingLists, number: int, run: int) -> BatchEntry:
    file = SegmentFile(file_name(number, run), 1, 4)
    storage.create(file.name, b"1234")
    return BatchEntry(number, "query", (file,), Checkpoint("kinesis:there", {}))


def file_name(number: int, run: int) -> str:
    return f"segments/run-{run:06}-{number + 1:08}.parquet"


def idle_while_lists_lag(storage: LaggingLists, *, listed: int) -> None:
    """Write four entries without records, of which the newest is kept and a list shows one."""
    with claim(storage, PROCESS) as owner:
        ledger = BatchLedger(storage, owner)
        ledger.write(with_file(storage, 0, owner.run))
        for number in range(1, 5):
            ledger.write(entry(number))
            ledger.prune()
            if number == listed:
                storage.list("batches")
                storage.lagging = True


def test_a_run_says_so_when_a_list_shows_only_what_was_deleted(storage: LaggingLists) -> None:
    idle_while_lists_lag(storage, listed=2)
    with (
        claim(storage, PROCESS) as owner,
        pytest.raises(CheckpointError, match=r"shows batches/000000000002.json, which was deleted"),
    ):
        BatchLedger(storage, owner)


def test_a_run_that_begins_too_early_because_a_list_lags_writes_nothing(
    storage: LaggingLists,
) -> None:
    with claim(storage, PROCESS) as owner:
        BatchLedger(storage, owner).write(with_file(storage, 0, owner.run))
    storage.list("batches")
    storage.lagging = True
    with claim(storage, PROCESS) as owner:
        ledger = BatchLedger(storage, owner)
        for number in range(1, 5):
            ledger.write(entry(number))
            ledger.prune()
    with claim(storage, PROCESS) as owner:
        # Spark knows the number of its batch: the list shows entry 0 alone.
        ledger = BatchLedger(storage, owner)
        for batch in (4, 5):
            with pytest.raises(CheckpointError, match="the list lags behind; start again"):
                ledger.find(batch, "query")
        storage.lagging = False
        ledger = BatchLedger(storage, owner)
        assert ledger.find(4, "query") == entry(4)
        assert ledger.find(5, "query") is None


def test_a_landing_is_continued_although_a_list_shows_only_what_was_deleted(
    storage: LaggingLists,
) -> None:
    with claim(storage, PROCESS) as owner:
        log = EntryLog(storage, owner)
        log.write(entry(0))
        storage.list("batches")
        storage.lagging = True
        log.write(entry(1))
        log.write(entry(2))
        storage.delete(entry_name(0))
        assert EntryLog(storage, owner).newest == entry(2)


def test_files_without_any_entry_are_not_swept(storage: LaggingLists) -> None:
    with_file(storage, 0, 1)
    with pytest.raises(CheckpointError, match=r"has the file segments/run-.*, and no entry in bat"):
        check_no_files(storage)


def test_nothing_is_swept_although_a_list_misses_the_oldest_entries(storage: LaggingLists) -> None:
    with claim(storage, PROCESS) as owner:
        log = EntryLog(storage, owner)
        for number in range(3):
            log.write(with_file(storage, number, owner.run))
    storage.hidden |= {"000000000000.json", "000000000001.json"}
    with claim(storage, PROCESS) as owner:
        log = EntryLog(storage, owner)
        log.write(entry(3))
        sweep_orphans(storage, log, owner)
    assert len(storage.walk("segments")) == 3


def test_files_of_an_entry_that_was_too_old_are_swept(storage: LaggingLists) -> None:
    with claim(storage, PROCESS) as owner:
        log = EntryLog(storage, owner)
        for number in range(3):
            log.write(replace(with_file(storage, number, owner.run), first=number // 2))
        storage.delete(entry_name(0))  # a run is killed before it deletes the file
    with claim(storage, PROCESS) as owner:
        log = EntryLog(storage, owner)
        log.write(entry(3))
        sweep_orphans(storage, log, owner)
    assert storage.walk("segments") == (file_name(1, 1), file_name(2, 1))


@pytest.mark.parametrize("landed", [0, 1, 20])
def test_the_file_of_an_overtaken_run_that_comes_late_is_swept_by_the_next_one(
    storage: LaggingLists, landed: int
) -> None:
    named = []
    for run in (1, 2, 3):
        with claim(storage, PROCESS) as owner:
            log = EntryLog(storage, owner)
            log.write(entry(log.next_number))
            sweep_orphans(storage, log, owner)
            for number in range(landed):
                named.append(file_name(number, run))
                log.write(replace(with_file(storage, number, run), batch_id=log.next_number))
            # The upload of the run before is completed only now.
            if run > 1:
                storage.create(file_name(landed, run - 1), b"late")
    with claim(storage, PROCESS) as owner:
        log = EntryLog(storage, owner)
        log.write(entry(log.next_number))
        sweep_orphans(storage, log, owner)
    assert storage.walk("segments") == tuple(named)


def test_no_named_file_is_an_orphan_although_a_list_misses_its_entry(
    storage: LaggingLists,
) -> None:
    file = SegmentFile("segments/run-000001-00000001.parquet", 1, 4)
    with claim(storage, PROCESS) as owner:
        storage.create(file.name, b"1234")
        log = EntryLog(storage, owner)
        log.write(entry(0))
        log.write(BatchEntry(1, "query", (file,), Checkpoint("kinesis:there", {})))
        log.write(entry(2))
    storage.hidden.add("000000000001.json")
    with claim(storage, PROCESS) as owner:
        log = EntryLog(storage, owner)
        log.write(entry(3))
        sweep_orphans(storage, log, owner)
    assert storage.size(file.name) == 4
