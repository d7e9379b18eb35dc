from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from fanout.errors import CheckpointError, OptionError
from fanout.landers.land import land
from fanout.landing import retention
from fanout.landing.log.entries import batch_ids
from fanout.landing.retention import (
    NamedReader,
    Retention,
    check_reader,
    needed_by_readers,
)
from fanout.landing.storage.local_storage import LocalFiles, LocalStorage
from tests.support.manual_source import ManualSource

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.landing.storage.storage import FileInfo, StoredFiles


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "landing")


def marks(storage: LocalStorage) -> list[str]:
    return [file.name for file in storage.list("readers")]


def test_the_slowest_reader_says_what_is_needed(storage: LocalStorage) -> None:
    assert needed_by_readers(storage, 0) is None
    slow, fast = NamedReader(storage, "slow"), NamedReader(storage, "fast-2")
    slow.claim(3)
    fast.claim(3)
    fast.commit(7)
    assert needed_by_readers(storage, 0) == 3
    slow.commit(9)
    assert needed_by_readers(storage, 0) == 7
    assert marks(storage) == ["fast-2-000000000002.json", "slow-000000000002.json"]


def test_a_reader_writes_only_what_has_changed(storage: LocalStorage) -> None:
    reader = NamedReader(storage, "sessions")
    reader.claim(3)
    reader.commit(3)
    assert marks(storage) == ["sessions-000000000001.json"]


def test_a_reader_that_is_long_in_one_entry_is_not_gone(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, seconds = NamedReader(storage, "sessions"), 0.0
    monkeypatch.setattr(time, "monotonic", lambda: seconds)
    reader.claim(3)
    seconds = 59.0
    reader.commit(3)
    assert marks(storage) == ["sessions-000000000001.json"]
    seconds = 60.0
    reader.commit(3)
    assert marks(storage) == ["sessions-000000000002.json"]
    assert needed_by_readers(storage, 0) == 3


def test_a_reader_that_is_gone_for_too_long_does_not_count(storage: LocalStorage) -> None:
    NamedReader(storage, "gone").claim(3)
    (mark,) = storage.list("readers")
    assert needed_by_readers(storage, mark.written_at) == 3
    assert needed_by_readers(storage, mark.written_at + 1) is None


def test_of_two_queries_with_one_name_the_newer_goes_on(storage: LocalStorage) -> None:
    older, newer = NamedReader(storage, "sessions"), NamedReader(storage, "sessions")
    older.claim(3)
    older.commit(4)
    newer.claim(4)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="another query took over the reader 'sessions'"):
            older.commit(5)
    newer.commit(6)
    newer.commit(7)
    with pytest.raises(CheckpointError, match="give each query a reader of its own"):
        older.commit(8)
    assert needed_by_readers(storage, 0) == 7


def test_a_file_that_is_replaced_while_it_is_looked_for_is_found(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = NamedReader(storage, "sessions")
    reader.claim(3)
    newest = retention._newest_marks

    def then_commit(files: StoredFiles) -> dict[str, FileInfo]:
        found = newest(files)
        reader.commit(reader._entry + (reader._entry < 6))
        return found

    monkeypatch.setattr(retention, "_newest_marks", then_commit)
    assert needed_by_readers(storage, 0) == 6


@pytest.mark.parametrize("name", ["", "-a", "a/b", "a b", "x" * 65])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="must be 1 to 64 letters, digits"):
        check_reader(name)


def test_a_damaged_file_is_an_error(storage: LocalStorage) -> None:
    storage.create("readers/sessions-000000000001.json", b"{}")
    with pytest.raises(CheckpointError, match=r"sessions-000000000001\.json .* is damaged"):
        needed_by_readers(storage, 0)


async def test_a_landing_keeps_what_a_named_reader_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_READERS_MILLIS", 0)
    source, location = ManualSource(), str(tmp_path / "landing")
    keep, now = timedelta(hours=1), Retention.now()

    def later(hours: float) -> None:
        monkeypatch.setattr(Retention, "now", staticmethod(lambda: now + int(hours * 3_600_000)))

    def numbers() -> list[int]:
        return batch_ids(file.name for file in LocalFiles(tmp_path / "landing").list("batches"))

    async with land(source, location, max_wait=0.0, keep=keep) as landing:
        source.put(b"one")
        await anext(landing)
        source.put(b"two")
        await anext(landing)
        storage = await asyncio.to_thread(lambda: LocalStorage(tmp_path / "landing"))
        reader = NamedReader(storage, "sessions")
        await asyncio.to_thread(reader.claim, 2)
        later(2)
        source.put(b"three")
        await anext(landing)
        assert await asyncio.to_thread(numbers) == [2, 3]
        await asyncio.to_thread(reader.commit, 3)
        source.put(b"four")
        await anext(landing)
        assert await asyncio.to_thread(numbers) == [3, 4]
        await asyncio.to_thread(reader.commit, 4)
        later(24 * 7 + 1)  # the reader is gone
        source.put(b"five")
        await anext(landing)
        source.put(b"six")
        await anext(landing)
        assert await asyncio.to_thread(numbers) == [5, 6]


@pytest.mark.long
async def test_a_reader_that_begins_with_what_is_about_to_be_deleted_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for Spark's log to let it go, and the readers were asked some seconds before."""
    source, clock = ManualSource(), Retention.now()
    monkeypatch.setattr(Retention, "now", staticmethod(lambda: clock))
    root = tmp_path / "landing"

    def numbers() -> list[int]:
        return batch_ids(file.name for file in LocalFiles(root).list("batches"))

    async with land(source, str(root), max_wait=0.0, keep=timedelta(minutes=5)) as landing:

        async def land_some(entries: int) -> None:
            nonlocal clock
            for _ in range(entries):
                clock += 10_000
                source.put(b"x")
                await anext(landing)

        while not landing._retention._expired:
            await land_some(1)
        (first, *_), storage = await asyncio.to_thread(lambda: (numbers(), LocalStorage(root)))
        assert first in landing._retention._expired
        reader = NamedReader(storage, "sessions")
        await asyncio.to_thread(reader.claim, first)
        await land_some(40)
        there = await asyncio.to_thread(numbers)
        assert there == [*range(first, landing._log.next_number)]
        files = await asyncio.to_thread(lambda: LocalFiles(root).list("segments"))
        assert len(files) == len(there)
        await asyncio.to_thread(reader.commit, first + 30)
        await land_some(20)
        assert (await asyncio.to_thread(numbers))[0] == first + 30


async def test_a_start_of_a_landing_leaves_what_a_reader_is_writing(tmp_path: Path) -> None:
    half_written = tmp_path / "readers" / "_tmp-1"
    half_written.parent.mkdir()
    half_written.write_bytes(b"")
    async with land(ManualSource(), str(tmp_path)):
        assert half_written.exists()
