from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fanout.core.checkpoint import Checkpoint
from fanout.errors import CheckpointError
from fanout.landing.entries import BatchEntry
from fanout.landing.entry_log import EntryLog
from fanout.landing.ownership import ThisProcess, claim
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
