from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from fanout.core.checkpoint import Checkpoint
from fanout.landing.claims import ThisProcess, claim
from fanout.landing.log.entries import BATCHES, BatchEntry, EntryLog, batch_ids, entry_name
from fanout.landing.retention import Retention
from fanout.landing.segments.segments import SegmentFile
from tests.landing.lagging_lists import LaggingLists

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

HOUR = timedelta(hours=1)


def test_an_entry_that_a_list_missed_is_deleted_with_those_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Followers go from one number to the next, and would wait for ever behind one that stays."""
    storage = LaggingLists(tmp_path)
    with claim(storage, ThisProcess("test")) as ownership:
        log = EntryLog(storage, ownership)
        for number in range(5):
            file = SegmentFile(f"segments/run-000001-0000000{number}.parquet", 1, 1)
            storage.create(file.name, b"rows")
            log.write(BatchEntry(number, "", (file,), Checkpoint("manual:one")))
        storage.hidden = {entry_name(2).rpartition("/")[2]}
        retention = Retention(storage, EntryLog(storage, ownership), HOUR, HOUR)
        storage.hidden = set()
        now = Retention.now()
        monkeypatch.setattr(Retention, "now", staticmethod(lambda: now + 3_601_000))
        log.write(BatchEntry(5, "", (), Checkpoint("manual:one")))
        expired = retention.expire(5)
        assert expired == {f"segments/run-000001-0000000{number}.parquet" for number in range(5)}
        retention.delete()
        assert batch_ids(file.name for file in storage.list(BATCHES)) == [5]
        assert storage.walk("segments") == ()
