from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fanout.core.checkpoint import Checkpoint
from fanout.errors import CheckpointError
from fanout.landing.entries import BatchEntry, SegmentFile, entry_name
from fanout.landing.entry_log import EntryLog
from fanout.landing.ledger import BatchLedger
from fanout.landing.ownership import ThisProcess, claim
from fanout.landing.retention import sweep_orphans
from tests.landing.lagging_lists import LaggingLists

if TYPE_CHECKING:
    from pathlib import Path

PROCESS = ThisProcess("test")


@pytest.fixture
def storage(tmp_path: Path) -> LaggingLists:
    return LaggingLists(tmp_path / "landing")


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
