"""The log by which Spark knows the files of a landing: its bytes, and that it is never wrong."""

from __future__ import annotations

import asyncio
import json
import shutil
import uuid
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from fanout.core.checkpoint import Checkpoint
from fanout.errors import CheckpointError
from fanout.landers.land import land
from fanout.landing import spark_log
from fanout.landing.claims import ThisProcess, claim
from fanout.landing.log.entries import BatchEntry, EntryLog
from fanout.landing.retention import Retention
from fanout.landing.segments.segments import SegmentFile
from fanout.landing.spark_log import (
    SparkLog,
    decode_file,
    encode_file,
    encode_line,
    files_to_read,
    table_uri,
)
from fanout.landing.storage.local_storage import LocalFiles, LocalStorage
from fanout.landing.storage.opening import open_files, open_storage
from fanout.testing.s3_clients import BUCKET
from tests.landing.spark_reader import LOG, read_log
from tests.support.manual_source import SCHEMA, ManualSource
from tests.support.retention import expire
from tests.support.s3 import s3_options
from tests.support.shaped_source import ShapedSource
from tests.support.timed_source import DAY, TimedSource

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from fanout.landing.claims import Ownership
    from fanout.landing.storage.storage import Storage

# What the file sink of Spark 4.3.0 wrote, into the directory "/data/o ut é%[x]"; 3.5.9 writes the
# same.
WRITTEN_BY_SPARK = (
    b"v1\n"
    b'{"path":"file:///data/o%20ut%20\xc3\xa9%25%5Bx%5D/p=0/part-00000-ebbb6f78-b04b-43db-ba91-'
    b'f80b97604e96.c000.snappy.parquet","size":484,"isDir":false,"modificationTime":1795404981828,'
    b'"blockReplication":1,"blockSize":33554432,"action":"add"}\n'
    b'{"path":"file:///data/o%20ut%20\xc3\xa9%25%5Bx%5D/p=1/part-00000-432761c6-cfb2-4443-9deb-'
    b'9bd8fcf21f1d.c000.snappy.parquet","size":477,"isDir":false,"modificationTime":1795404981964,'
    b'"blockReplication":1,"blockSize":33554432,"action":"add"}'
)


class KilledError(BaseException):
    """The process is killed."""


class Table:
    """A landing on a disk, and what Spark reads there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source = ManualSource()
        self._count = 0

    async def land(self, entries: int = 0, **options: Any) -> None:
        """Run once, and land as many entries; after each the log is checked."""
        chosen: dict[str, Any] = {"max_wait": 0.0, "partition_by_date": None}
        async with land(self.source, str(self.root), **chosen | options) as landing:
            await asyncio.to_thread(self.check)
            for _ in range(entries):
                self._count += 1
                self.source.put(b"%d" % self._count)
                async with asyncio.timeout(20):
                    await anext(landing)
                await asyncio.to_thread(self.check)

    def check(self) -> None:
        """Check that the log has exactly the files of all entries, whatever a reader's settings."""
        wanted = [f"file://{self.root}/{name}" for name in self.named()]
        for interval in (1, 3, 10, 100):
            lines = read_log(LocalFiles(self.root), default_interval=interval)
            assert [line["path"] for line in lines] == wanted
        times = [line["modificationTime"] for line in lines]
        assert times == sorted(times)
        for line in lines:
            assert line["size"] == Path(line["path"].removeprefix("file://")).stat().st_size

    def named(self) -> list[str]:
        entries = sorted((self.root / "batches").iterdir())
        return [
            segment["name"]
            for entry in entries
            for segment in json.loads(entry.read_bytes())["segments"]
        ]

    async def log(self) -> list[str]:
        """Return the files of the log, oldest first."""
        files = await asyncio.to_thread(LocalFiles(self.root).list, LOG)
        return sorted((file.name for file in files), key=_number)

    async def read(self) -> list[str]:
        """Return the files that Spark reads."""
        lines = await asyncio.to_thread(read_log, LocalFiles(self.root))
        return [line["path"] for line in lines]


def _number(name: str) -> int:
    return int(name.removesuffix(".compact"))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "landing")


