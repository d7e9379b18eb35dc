"""Tables and landings of which one was restored, made anew or taken back, and the other was not."""

# ruff: noqa: ASYNC240 - the files are small, and nothing else runs

from __future__ import annotations

import asyncio
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from fanout.landers.land import land
from fanout.landing.log.columns import read_identity
from fanout.landing.log.entries import BatchEntry
from fanout.landing.projections.table_projection import read_table
from fanout.landing.storage.opening import open_files
from tests.landing.projections.tables import Delta, Iceberg, Lab, iceberg_catalog, numbers, row
from tests.support.manual_source import ManualSource
from tests.support.retention import expire

if TYPE_CHECKING:
    from fanout.core.statistics import TableStatistics

FORMER = "of a landing that was at this location before: drop the table"
OLDER = "an older state of the landing was restored"
OTHER = "it is of another history"
TAKEN_BACK = "an engine has taken it back to before entry"


@pytest.fixture(params=["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Lab:
    return make_lab(request.param, tmp_path)


@pytest.fixture
def iceberg(tmp_path: Path) -> Lab:
    return make_lab("iceberg", tmp_path)


@pytest.fixture
def delta(tmp_path: Path) -> Lab:
    return make_lab("delta", tmp_path)


def make_lab(kind: str, tmp_path: Path) -> Lab:
    location = str(tmp_path / "landing")
    if kind == "delta":
        return Lab(location, Delta(location, None), None)
    return Lab(location, Iceberg(iceberg_catalog(tmp_path)), None)


async def status(lab: Lab) -> TableStatistics:
    return await asyncio.to_thread(read_table, lab.location, lab.kind.option())


async def check_stopped(lab: Lab, told: TableStatistics, reason: str) -> None:
    """Check that a table has stopped, that it tells so, and that later runs change nothing."""
    assert told.stopped
    assert reason in told.failure
    before = await asyncio.to_thread(numbers, lab.kind)
    assert reason in (await status(lab)).failure
    told = await lab.land(1)
    assert told.stopped
    assert await asyncio.to_thread(numbers, lab.kind) == before


def make_anew(lab: Lab, *kept: str) -> None:
    """Delete a landing but for some of its files."""
    for path in Path(lab.location).iterdir():
        if path.is_file():
            path.unlink()
        elif path.name not in kept:
            shutil.rmtree(path)
    for file in Path(lab.location).rglob("*.parquet"):
        file.unlink()
    lab.source, lab.count = ManualSource(), 0


async def test_files_of_a_landing_that_was_here_before_stop_the_table(lab: Lab) -> None:
    await lab.land(3)
    await asyncio.to_thread(make_anew, lab, "segments")  # where the log of a Delta table is
    lab.source.put(b"0")
    told = await lab.land()
    assert told.stopped
    assert FORMER in told.failure
    assert FORMER in (await status(lab)).failure
    assert FORMER in (await lab.land(1)).failure
    await asyncio.to_thread(lab.kind.drop)
    told = await lab.land(1)
    assert (told.entries_behind, told.failure) == (0, "")
    assert (await status(lab)).failure == ""


async def test_rows_of_a_landing_that_was_here_before_stop_the_table(iceberg: Lab) -> None:
    await iceberg.land(3)
    await asyncio.to_thread(iceberg.kind.compact)
    await asyncio.to_thread(make_anew, iceberg)
    told = await iceberg.land(1)
    assert told.failure.startswith("it has the entries up to 3 of ")
    await check_stopped(iceberg, told, FORMER)


async def test_files_of_a_landing_stop_a_table_that_does_not_say_whose_they_are(
    iceberg: Lab,
) -> None:
    await iceberg.land(3)
    kind: Any = iceberg.kind
    with kind.open().transaction() as transaction:
        names = [name for name in kind.open().properties if name.endswith(".location")]
        transaction.remove_properties(*names)
    files, iceberg.count = Path(iceberg.location, "segments"), 3
    await asyncio.to_thread(shutil.copytree, files, f"{iceberg.location}.kept")
    await asyncio.to_thread(make_anew, iceberg)
    await iceberg.land(0, tables=())
    await asyncio.to_thread(shutil.copytree, f"{iceberg.location}.kept", files, dirs_exist_ok=True)
    told = await iceberg.land()
    assert f"it has file://{files}/run-" in told.failure
    assert FORMER in told.failure


async def test_landings_at_two_locations_share_an_iceberg_table(
    iceberg: Lab, tmp_path: Path
) -> None:
    other = Lab(str(tmp_path / "other"), iceberg.kind, None)
    for count in (2, 1):
        for one in (iceberg, other):
            told = await one.land(count)
            assert (told.entries_behind, told.failure) == (0, "")
    assert await asyncio.to_thread(numbers, iceberg.kind) == [0, 0, 1, 1, 2, 2]
    assert (await status(iceberg)).failure == (await status(other)).failure == ""


async def restored(lab: Lab, tmp_path: Path) -> None:
    """Land with a table, and restore the landing as it was before."""
    await lab.land(1)
    count, former = lab.count, tmp_path / "former"
    await asyncio.to_thread(shutil.copytree, lab.location, former)
    await lab.land(2)
    log = Path(lab.location, "segments", "_delta_log")
    if log.exists():  # it is of its own in the backup
        shutil.copytree(log, former / "segments" / "_delta_log", dirs_exist_ok=True)
    await asyncio.to_thread(shutil.rmtree, lab.location)
    await asyncio.to_thread(shutil.copytree, former, lab.location)
    lab.source, lab.count = ManualSource(), count
    lab.source.put(*(b"%d" % number for number in range(count)))


async def test_a_table_that_is_newer_than_its_landing_stays_stopped(
    lab: Lab, tmp_path: Path
) -> None:
    await restored(lab, tmp_path)
    assert OLDER in (await status(lab)).failure
    told = await lab.land()
    assert told.stopped
    assert OLDER in told.failure
    # The same records again, so that all but the history is as it was.
    await lab.land(2)
    for _ in range(2):
        told = await lab.land(3)
        assert told.stopped
        assert OTHER in told.failure
        assert OTHER in (await status(lab)).failure
    assert await asyncio.to_thread(_entry_of, lab) == 4
    await asyncio.to_thread(lab.kind.drop)
    told = await lab.land(1)
    assert (told.entries_behind, told.failure) == (0, "")
    await lab.check()


async def test_a_run_that_lands_more_than_the_table_has_stops_it(lab: Lab, tmp_path: Path) -> None:
    """No run has met a number above those of the landing."""
    await restored(lab, tmp_path)
    await lab.land(5, tables=())
    told = await lab.land(1)
    await check_stopped(lab, told, OTHER)


def _entry_of(lab: Lab) -> int:
    kind: Any = lab.kind
    if isinstance(kind, Delta):
        identity = read_identity(open_files(lab.location, None)).id
        found = kind.open().transaction_version(f"fanout-{identity}")
        return -1 if found is None else found
    (found,) = (value for name, value in kind.open().properties.items() if name.endswith(".entry"))
    return int(found)


async def test_a_table_without_checksums_goes_on_and_gets_one(lab: Lab, tmp_path: Path) -> None:
    with patch.object(BatchEntry, "checksum", None):
        await lab.land(2)
    told = await lab.land(1)
    assert (told.entries_behind, told.failure) == (0, "")
    await lab.check()
    await restored(lab, tmp_path)
    await lab.land(6, tables=())
    await check_stopped(lab, await lab.land(), OTHER)


async def test_a_table_goes_on_whose_newest_entry_was_deleted(lab: Lab) -> None:
    await lab.land(2)
    await lab.land()  # an entry without files
    await asyncio.to_thread(expire, Path(lab.location), 3)
    told = await lab.land(1)
    assert (told.entries_behind, told.failure) == (0, "")


async def test_a_table_that_an_engine_has_taken_back_stops(lab: Lab) -> None:
    await lab.land(3)
    await asyncio.to_thread(lab.kind.take_back, 1)
    assert TAKEN_BACK in (await status(lab)).failure
    told = await lab.land(1)
    await check_stopped(lab, told, f"{TAKEN_BACK} 3, which it had")
    await asyncio.to_thread(lab.kind.append, row(100))
    told = await lab.land(1)
    await check_stopped(lab, told, TAKEN_BACK)
    await asyncio.to_thread(lab.kind.drop)
    told = await lab.land(1)
    assert (told.entries_behind, told.failure) == (0, "")
    await lab.check()


async def test_a_table_that_was_taken_forward_again_goes_on(lab: Lab) -> None:
    await lab.land(3)
    await asyncio.to_thread(lab.kind.append, row(100))
    await asyncio.to_thread(lab.kind.take_back, 2)
    assert (await lab.land(1)).stopped
    kind: Any = lab.kind
    if isinstance(kind, Delta):
        await asyncio.to_thread(kind.take_back, 1)
    else:
        table = kind.open()
        newest = max(table.snapshots(), key=lambda one: one.sequence_number)
        with table.manage_snapshots() as manage:
            manage.set_current_snapshot(newest.snapshot_id)
    told = await lab.land(1)
    assert (told.entries_behind, told.failure) == (0, "")
    await lab.check(100)


async def test_a_table_goes_on_that_was_taken_back_to_after_its_newest_entry(lab: Lab) -> None:
    await lab.land(3)
    await asyncio.to_thread(lab.kind.append, row(100))
    await asyncio.to_thread(lab.kind.append, row(101))
    await asyncio.to_thread(lab.kind.take_back, 1)
    told = await lab.land(1)
    assert (told.entries_behind, told.failure) == (0, "")
    await lab.check(100)


async def test_a_table_that_is_taken_back_while_a_run_goes_on(lab: Lab) -> None:
    async with land(lab.source, lab.location, max_wait=0.0, tables=[lab.kind.option()]) as landing:
        for number in range(4):
            lab.source.put(b"%d" % number)
            await anext(landing)
            if number == 2:
                await asyncio.to_thread(lab.kind.take_back, 1)
        (told,) = landing.statistics().tables
    assert told.stopped
    assert TAKEN_BACK in told.failure
    assert await asyncio.to_thread(numbers, lab.kind) == [0, 1]


async def test_a_delta_table_that_is_taken_back_while_an_entry_is_added(
    delta: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await delta.land(3)
    add = delta.kind.commits.add

    def taken_back(table: Any, *arguments: Any) -> None:
        delta.kind.take_back(1)
        add(table, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(delta.kind.commits, "add", taken_back)
        await delta.land(1)
    await check_stopped(delta, await delta.land(1), TAKEN_BACK)


async def test_a_delta_table_that_was_taken_back_to_a_time(delta: Lab) -> None:
    await delta.land(2)
    kind: Any = delta.kind
    at = kind.open().history(1)[0]["timestamp"]
    await asyncio.sleep(0.05)
    await delta.land(1)
    await asyncio.to_thread(kind.open().restore, datetime.fromtimestamp(at / 1000 + 0.01, UTC))
    await check_stopped(delta, await delta.land(1), TAKEN_BACK)


async def test_a_delta_table_whose_old_log_was_deleted_goes_on(delta: Lab) -> None:
    await delta.land(3)
    kind: Any = delta.kind
    await asyncio.to_thread(kind.compact)
    await asyncio.to_thread(kind.open().create_checkpoint)
    for file in sorted(Path(delta.location, "segments", "_delta_log").glob("*.json"))[:-1]:
        file.unlink()
    told = await delta.land(1)
    assert (told.entries_behind, told.failure) == (0, "")
    await delta.check()


async def test_an_iceberg_table_whose_old_snapshots_expired(iceberg: Lab) -> None:
    await iceberg.land(3)
    await asyncio.to_thread(iceberg.kind.compact)
    await asyncio.to_thread(_expire, iceberg)
    told = await iceberg.land(1)
    assert (told.entries_behind, told.failure) == (0, "")
    await iceberg.check()


async def test_an_iceberg_table_that_was_taken_back_to_one_whose_former_ones_expired(
    iceberg: Lab,
) -> None:
    await iceberg.land(2)
    await asyncio.to_thread(iceberg.kind.compact)
    await asyncio.to_thread(_expire, iceberg)
    await iceberg.land(1)
    await asyncio.to_thread(iceberg.kind.take_back, 1)
    await check_stopped(iceberg, await iceberg.land(1), TAKEN_BACK)


def _expire(lab: Lab) -> None:
    kind: Any = lab.kind
    table = kind.open()
    current = table.current_snapshot().snapshot_id
    former = [one.snapshot_id for one in table.snapshots() if one.snapshot_id != current]
    table.maintenance.expire_snapshots().by_ids(former).commit()
