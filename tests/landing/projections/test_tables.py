"""Tables that name the files of a landing have its rows, each once, whatever fails."""

from __future__ import annotations

import asyncio
import copy
import shutil
import threading
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

from fanout.errors import CheckpointError
from fanout.landers.land import land
from fanout.landing.log.entries import BATCHES, read_entry
from fanout.landing.projections.table_projection import ConflictError, read_table
from fanout.landing.retention import Retention
from fanout.landing.storage.local_storage import LocalStorage
from fanout.landing.storage.opening import open_files
from tests.landing.projections.tables import Delta, Iceberg, Lab, iceberg_catalog, numbers, row
from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path


# Iceberg takes three times as long: the quick tests have what matters most on both.
BOTH = pytest.mark.parametrize("lab", ["delta", "iceberg"], indirect=True)


class KilledError(BaseException):
    """The process is killed."""


@pytest.fixture(params=["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Lab:
    location = str(tmp_path / "landing")
    if request.param == "delta":
        return Lab(location, Delta(location, None), None)
    return Lab(location, Iceberg(iceberg_catalog(tmp_path)), None)


@BOTH
async def test_a_table_has_each_entry_when_it_is_yielded(lab: Lab) -> None:
    async with land(lab.source, lab.location, max_wait=0.0, tables=[lab.kind.option()]) as landing:
        for _ in range(3):
            lab.source.put(b"%d" % lab.count, b"%d" % (lab.count + 1))
            lab.count += 2
            await anext(landing)
            await lab.check()
            (told,) = landing.statistics().tables
            assert (told.entries_behind, told.failure, told.stopped) == (0, "", False)
        assert (told.failures, told.commits) == (0, 3)
        assert 0 < told.commit_seconds < 60


async def test_a_later_run_goes_on(lab: Lab) -> None:
    for _ in range(3):
        await lab.land(2)
        await lab.check()


async def test_a_landing_that_has_entries_gets_a_table(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.landing.projections.table_projection._ENTRIES", 3)
    await lab.land(8, tables=[])
    await lab.land()
    await lab.check()


def _killed(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool) -> None:
    method = getattr(owner, name)

    def killed(*arguments: Any, **named: Any) -> Any:
        if after:
            method(*arguments, **named)
        raise KilledError

    monkeypatch.setattr(owner, name, killed)


@BOTH
@pytest.mark.parametrize("after", [False, True])
async def test_a_kill_before_or_after_the_commit_of_the_table_twice(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, *, after: bool
) -> None:
    await lab.land(1)
    for _ in range(2):
        with monkeypatch.context() as patch:
            _killed(patch, lab.kind.commits, "add", after=after)
            with pytest.raises(KilledError):
                await lab.land(1)
    await lab.land(1)
    await lab.check()


@BOTH
async def test_a_commit_whose_answer_was_lost_is_found(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, lost = lab.kind.commits.add, list[Any]()

    def losing(table: Any, *arguments: Any) -> None:
        add(table, *arguments)
        if len(lost) < 2:
            lost.append(arguments)
            raise ConnectionResetError

    monkeypatch.setattr(lab.kind.commits, "add", losing)
    monkeypatch.setattr("fanout.landing.projections.table_projection._RETRY_SECONDS", 0.0)
    told = await lab.land(4)
    assert len(lost) == 2
    assert told.entries_behind == 0
    await lab.check()


@pytest.mark.parametrize("again", [False, True], ids=["before the next one", "after it"])
async def test_a_commit_that_nobody_waits_for_any_more_lands_late(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, *, again: bool
) -> None:
    await lab.land(1)
    add, late = lab.kind.commits.add, list[Any]()

    def lands() -> None:
        table, *arguments = late[0]
        with suppress(ConflictError):
            add(table, *arguments)

    def cut_off(table: Any, *arguments: Any) -> None:
        if not late:
            late.append((copy.copy(table), *arguments))
            raise TimeoutError("no answer")
        if len(late) == 1 and not again:
            late.append(None)
            lands()
        add(table, *arguments)

    monkeypatch.setattr(lab.kind.commits, "add", cut_off)
    monkeypatch.setattr("fanout.landing.projections.table_projection._RETRY_SECONDS", 0.0)
    told = await lab.land(3)
    if again:
        await asyncio.to_thread(lands)
    assert late
    assert (told.entries_behind, told.failure) == (0, "")
    await lab.check()
    await lab.land(1)
    await lab.check()


async def test_of_two_runs_that_add_one_entry_the_slower_adds_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have looked at the table, and only then they commit."""
    await lab.land(1)
    add = lab.kind.commits.add
    others: list[Any] = []

    def late(table: Any, *arguments: Any) -> None:
        if not others:  # a copy of the run that has looked as well
            others.append(copy.copy(table))
            others[0].newest()
            add(others[0], *arguments)
        add(table, *arguments)

    monkeypatch.setattr(lab.kind.commits, "add", late)
    told = await lab.land(2)
    assert others
    assert (told.entries_behind, told.failure) == (0, "")
    await lab.check()


async def test_other_writers_are_no_hindrance(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    await lab.land(1)
    add = lab.kind.commits.add
    written: list[int] = []

    def overtaken(table: Any, *arguments: Any) -> None:
        if len(written) < 3:
            written.append(1000 + len(written))
            lab.kind.append(row(written[-1]))
        add(table, *arguments)

    monkeypatch.setattr(lab.kind.commits, "add", overtaken)
    told = await lab.land(2)
    assert (told.entries_behind, told.failure) == (0, "")
    await lab.check(*written)


async def test_files_that_an_engine_has_compacted_are_not_added_again(lab: Lab) -> None:
    await lab.land(3)
    await asyncio.to_thread(lab.kind.compact)
    await lab.land(2)
    await lab.check()


@pytest.mark.parametrize("by", [(), pytest.param("sequence", marks=pytest.mark.long)])
async def test_rows_that_a_library_deletes_stay_deleted(lab: Lab, by: Any) -> None:
    """As the data of a person are deleted: a row of a file, the only one of a file, and later."""
    options = {"max_wait": 0.5, "tables": [lab.kind.option()], "partition_by": by}
    gone: set[int] = set()
    for _ in range(2):
        async with land(lab.source, lab.location, **options) as landing:
            for rows in (3, 1, 2):
                first = lab.count
                lab.count += rows
                lab.source.put(*(b"%d" % number for number in range(first, lab.count)))
                assert (await anext(landing)).rows == rows
                gone.add(first)
                await asyncio.to_thread(lab.kind.delete, first + 1)  # they are counted from 1
                left = [one for one in range(lab.count) if one not in gone]
                assert await asyncio.to_thread(numbers, lab.kind) == left
        (told,) = landing.statistics().tables
        assert (told.entries_behind, told.failure) == (0, "")
    await asyncio.to_thread(lab.kind.compact)
    if isinstance(lab.kind, Delta):
        await asyncio.to_thread(lab.kind.vacuum)
    await lab.land(1, partition_by=by)
    left = [one for one in range(lab.count) if one not in gone]
    assert await asyncio.to_thread(numbers, lab.kind) == left


async def test_a_table_that_cannot_be_reached_is_completed_later(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await lab.land(1)
    newest = lab.kind.commits.newest
    with monkeypatch.context() as patch:

        def refused(_: Any) -> int:
            raise OSError("the catalog is gone\nand more")

        patch.setattr(lab.kind.commits, "newest", refused)
        told = await lab.land(3)
    assert told.failure == "the catalog is gone"
    assert (told.failures, told.commits) == (2, 0)
    assert (told.entries_behind, told.stopped) == (6, False)
    assert sum("the catalog is gone" in record.message for record in caplog.records) == 1
    assert newest is lab.kind.commits.newest
    await lab.land()
    await lab.check()


async def test_files_leave_the_table_before_they_are_deleted(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Retention.now()
    monkeypatch.setattr(Retention, "now", staticmethod(lambda: clock))
    delete, deleted = LocalStorage.delete, list[str]()

    def checked(storage: LocalStorage, name: str) -> None:
        if name.startswith(BATCHES):
            numbers(lab.kind)
        delete(storage, name)
        if name.endswith(".parquet"):
            deleted.append(name)
            numbers(lab.kind)  # it would miss the file

    monkeypatch.setattr(LocalStorage, "delete", checked)
    keep = timedelta(minutes=5)
    async with land(
        lab.source,
        lab.location,
        max_wait=0.0,
        keep=keep,
        spark_log=False,
        tables=[lab.kind.option()],
    ) as landing:
        for number in range(20):
            clock += 60_000
            lab.source.put(b"%d" % number)
            await anext(landing)
    assert deleted
    left = await asyncio.to_thread(numbers, lab.kind)
    assert left == [*range(len(deleted), 20)]


async def test_files_stay_while_the_table_may_name_them(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Retention.now()
    monkeypatch.setattr(Retention, "now", staticmethod(lambda: clock))

    def refused(*_: Any) -> None:
        raise CheckpointError("its files cannot be removed")

    monkeypatch.setattr(lab.kind.commits, "remove", refused)
    async with land(
        lab.source,
        lab.location,
        max_wait=0.0,
        keep=timedelta(minutes=5),
        spark_log=False,
        tables=[lab.kind.option()],
    ) as landing:
        for number in range(25):
            clock += 60_000
            lab.source.put(b"%d" % number)
            await anext(landing)
        (told,) = landing.statistics().tables
    assert (told.stopped, told.failure) == (False, "its files cannot be removed")
    assert told.entries_behind == 0
    lab.count = 25
    await lab.check()


async def test_a_table_that_was_dropped_stops_and_the_next_run_makes_it_anew(lab: Lab) -> None:
    async with land(lab.source, lab.location, max_wait=0.0, tables=[lab.kind.option()]) as landing:
        for _ in range(3):
            lab.source.put(b"%d" % lab.count)
            lab.count += 1
            await anext(landing)
            if lab.count == 2:
                await asyncio.to_thread(lab.kind.drop)
        (told,) = landing.statistics().tables
    assert (told.entries_behind, told.failure, told.stopped) == (1, "it was dropped", True)
    await lab.land(1)
    await lab.check()


async def test_a_table_that_was_replaced_stops_and_the_next_run_adds_all(lab: Lab) -> None:
    async with land(lab.source, lab.location, max_wait=0.0, tables=[lab.kind.option()]) as landing:
        for _ in range(3):
            lab.source.put(b"%d" % lab.count)
            lab.count += 1
            await anext(landing)
            if lab.count == 2:
                await asyncio.to_thread(lab.kind.drop)
                await asyncio.to_thread(lab.kind.make)
        (told,) = landing.statistics().tables
    assert told.stopped
    assert told.failure.startswith("it was replaced by another table")
    await lab.land(1)
    await lab.check()


async def test_a_column_that_was_changed_stops_the_table(lab: Lab) -> None:
    await lab.land(1)
    await asyncio.to_thread(lab.kind.change_column)
    told = await lab.land(2)
    assert told.stopped
    assert "sequence" in told.failure


async def test_a_landing_of_which_an_older_state_was_restored_adds_nothing(
    lab: Lab, tmp_path: Path
) -> None:
    await lab.land(1)
    await asyncio.to_thread(shutil.copytree, f"{lab.location}/batches", tmp_path / "batches")
    await lab.land(5)
    await asyncio.to_thread(shutil.rmtree, f"{lab.location}/batches")
    await asyncio.to_thread(shutil.copytree, tmp_path / "batches", f"{lab.location}/batches")
    lab.source.put(*[b"%d" % number for number in range(100, 110)])
    told = await lab.land()
    assert told.stopped
    assert "an older state of the landing was restored" in told.failure
    await asyncio.to_thread(lab.kind.drop)
    told = await lab.land(1)
    assert (told.entries_behind, told.failure) == (0, "")
    rows = await asyncio.to_thread(_rows_of_entries, lab.location)
    assert (await asyncio.to_thread(lab.kind.read)).num_rows == rows > 0


def _rows_of_entries(location: str) -> int:
    files = open_files(location, None)
    entries = (read_entry(files, number) for number in range(20))
    return sum(one.rows for one in entries if one is not None)


@pytest.mark.parametrize("landed", [False, True])
async def test_a_conflict_in_iceberg_of_which_it_is_unknown_whether_it_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, landed: bool
) -> None:
    """A client of a catalog may repeat a request whose answer was lost, and meet its own commit."""
    lab = Lab(str(tmp_path / "landing"), Iceberg(iceberg_catalog(tmp_path)), None)
    await lab.land(1)
    commit, failed = SqlCatalog.commit_table, list[bool]()

    def repeated(catalog: SqlCatalog, *arguments: Any) -> Any:
        if len(failed) < 2:
            if landed:
                commit(catalog, *arguments)
            failed.append(True)
            raise CommitFailedException
        return commit(catalog, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", repeated)
    told = await lab.land(3)
    assert len(failed) == 2
    assert (told.entries_behind, told.failure) == (0, "")
    await lab.check()


async def test_a_table_that_never_answers_stops(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    await lab.land(1)
    answering = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr("fanout.landing.projections.table_projection._COMMIT_SECONDS", 0.5)
        patch.setattr(lab.kind.commits, "newest", lambda _: answering.wait())
        told = await lab.land(2)
    answering.set()
    assert (told.stopped, told.failure) == (True, "it does not answer for 0 s")
    await lab.land()
    await lab.check()


async def test_a_commit_that_goes_on_in_the_next_run_adds_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lab.land(1)
    add, going, ended = lab.kind.commits.add, threading.Event(), list[type[BaseException] | None]()
    begun, done = threading.Event(), threading.Event()

    def hangs(table: Any, *arguments: Any) -> None:
        begun.set()
        going.wait()
        try:
            add(table, *arguments)
        except ConflictError as error:
            ended.append(type(error))
        done.set()

    with monkeypatch.context() as patch:
        patch.setattr("fanout.landing.projections.table_projection._COMMIT_SECONDS", 0.5)
        patch.setattr(lab.kind.commits, "add", hangs)
        told = await lab.land(2)
        assert await asyncio.to_thread(begun.wait, PATIENCE)
    assert told.stopped
    await lab.land(1)
    await lab.check()
    going.set()
    assert await asyncio.to_thread(done.wait, PATIENCE)
    assert ended == [ConflictError]
    await lab.check()


async def test_a_vacuum_of_delta_deletes_what_was_compacted_and_nothing_else(
    tmp_path: Path,
) -> None:
    kind = Delta(str(tmp_path / "landing"), None)
    lab = Lab(kind.root, kind, None)
    await lab.land(3)
    before = _files(tmp_path)
    await asyncio.to_thread(kind.vacuum)
    assert before - _files(tmp_path) == set()
    await asyncio.to_thread(kind.compact)
    await asyncio.to_thread(kind.vacuum)
    gone = {path.name for path in before - _files(tmp_path)}
    assert gone == {f"run-000001-{number:08}.parquet" for number in (1, 2, 3)}
    await lab.land(2)
    await lab.check()


def _files(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if path.is_file()}


class PanicException(BaseException):
    """A library in Rust has panicked."""


async def test_a_panic_of_a_library_does_not_end_the_landing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lab.land(1)
    with monkeypatch.context() as patch:

        def panics(*_: Any) -> None:
            raise PanicException("no digits")

        patch.setattr(lab.kind.commits, "add", panics)
        told = await lab.land(2)
    assert (told.stopped, told.failure) == (False, "its library panicked: no digits")
    await lab.land()
    await lab.check()


async def test_a_commit_has_a_bounded_number_of_files(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.landing.projections.table_projection._FILES", 2)
    await lab.land(5, tables=[])
    add, counts = lab.kind.commits.add, list[int]()

    def counted(table: Any, files: Any, entry: int) -> None:
        counts.append(len(files))
        add(table, files, entry)

    monkeypatch.setattr(lab.kind.commits, "add", counted)
    await lab.land()
    assert counts == [2, 2, 1]
    await lab.check()


async def test_a_cancellation_comes_between_two_commits(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.landing.projections.table_projection._ENTRIES", 1)
    await lab.land(5, tables=[])
    add, begun, counts = lab.kind.commits.add, threading.Event(), list[int]()
    going = threading.Event()

    def slow(table: Any, files: Any, entry: int) -> None:
        counts.append(entry)
        begun.set()
        going.wait()
        add(table, files, entry)

    monkeypatch.setattr(lab.kind.commits, "add", slow)
    run = asyncio.create_task(lab.land())
    await asyncio.to_thread(begun.wait)
    run.cancel()
    asyncio.get_running_loop().call_later(0.1, going.set)
    with pytest.raises(asyncio.CancelledError):
        await run
    assert len(counts) == 1
    await lab.land()
    await lab.check()


async def test_a_look_at_a_table_that_never_answers_ends(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lab.land(1)
    answering = threading.Event()
    monkeypatch.setattr("fanout.landing.projections.table_projection._LOOK_SECONDS", 0.5)
    monkeypatch.setattr(lab.kind.commits, "newest", lambda *_, **__: answering.wait())
    told = await asyncio.to_thread(read_table, lab.location, lab.kind.option())
    answering.set()
    assert told.failure == "it does not answer for 0 s"
