"""A landing that has lost entries is not gone on with, and nothing of it is deleted."""

from __future__ import annotations

import asyncio
import re
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fanout.core.checkpoint import Checkpoint
from fanout.errors import CheckpointError
from fanout.landers.land import land
from fanout.landing.claims import ThisProcess, claim
from fanout.landing.log.checkpoint_status import read_status
from fanout.landing.log.entries import BatchEntry, EntryLog, entry_name, read_entry
from fanout.landing.log.followed import followed
from fanout.landing.log.gaps import check_whole
from fanout.landing.log.landed_log import LandedLog, Place
from fanout.landing.retention import Retention, sweep_files_of_landers, sweep_orphans
from fanout.landing.segments.segments import SegmentFile
from fanout.landing.storage.local_storage import LocalFiles, LocalStorage
from tests.landing.lagging_lists import LaggingLists
from tests.support.manual_source import ManualSource
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fanout.landing.claims import Ownership
    from fanout.landing.log.followed import LandedEntry

PROCESS = ThisProcess("test")


async def landed(path: Path, source: ManualSource, entries: int, **options: Any) -> None:
    """Land so many entries with a record each, after the entry with which a run begins."""
    async with land(source, str(path), max_wait=0.0, **options) as landing:
        for number in range(entries):
            source.put(f"{number}".encode())
            await anext(landing)


async def follow(path: Path, after: int | None = None) -> list[LandedEntry]:
    async with asyncio.timeout(PATIENCE):
        return [entry async for entry in followed(str(path), after=after, poll=0.01)]


def contents(path: Path) -> dict[str, bytes]:
    """Return what is there, but for the claims of runs."""
    files = (file for file in path.rglob("*") if file.is_file())
    names = {file.relative_to(path).as_posix(): file for file in files}
    kept = {name: file for name, file in names.items() if not name.startswith(("runs/", "lock"))}
    return {name: file.read_bytes() for name, file in kept.items()}


def missing(*numbers: int) -> str:
    return re.escape(" to ".join(entry_name(one) for one in numbers)) + (
        " is missing" if len(numbers) == 1 else " are missing"
    )


@pytest.mark.parametrize(("lost", "named"), [((2,), (2,)), ((2, 3, 4), (2, 4)), ((0, 1), (0, 1))])
async def test_a_landing_with_a_gap_is_refused_and_left_as_it_is(
    tmp_path: Path, lost: tuple[int, ...], named: tuple[int, ...]
) -> None:
    path, source = tmp_path / "landing", ManualSource()
    await landed(path, source, 3)
    await landed(path, source, 3)
    for number in lost:
        (path / entry_name(number)).unlink()
    before = contents(path)
    with pytest.raises(CheckpointError, match=f"{missing(*named)}.*restore"):
        await landed(path, source, 1)
    assert contents(path) == before


async def test_a_landing_goes_on_when_the_entry_is_restored(tmp_path: Path) -> None:
    path, source = tmp_path / "landing", ManualSource()
    await landed(path, source, 3)
    entry = path / entry_name(1)
    data = entry.read_bytes()
    entry.unlink()
    with pytest.raises(CheckpointError, match=missing(1)):
        await landed(path, source, 1)
    entry.write_bytes(data)
    await landed(path, source, 1)
    assert len([name for name in contents(path) if name.endswith(".parquet")]) == 4


async def test_a_beginning_that_retention_deleted_is_no_gap_and_one_that_is_lost_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, source = tmp_path / "landing", ManualSource()
    await landed(path, source, 12)
    now = Retention.now() + 3_601_000
    monkeypatch.setattr(Retention, "now", staticmethod(lambda: now))
    await landed(path, source, 2, keep=timedelta(hours=1))
    kept = sorted(int(file.stem) for file in (path / "batches").iterdir())
    assert kept[0] > 1
    await landed(path, source, 1)
    (path / entry_name(kept[0])).unlink()
    for attempt in (landed(path, source, 1), follow(path, after=kept[0] - 1)):
        with pytest.raises(CheckpointError, match=missing(kept[0])):
            await attempt


async def test_a_follower_names_a_gap_at_once(tmp_path: Path) -> None:
    path = tmp_path / "landing"
    await landed(path, ManualSource(), 5)
    (path / entry_name(2)).unlink()
    loop = asyncio.get_running_loop()
    began = loop.time()
    for after in (None, 0, 1):
        with pytest.raises(CheckpointError, match=f"{missing(2)}.*restore"):
            await follow(path, after)
    assert loop.time() - began < 20  # it looks for what was deleted once in 60 s
    async for entry in followed(str(path), after=2):
        assert entry.number == 3
        break


def test_status_tells_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "landing"
    asyncio.run(landed(path, ManualSource(), 5))
    assert read_status(LocalFiles(path)).gap is None
    (path / entry_name(2)).unlink()
    assert read_status(LocalFiles(path)).gap == range(2, 3)


def test_a_reader_that_plans_batches_names_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "landing"
    asyncio.run(landed(path, ManualSource(), 5))
    (path / entry_name(2)).unlink()
    (path / entry_name(3)).unlink()
    skipped: list[object] = []
    for skip_lost in (False, True):
        log = LandedLog(
            LocalFiles(path), skip_lost=skip_lost, on_skipped=lambda *lost: skipped.append(lost)
        )
        end = Place(log.end())
        if skip_lost:
            assert [rows.entry for rows in log.rows(Place(0), end)] == [1, 4, 5]
        else:
            with pytest.raises(CheckpointError, match=missing(2, 3)):
                list(log.rows(Place(0), end))
    assert skipped == [(2, 3)]


