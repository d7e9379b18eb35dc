"""Files of sessions that are over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from fanout.landers.session import OrphanSweeper
from fanout.landing.segments.segments import publish
from fanout.landing.storage.local_storage import LocalStorage
from tests.landers.rig import Rig
from tests.support.manual_source import ManualSource

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.landing.segments.segments import OpenSegment, SegmentFile
    from fanout.landing.storage.storage import Storage

RUN = 7


def name(session: int, count: int, run: int = RUN) -> str:
    return f"segments/run-{run:06}-{session:06}-{count:08}.parquet"


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path)


def sweep(storage: LocalStorage, leftovers: OrphanSweeper, *names: str) -> list[str]:
    """Sweep files, and return those that stay."""
    for each in names:
        storage.create(each, b"records")
    leftovers.sweep(storage, RUN)
    return [f"segments/{file.name}" for file in storage.list("segments")]


def test_what_was_published_and_not_accepted_is_deleted(storage: LocalStorage) -> None:
    leftovers = OrphanSweeper()
    leftovers.ended(1, name(1, 3))
    leftovers.ended(2, "")
    kept = [name(1, 2), name(1, 3)]
    assert sweep(storage, leftovers, *kept, name(1, 4), name(2, 1)) == kept


def test_bad_records_that_were_staged_and_not_accepted_are_deleted(storage: LocalStorage) -> None:
    leftovers = OrphanSweeper()
    leftovers.ended(1, name(1, 3))
    staged = [name(1, number).replace("segments", "bad") for number in (3, 4)]
    assert sweep(storage, leftovers, *staged) == []
    assert [f"bad/{file.name}" for file in storage.list("bad")] == staged[:1]


def test_sessions_that_live_and_other_runs_are_left_alone(storage: LocalStorage) -> None:
    leftovers = OrphanSweeper()
    leftovers.ended(1, "")
    kept = [
        name(1, 1, run=6),
        name(2, 1),
        name(1, 1, run=8),
        "segments/run-000007-00000001.parquet",
    ]
    assert sorted(sweep(storage, leftovers, *kept)) == sorted(kept)


def test_files_that_were_not_finished_are_deleted(storage: LocalStorage) -> None:
    leftovers = OrphanSweeper()
    leftovers.ended(1, name(1, 3))
    for each in (name(1, 2), name(1, 4), name(2, 1), name(1, 1, run=8)):
        (storage.scratch() / each.removeprefix("segments/")).touch()
    leftovers.sweep(storage, RUN)
    assert sorted(path.name for path in storage.scratch().iterdir()) == [
        "run-000007-000002-00000001.parquet",
        "run-000008-000001-00000001.parquet",
    ]


async def test_a_segment_of_a_lander_that_is_killed_before_it_tells_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = asyncio.Event()
    loop = asyncio.get_running_loop()
    publish_segment = publish

    def publish_and_wait(storage: Storage, segment: OpenSegment) -> SegmentFile:
        file = publish_segment(storage, segment)
        if b"killed" in killing:
            loop.call_soon_threadsafe(published.set)
        return file

    killing: list[bytes] = []
    monkeypatch.setattr("fanout.landing.segments.partitions.publish", publish_and_wait)
    source = ManualSource("a")
    source.put(b"1")
    async with Rig(source, tmp_path).running(0) as rig:
        rows = await rig.rows(first := await rig.batch())
        killing.append(b"killed")
        rig.channels[0].cut = True  # what it tells from now on is lost
        source.put(b"2")
        await published.wait()
        await rig.kill(0)
        rig.start(0)
        rows += await rig.rows(second := await rig.batch())
        assert rows == [("a", 1), ("a", 2)]
        listed = await asyncio.to_thread(rig.storage.list, "segments")
        assert len(listed) == 3
        await asyncio.to_thread(rig.coordinator.orphans.sweep, rig.storage, 1)
        listed = await asyncio.to_thread(rig.storage.list, "segments")
        left = {f"segments/{file.name}" for file in listed}
        assert left == {file.name for batch in (first, second) for file in batch.segments}