def test_a_file_that_spark_wrote_is_read_and_written_the_same() -> None:
    found = decode_file(WRITTEN_BY_SPARK)
    assert found is not None
    assert [written_at for _, written_at, _ in found] == [1795404981828, 1795404981964]
    lines = [
        encode_line(uri, size, written_at)
        for (uri, written_at, _), size in zip(found, (484, 477), strict=True)
    ]
    assert encode_file(lines) == WRITTEN_BY_SPARK
    assert encode_file([]) == b"v1"
    assert decode_file(b"v1") == []
    assert found[0][0].startswith(f"{table_uri('/data/o ut é%[x]')}/p=0/")


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"v2" + WRITTEN_BY_SPARK[2:],
        WRITTEN_BY_SPARK[:-1],
        WRITTEN_BY_SPARK[:40],
        WRITTEN_BY_SPARK.replace(b'"add"', b'"delete"'),
        WRITTEN_BY_SPARK + b"\n",
        WRITTEN_BY_SPARK.replace(b"\xc3", b"\xff"),
    ],
)
def test_a_damaged_file_is_known(damage: bytes) -> None:
    assert decode_file(damage) is None


def test_a_reader_reads_from_the_newest_file_with_all_lines_on() -> None:
    assert files_to_read(0) == ["0"]
    assert files_to_read(9) == ["9.compact"]
    assert files_to_read(21) == ["19.compact", "20", "21"]


@pytest.mark.parametrize(
    ("location", "uri"),
    [
        ("/data/orders", "file:///data/orders"),
        ("/a b/é%20[1]{a}+,;'", "file:///a%20b/é%2520%5B1%5D%7Ba%7D+,;'"),
        ("s3://lake/orders", "s3a://lake/orders"),
        ("s3a://lake", "s3a://lake"),
        ("s3n://lake/a b", "s3a://lake/a%20b"),
        ("gs://lake/orders", "gs://lake/orders"),
        (
            "abfss://lake@account.dfs.core.windows.net/orders",
            "abfss://lake@account.dfs.core.windows.net/orders",
        ),
        (
            "az://lake@account.blob.core.windows.net/orders",
            "abfss://lake@account.dfs.core.windows.net/orders",
        ),
        (
            "abfs://lake@account.dfs.core.windows.net",
            "abfs://lake@account.dfs.core.windows.net",
        ),
        ("az://lake/orders", None),
    ],
)
def test_a_location_has_the_uri_by_which_hadoop_knows_it(location: str, uri: str | None) -> None:
    assert table_uri(location) == uri


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert table_uri("orders") == (tmp_path / "orders").as_uri()


async def test_the_log_has_each_entry_after_it_was_written(table: Table) -> None:
    await table.land(entries=25)
    files = await table.log()
    assert files[:3] == ["9.compact", "19.compact", "20"]
    assert files[-7:] == ["38", "39.compact", "40", "41", "42", "43", "44"]


async def test_each_run_begins_with_a_file_that_has_all_lines(table: Table) -> None:
    for _ in range(15):
        await table.land(entries=1)
    # Like Spark's sink, the log forgets its own files when they are old.
    numbers = [_number(name) for name in await table.log()]
    assert (min(numbers), max(numbers)) == (59, 160)