async def test_a_file_of_a_newer_state_than_the_restored_one_is_named(tmp_path: Path) -> None:
    path, source = tmp_path / "landing", ManualSource()
    await landed(path, source, 1)
    kept = {name: set(path.glob(f"{name}/*")) for name in ("runs", "batches")}
    await landed(path, source, 1)
    for name, before in kept.items():
        for newer in set(path.glob(f"{name}/*")) - before:
            newer.unlink()
    sentence = r"the file run-000002-00000001.parquet is already in .*an older state was restored"
    with pytest.raises(CheckpointError, match=sentence):
        await landed(path, source, 1)
    await landed(path, source, 1)


@pytest.fixture
def storage(tmp_path: Path) -> LaggingLists:
    return LaggingLists(tmp_path)


def file(number: int, session: str = "") -> SegmentFile:
    return SegmentFile(f"segments/run-000001-{session}{number:08}.parquet", 1, 1)


def write(storage: LaggingLists, count: int, *, first: int | None = 0, session: str = "") -> None:
    with claim(storage, PROCESS) as owner:
        log = EntryLog(storage, owner)
        for number in range(count):
            one = file(number, session)
            storage.create(one.name, b"rows")
            log.write(BatchEntry(number, "", (one,), Checkpoint("manual:one"), first=first))


def check(storage: LaggingLists) -> None:
    with claim(storage, PROCESS) as owner:
        check_whole(storage, EntryLog(storage, owner))


def test_a_list_that_lags_has_no_gap(storage: LaggingLists) -> None:
    write(storage, 6)
    storage.hidden = {"000000000000.json", "000000000002.json", "000000000005.json"}
    check(storage)
    storage.delete(entry_name(2))
    with pytest.raises(CheckpointError, match=missing(2)):
        check(storage)


def test_what_retention_deleted_and_a_list_still_shows_is_no_gap(storage: LaggingLists) -> None:
    write(storage, 6, first=3)
    storage.hidden = {"000000000001.json"}
    storage.list("batches")
    storage.lagging = True
    for number in range(3):
        storage.delete(entry_name(number))
    check(storage)


def test_what_a_run_deletes_meanwhile_is_no_gap(storage: LaggingLists) -> None:
    write(storage, 6)
    storage.hidden = {"000000000006.json"}
    storage.list("batches")
    storage.lagging = True
    with claim(storage, PROCESS) as owner:
        log = EntryLog(storage, owner)
        stale = EntryLog(storage, owner)
        log.write(BatchEntry(6, "", (), Checkpoint("manual:one"), first=2))
        storage.delete(entry_name(0))
        storage.delete(entry_name(1))
        check_whole(storage, stale)


@pytest.mark.long
@pytest.mark.parametrize("hidden", [0, 1_000])
def test_the_check_reads_no_entry_of_a_long_landing(storage: LaggingLists, hidden: int) -> None:
    write(storage, 2_000 - hidden)
    reads: list[str] = []
    read: Callable[..., bytes | None] = storage.read

    def counted(name: str, *, limit: int) -> bytes | None:
        reads.append(name)
        return read(name, limit=limit)

    with claim(storage, PROCESS) as owner:
        log = EntryLog(storage, owner)
        if hidden:
            log.write(BatchEntry(2_500, "", (), Checkpoint("manual:one"), first=0))
            log = EntryLog(storage, owner)
        storage.read = counted
        if hidden:
            with pytest.raises(CheckpointError, match=missing(1_000, 2_499)):
                check_whole(storage, log)
        else:
            check_whole(storage, log)
    assert len(reads) <= 3


def sweep(storage: LaggingLists, log: EntryLog, owner: Ownership) -> None:
    of_landers = sweep_orphans(storage, log, owner)
    sweep_files_of_landers(storage, log, of_landers, threading.Event())


@pytest.mark.parametrize("session", ["", "000001-"])
def test_a_sweep_that_meets_a_lost_entry_deletes_nothing(
    storage: LaggingLists, session: str
) -> None:
    write(storage, 6, session=session)
    with claim(storage, PROCESS) as owner:
        EntryLog(storage, owner).write(BatchEntry(6, "", (), Checkpoint("manual:one"), first=0))
    storage.list("batches")
    storage.lagging = True  # the list still shows the entry, so that the check passes
    storage.delete(entry_name(5))
    with claim(storage, PROCESS) as owner:
        log = EntryLog(storage, owner)
        check_whole(storage, log)
        log.write(BatchEntry(7, "", (), Checkpoint("manual:one"), first=0))
        with pytest.raises(CheckpointError, match=missing(5)):
            sweep(storage, log, owner)
    assert len(storage.walk("segments")) == 6


def test_older_files_stay_where_an_earlier_version_may_have_lost_their_entries(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = LaggingLists(tmp_path)
    write(storage, 4, first=None)
    storage.delete(entry_name(0))
    storage.delete(entry_name(1))
    with claim(storage, PROCESS) as owner:
        log = EntryLog(storage, owner)
        check_whole(storage, log)
        log.write(BatchEntry(4, "", (), Checkpoint("manual:one"), first=log.first))
        sweep_orphans(storage, log, owner)
    assert len(storage.walk("segments")) == 4
    assert "has 2 files that are older" in caplog.text
    entry = read_entry(LocalStorage(tmp_path), 4)
    assert entry is not None
    assert entry.first is None