async def test_an_entry_is_in_no_log_before_it_is_written(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    await table.land(entries=1)
    before = await table.log()
    with monkeypatch.context() as patch:
        patch.setattr(EntryLog, "write", _killed_with_files(EntryLog.write))
        with pytest.raises(KilledError):
            await table.land(entries=1)
    assert len(await table.log()) == len(before) + 1  # the file with which the run began
    assert len(await table.read()) == 1
    await table.land()


def _killed_with_files(write: Callable[..., None]) -> Callable[..., None]:
    def killed(log: EntryLog, entry: BatchEntry) -> None:
        if entry.segments:
            raise KilledError
        write(log, entry)

    return killed


async def test_times_in_the_log_never_go_back(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream may skip a file that is older than others that it has read."""
    await table.land(entries=2)
    before = await asyncio.to_thread(read_log, LocalFiles(table.root))
    now = Retention.now()
    monkeypatch.setattr(Retention, "now", staticmethod(lambda: now - 3_600_000))
    await table.land(entries=1)
    assert (await asyncio.to_thread(read_log, LocalFiles(table.root)))[:2] == before


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    "entries",
    [0, pytest.param(1, marks=pytest.mark.long), pytest.param(10, marks=pytest.mark.long), 11],
)
async def test_a_log_that_is_behind_is_completed(
    table: Table, monkeypatch: pytest.MonkeyPatch, entries: int, *, after: bool
) -> None:
    create = LocalStorage.create
    await table.land()
    calls = 0

    def killed(storage: LocalStorage, name: str, data: bytes) -> None:
        nonlocal calls
        calls += name.startswith(LOG)
        if name.startswith(LOG) and calls == entries + 2:
            if after:
                create(storage, name, data)
            raise KilledError
        create(storage, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "create", killed)
        with pytest.raises(KilledError):
            await table.land(entries=entries + 1)
    assert len(table.named()) == entries + 1
    assert len(await table.read()) == entries + after
    await table.land(entries=1)


async def test_kills_of_the_first_run_leave_no_wrong_log(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = LocalStorage.create

    def killed(storage: LocalStorage, name: str, data: bytes) -> None:
        create(storage, name, data)
        if name.startswith(LOG):
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "create", killed)
        for _ in range(2):
            with pytest.raises(KilledError):
                await table.land()
            assert await table.read() == []
    await table.land(entries=1)


def _torn(log: Path) -> None:
    newest = max(log.iterdir(), key=lambda path: int(path.stem))
    newest.write_bytes(newest.read_bytes()[:-20])


def _gap(log: Path) -> None:
    (log / "22").unlink()


def _behind(log: Path) -> None:
    for path in (log / "22", log / "23"):
        path.unlink()


def _ahead_of_its_interval(log: Path) -> None:
    (log / "25.compact").write_bytes((log / "19.compact").read_bytes())


def _without_its_start(log: Path) -> None:
    (log / "19.compact").unlink()


def _of_another_place(log: Path) -> None:
    for path in log.iterdir():
        path.write_bytes(path.read_bytes().replace(b"file:///", b"file:///elsewhere/"))


@pytest.mark.long
@pytest.mark.parametrize(
    "damage",
    [
        _torn,
        _gap,
        _behind,
        _ahead_of_its_interval,
        _without_its_start,
        _of_another_place,
        shutil.rmtree,  # as the version before left it
    ],
)
async def test_a_log_that_is_wrong_is_made_good_by_the_next_run(
    table: Table, damage: Callable[[Path], None]
) -> None:
    await table.land(entries=4)
    await asyncio.to_thread(damage, table.root / LOG)
    await table.land()
    assert len(await table.read()) == 4
    await table.land(entries=21)


async def test_a_log_of_any_size_is_read_by_the_next_run(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    await table.land(entries=4)
    monkeypatch.setattr(spark_log, "_UNLISTED_BYTES", 100)
    await table.land(entries=1)
    assert len(await table.read()) == 5


async def test_a_landing_without_the_log_gets_it_from_the_first_run_that_keeps_it(
    table: Table,
) -> None:
    async with land(table.source, str(table.root), max_wait=0.0, spark_log=False) as landing:
        for _ in range(3):
            table.source.put(b"x")
            await anext(landing)
    assert await table.log() == []
    await table.land(entries=1)
    assert len(await table.read()) == 4
    async with land(table.source, str(table.root), max_wait=0.0, spark_log=False) as landing:
        table.source.put(b"x")
        await anext(landing)
    assert len(await table.read()) == 5  # Spark would miss it otherwise
    await asyncio.to_thread(table.check)


@pytest.mark.long
async def test_entries_without_the_log_are_deleted_ten_at_a_time(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, counts = Retention.now(), list[int]()
    monkeypatch.setattr(Retention, "now", staticmethod(lambda: clock))
    landing_without_log = land(
        table.source, str(table.root), max_wait=0.0, keep=timedelta(hours=2), spark_log=False
    )
    async with landing_without_log as landing:
        for _ in range(145):
            clock += 60_000
            table.source.put(b"x")
            await anext(landing)
            counts.append(len(await asyncio.to_thread(table.named)))
    # The first of all has no file.
    assert counts[119:145] == [*range(120, 130), *range(121, 131), *range(121, 127)]


async def test_a_landing_that_was_moved_is_read_where_it_is(table: Table, tmp_path: Path) -> None:
    await table.land(entries=3)
    await asyncio.to_thread(shutil.move, table.root, tmp_path / "moved")
    table.root = tmp_path / "moved"
    await table.land(entries=1)


async def test_files_that_a_version_without_the_log_deleted_leave_it(table: Table) -> None:
    await table.land(entries=3)
    await asyncio.to_thread(expire, table.root, 2)
    (table.root / "segments" / "run-000001-00000001.parquet").unlink()
    await table.land(entries=1)
    assert len(await table.read()) == 3


@pytest.mark.long
async def test_files_leave_the_log_before_they_are_deleted(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tenth entry in general, and at once where they are many."""
    clock = Retention.now()
    monkeypatch.setattr(Retention, "now", staticmethod(lambda: clock))
    delete = LocalStorage.delete
    deleted: list[str] = []

    def checked(storage: LocalStorage, name: str) -> None:
        if name.endswith(".parquet"):
            assert name not in str(read_log(storage))
            deleted.append(name)
        delete(storage, name)

    monkeypatch.setattr(LocalStorage, "delete", checked)
    keep = timedelta(minutes=20)
    counts = []
    async with land(table.source, str(table.root), max_wait=0.0, keep=keep) as landing:
        for _ in range(60):
            clock += 60_000
            table.source.put(b"x")
            async with asyncio.timeout(20):
                await anext(landing)
            counts.append(len(deleted))
            await asyncio.to_thread(table.check)
    # Three of 24 files are the first tenth.
    assert counts[20:24] == [0, 0, 0, 3]
    assert len(await table.read()) == 60 - counts[-1] <= 23


def test_few_files_that_are_too_old_wait_for_the_tenth(tmp_path: Path) -> None:
    log = _Log(tmp_path)
    for number in range(95):
        assert log.write(number)
    written = len(list((tmp_path / LOG).iterdir()))
    # Nine of a hundred are too old: less than a tenth.
    expired = {_name(number) for number in range(9)}
    gone = [log.write(number, expired) for number in range(95, 105)]
    # The first entry is in the file 20, and this one in 119.compact.
    assert gone.index(True) == 119 - 20 - 95
    assert len(list((tmp_path / LOG).iterdir())) == written + 10 - 1  # 9.compact is old now
    assert log.paths() == [_name(number) for number in range(9, 105)]


async def test_files_in_directories_by_date_are_in_the_log(table: Table) -> None:
    table.source = TimedSource()
    async with land(
        table.source, str(table.root), max_wait=0.0, partition_by_date="time"
    ) as landing:
        table.source.put(b"0", b"%d" % (2 * DAY))
        await anext(landing)
        await asyncio.to_thread(table.check)
    assert [path.split("/")[-2] for path in await table.read()] == [
        "date=1970-01-01",
        "date=1970-01-03",
    ]


async def test_files_in_directories_with_odd_names_are_in_the_log(table: Table) -> None:
    """As URIs, in which a second run knows the files again."""
    schema = pa.schema([*SCHEMA, ("text", pa.string())])
    table.source = ShapedSource(schema, text="a/b ü%2F")
    for _ in range(2):
        async with land(
            table.source, str(table.root), max_wait=0.0, partition_by="text"
        ) as landing:
            table.source.put(b"0")
            await anext(landing)
    paths = await table.read()
    assert [path.split("/")[-2] for path in paths] == ["text=a%252Fb%20ü%25252F"] * 2
    assert len(set(paths)) == 2


async def test_a_landing_that_is_idle_adds_nothing(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    await table.land(entries=1)
    before = len(await table.log())
    monkeypatch.setattr("fanout.landing.lander._IDLE_SECONDS", 0.01)
    async with land(table.source, str(table.root), max_wait=0.0) as landing:
        waiting = asyncio.create_task(anext(landing))
        table.source.idle()
        async with asyncio.timeout(20):
            while landing._log.next_number < 4:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.01)
        table.source.put(b"x")
        await waiting
    assert len(await table.log()) == before + 2
    await asyncio.to_thread(table.check)


def _name(number: int) -> str:
    return f"segments/run-000001-{number + 1:08}.parquet"


class _Log:
    """A run that owns a landing, and writes entries by hand."""

    def __init__(self, root: Path, storage: Storage | None = None) -> None:
        self.storage = LocalStorage(root) if storage is None else storage
        self._claim = claim(self.storage, ThisProcess("test"))
        self.ownership: Ownership = self._claim.__enter__()
        self.entries = EntryLog(self.storage, self.ownership)
        self._fence()
        log = SparkLog.open(self.storage, self.ownership, self.entries)
        assert log is not None
        self.log = log

    def _fence(self) -> None:
        self.entries.write(self._entry())

    def _entry(self, *segments: SegmentFile) -> BatchEntry:
        return BatchEntry(self.entries.next_number, "", segments, Checkpoint("manual:one", {}))

    def name(self, number: int) -> BatchEntry:
        """Write the entry alone."""
        entry = self._entry(SegmentFile(_name(number), 1, 10))
        self.entries.write(entry)
        return entry

    def write(self, number: int, expired: Collection[str] = ()) -> bool:
        return self.log.write(self.name(number), expired, 0)

    def paths(self) -> list[str]:
        return [f"segments/{line['path'].rpartition('/')[2]}" for line in read_log(self.storage)]


@pytest.fixture
def bucket(moto: str) -> Callable[[], Storage]:
    return partial(open_storage, f"s3://{BUCKET}/{uuid.uuid4().hex}", s3_options(moto))


@pytest.mark.long
@pytest.mark.parametrize("before", [0, 8, 9])
def test_a_run_that_was_overtaken_changes_nothing(
    bucket: Callable[[], Storage], before: int
) -> None:
    """Whatever file of the log it was about to write."""
    older = _Log(Path(), bucket())
    for number in range(before):
        older.write(number)
    late = older.name(before)
    newer = _Log(Path(), bucket())
    newer.write(before + 1)
    wanted = [_name(number) for number in range(before + 2)]
    assert newer.paths() == wanted
    if before == 9:  # the older run's next file has the name that the newer run's first one has
        with pytest.raises(CheckpointError, match="taken over by a newer run"):
            older.log.write(late, set(), 0)
    else:
        older.log.write(late, set(), 0)
    assert newer.paths() == wanted
    for number in range(before + 2, before + 13):
        newer.write(number)
    assert newer.paths() == [_name(number) for number in range(before + 13)]
    with pytest.raises(CheckpointError, match="taken over by a newer run"):
        older.write(99)


@pytest.mark.long
def test_a_newer_run_goes_on_from_a_file_that_the_older_one_wrote_meanwhile(
    bucket: Callable[[], Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    older = _Log(Path(), bucket())
    for number in range(9):
        older.write(number)
    late = older.name(9)
    check = type(older.ownership).check
    calls = iter(range(100))

    def overtaken(ownership: Ownership) -> None:
        check(ownership)
        # The first check is that of the newer run's entry, the second that of its log.
        if next(calls) == 1:
            assert older.log.write(late, {_name(0)}, 0)
            older.storage.delete(_name(0))

    monkeypatch.setattr(type(older.ownership), "check", overtaken)
    newer = _Log(Path(), bucket())
    monkeypatch.undo()
    assert newer.paths() == [_name(number) for number in range(1, 10)]
    newer.write(10)
    assert newer.paths() == [_name(number) for number in range(1, 11)]


def test_a_run_that_was_overtaken_as_it_began_writes_no_log(
    bucket: Callable[[], Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    check = SparkLog._add_missing
    newer: list[_Log] = []

    def overtaken(log: SparkLog, entries: EntryLog) -> None:
        check(log, entries)
        if not newer:
            newer.append(None)  # type: ignore[arg-type] # it begins in the same way
            newer[0] = _Log(Path(), bucket())
            newer[0].write(0)

    monkeypatch.setattr(SparkLog, "_add_missing", overtaken)
    with pytest.raises(CheckpointError, match="taken over by a newer run"):
        _Log(Path(), bucket())
    for number in range(1, 12):
        newer[0].write(number)
    assert newer[0].paths() == [_name(number) for number in range(12)]


async def test_a_bucket_has_the_log_with_the_scheme_of_hadoop(moto: str) -> None:
    source, location = ManualSource(), f"s3://{BUCKET}/{uuid.uuid4().hex}"
    options = s3_options(moto)
    async with land(source, location, max_wait=0.0, storage_options=options) as landing:
        for number in range(12):
            source.put(b"%d" % number)
            await anext(landing)
    lines = await asyncio.to_thread(lambda: read_log(open_files(location, options)))
    name = location.replace("s3://", "s3a://")
    assert [line["path"] for line in lines] == [
        f"{name}/segments/run-000001-{number:08}.parquet" for number in range(1, 13)
    ]


@pytest.fixture(autouse=True)
def _released() -> Iterator[None]:
    yield
    for lock in ThisProcess._locks.values():
        lock.release()
