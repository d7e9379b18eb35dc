"""Records that `decode` fails for, in files beside a landing: each once, as it came."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from contextlib import closing
from copy import copy
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fanout.core.user_decode import UserDecode, divided
from fanout.decoding import Json
from fanout.errors import CheckpointError, OptionError
from fanout.kafka.reading.columns import NO_RECORDS, PLACES
from fanout.landers.land import land
from fanout.landing.log.bad_places import BadRecordPlaces
from fanout.landing.log.entries import EntryLog, read_entry
from fanout.landing.segments.bad_records import (
    BadRecordFiles,
    check_bad_records,
    stage_bad_records,
)
from fanout.landing.segments.segments import OpenSegment
from fanout.landing.storage.local_storage import LocalFiles, LocalStorage
from tests.support.kinesis.reading import Stream
from tests.support.manual_source import ManualSource
from tests.support.retention import expire

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.landing.log.followed import LandedEntry
    from fanout.testing.kinesis.server import KinesisServer

AT = datetime(2026, 11, 27, tzinfo=UTC)
TYPED = Json("id BIGINT NOT NULL", columns=["partitionKey"])


def own(records: pa.RecordBatch) -> pa.RecordBatch:
    """Decode as users do, who find bad rows by an error, and leave rows out."""
    ids = [json.loads(data)["id"] for data in records.column("data").to_pylist()]
    assert all(isinstance(one, int) for one in ids), "no number"
    place = records.select(["shardId", "sequenceNumber", "subSequenceNumber", "partitionKey"])
    decoded = place.append_column(
        pa.field("id", pa.int64(), nullable=False), pa.array(ids, pa.int64())
    )
    return decoded.filter(pa.array([one % 10 != 9 for one in ids], pa.bool_()))


class Job:
    """A stream, a landing of it, and the files of its bad records."""

    def __init__(self, server: KinesisServer, root: Path, decode: Any = TYPED) -> None:
        self.server = server
        self.root = root
        self.decode = decode
        self.at = root / "landing"
        self.bad_at = str(root / "bad")
        self.stream = Stream(server, shards=2)

    def put(self, *data: bytes) -> None:
        self.server.put_records("orders", ((each.decode(), each) for each in data))

    @property
    def records(self) -> list[str]:
        """The names of what the landing remembers of locations."""
        return sorted(path.name for path in (self.at / "bad").iterdir())

    async def land(self, *, at_most: int = 1000, **options: Any) -> list[LandedEntry]:
        """Land what is there, or some entries of it; return the entries."""
        source = self.stream.source(**{"decode": self.decode} | options.pop("source", {}))
        chosen: dict[str, Any] = {"bad_records": self.bad_at, "available_now": True} | options
        async with land(source, str(self.at), **chosen) as landing:
            entries: list[LandedEntry] = []
            while len(entries) < at_most and (entry := await anext(landing, None)):
                entries.append(entry)
            self.counted = landing.statistics().totals.bad_records
            return entries

    @property
    def files(self) -> list[Path]:
        return sorted((self.root / "bad").rglob("*.parquet"))

    def bad(self) -> list[bytes]:
        """Return the bad records in all files."""
        tables = [pq.read_table(file, partitioning=None) for file in self.files]
        return sorted(data for table in tables for data in table.column("data").to_pylist())

    def good(self, entries: list[LandedEntry]) -> list[int]:
        files = [file for entry in entries for file in entry.files]
        return sorted(one for file in files for one in pq.read_table(file).column("id").to_pylist())


@pytest.fixture
def job(kinesis_server: KinesisServer, tmp_path: Path) -> Job:
    return Job(kinesis_server, tmp_path)


def good(number: int) -> bytes:
    return b'{"id": %d}' % number


@pytest.mark.parametrize("decode", [pytest.param(TYPED, marks=pytest.mark.long), own])
async def test_bad_records_are_in_a_file_once(job: Job, decode: Any) -> None:
    """Wherever a run ends, and whether they are first, last or alone in it."""
    job.decode = decode
    bad = [b'{"id": "x%02d"}' % number for number in range(30)]
    data = bad[:9] + [good(number) for number in range(20)] + bad[9:20] + [good(30)] + bad[20:]
    job.put(*data)
    entries: list[LandedEntry] = []
    while found := await job.land(max_records=7, at_most=1):
        entries += found
    left = [one for one in [*range(20), 30] if decode is TYPED or one % 10 != 9]
    assert await asyncio.to_thread(job.good, entries) == left
    assert await asyncio.to_thread(job.bad) == sorted(bad)
    assert len(entries) >= 7
    file = next(file for entry in entries for file in entry.files)
    schema = await asyncio.to_thread(pq.read_schema, file)
    assert schema.field("id").nullable == (decode is TYPED)


async def test_bad_records_are_counted(job: Job) -> None:
    job.put(*[b"no", good(1)] * 5)
    await job.land()
    assert job.counted == 5


async def test_a_file_has_the_records_as_they_came_and_the_reason(job: Job) -> None:
    job.put(b'{"id": 1}', b'{"id": 1.5}')
    entries = await job.land()
    (file,) = job.files
    table = await asyncio.to_thread(pq.read_table, file, partitioning=None)
    (row,) = table.to_pylist()
    assert (row["data"], row["partitionKey"]) == (b'{"id": 1.5}', '{"id": 1.5}')
    assert row["shardId"].startswith("shardId-")
    assert row["sequenceNumber"].isdecimal()
    assert row["reason"].endswith(
        "id is no BIGINT: it has a fraction or an exponent, or is too large"
    )
    assert row["approximateArrivalTimestamp"] is not None
    identity = json.loads((job.root / "landing/landing.json").read_text())["id"]
    entry = await asyncio.to_thread(
        read_entry, LocalFiles(job.root / "landing"), entries[-1].number
    )
    assert entry is not None
    assert re.fullmatch(rf"landing={identity}-[0-9a-f]{{8}}/{file.name}", entry.bad)
    table = await asyncio.to_thread(pq.read_table, entries[0].files[0])
    assert table.schema.names == [
        "partitionKey", "shardId", "sequenceNumber", "subSequenceNumber", "id",
    ]  # fmt: skip


async def test_an_entry_may_have_bad_records_alone(job: Job) -> None:
    job.put(*[b"no"] * 5)
    entries = await job.land(partition_by="id", max_records=2)
    assert [(entry.rows, entry.files) for entry in entries] == [(0, ())] * 3
    assert await asyncio.to_thread(job.bad) == [b"no"] * 5
    assert len(job.files) == 3
    job.put(good(1), b"no")
    entries = await job.land(partition_by="id")
    assert await asyncio.to_thread(job.good, entries) == [1]
    assert len(job.bad()) == 6


async def test_an_entry_without_bad_records_has_no_file_of_them(job: Job) -> None:
    """Also where one batch of the source is in several entries."""
    job.put(*map(good, range(10)), b"no")
    entries = await job.land(max_records=5)
    assert len(entries) >= 3
    (file,) = job.files
    assert pq.read_metadata(file).num_rows == 1


class KilledError(BaseException):
    """The process is killed."""


def killed(*_: Any) -> None:
    raise KilledError


@pytest.mark.parametrize("data", [[b"no", good(1)], [b"no"]])
async def test_a_file_that_a_killed_run_left_is_deleted(
    job: Job, monkeypatch: pytest.MonkeyPatch, data: list[bytes]
) -> None:
    job.put(*data)
    await land_until_killed(job, monkeypatch)
    assert job.bad() == [b"no"]
    (left,) = job.files
    await job.land()
    assert await asyncio.to_thread(job.bad) == [b"no"]
    assert left not in job.files


async def leave_one(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill a run between a file of bad records and its entry."""
    job.put(b"no", good(1))
    await land_until_killed(job, monkeypatch)
    assert job.bad() == [b"no"]


@pytest.mark.long
async def test_a_file_of_a_newer_state_than_the_restored_one_is_named(
    job: Job, tmp_path: Path
) -> None:
    job.put(b"no", good(1))
    await job.land()
    backup = tmp_path / "backup"
    await asyncio.to_thread(shutil.copytree, job.at, backup)
    job.put(b"worse", good(2))
    await job.land()
    await asyncio.to_thread(shutil.rmtree, job.at)
    await asyncio.to_thread(backup.rename, job.at)
    newest = job.files[-1].name
    with pytest.raises(CheckpointError, match=rf"{newest} is there already: .*older state") as told:
        await job.land()
    assert f"{job.bad_at}/landing=" in str(told.value)
    await job.land()
    assert await asyncio.to_thread(job.bad) == [b"no", b"worse"]


async def test_a_run_that_keeps_no_bad_records_deletes_what_a_killed_one_left(
    job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    job.bad_at = "bad"
    await leave_one(job, monkeypatch)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    await job.land(bad_records=None, source={"on_bad_record": "gap"})
    assert job.files == []
    assert not [*(job.root / "landing" / "bad").iterdir()]


@pytest.mark.long
async def test_a_run_with_another_location_deletes_what_a_killed_one_left(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    await leave_one(job, monkeypatch)
    for _ in range(2):
        await job.land(bad_records=str(job.root / "others"))
    assert job.files == []
    assert len([*(job.root / "others").rglob("*.parquet")]) == 1
    assert job.records == ["location-000002.json", "location-000003.json"]


@pytest.mark.parametrize(
    "bad_at", ["bad", *(pytest.param(at, marks=pytest.mark.long) for at in ("others", None))]
)
async def test_a_landing_and_its_copy_delete_nothing_of_each_other(
    job: Job, monkeypatch: pytest.MonkeyPatch, bad_at: str | None
) -> None:
    job.put(b"first")
    await job.land()
    job.put(b"no")
    await land_until_killed(job, monkeypatch)
    of_original = job.files
    assert len(of_original) == 2
    shutil.copytree(job.root / "landing", job.root / "copy")
    job.at = job.root / "copy"
    options: dict[str, Any] = {"bad_records": None, "source": {"on_bad_record": "gap"}}
    if bad_at is not None:
        options = {"bad_records": str(job.root / bad_at)}
    for _ in range(2):
        job.put(b"new")
        await job.land(**options)
        assert {*of_original} <= {*job.files}
    of_copy = {*job.files} - {*of_original}
    assert len(of_copy) == (2 if bad_at == "bad" else 0)
    job.at = job.root / "landing"
    await job.land()
    assert of_copy <= {*job.files}


async def test_a_landing_that_was_moved_keeps_its_files_of_before(job: Job) -> None:
    job.put(b"no")
    await job.land()
    before = job.files
    job.at = (job.root / "landing").rename(job.root / "moved")
    job.put(b"neither")
    await job.land()
    assert {*before} < {*job.files}
    assert job.bad() == [b"neither", b"no"]


@pytest.mark.long
async def test_a_start_lists_no_files_of_bad_records(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.put(b"no")
    await job.land()
    listed: list[str] = []
    real = LocalStorage.list

    def counted(storage: LocalStorage, directory: str) -> Any:
        listed.append(directory)
        return real(storage, directory)

    monkeypatch.setattr(LocalStorage, "list", counted)
    for _ in range(8):
        job.put(b"no")
        await job.land()
    assert "bad" in listed
    assert not [directory for directory in listed if "landing=" in directory]
    assert len(job.files) == 9
    assert job.records == [f"location-{run:06}.json" for run in range(5, 10)]


@pytest.mark.long
async def test_what_was_left_is_found_after_a_run_that_remembers_nothing(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    await leave_one(job, monkeypatch)
    (left,) = job.files
    with monkeypatch.context() as patch:
        patch.setattr(BadRecordPlaces, "open", killed)
        with pytest.raises(KilledError):
            await job.land()
    await job.land()
    assert left not in job.files
    assert job.bad() == [b"no"]


@pytest.mark.long
async def test_what_comes_late_of_a_run_that_was_overtaken_is_deleted_by_a_later_one(
    job: Job,
) -> None:
    for _ in range(4):
        job.put(b"no")
        await job.land()
    (directory,) = {path.parent for path in job.files}
    second = json.loads((job.root / "landing/bad/location-000002.json").read_text())
    late = directory / f"entry-{second['entry']:012}-run-000001.parquet"
    late.write_bytes(b"late")
    await job.land()
    assert not late.exists()
    assert len(job.files) == 4


@pytest.mark.long
async def test_what_was_left_before_a_landing_was_moved_is_logged_once(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await leave_one(job, monkeypatch)
    (left,) = job.files
    job.at = (job.root / "landing").rename(job.root / "moved")
    await job.land()
    words = (
        f"{left} is in no entry of this landing, which was moved from {job.root}/landing: delete "
        f"the file unless a landing is still there"
    )
    assert caplog.text.count(words) == 1
    caplog.clear()
    await job.land()
    assert "moved from" not in caplog.text
    assert left in job.files
    assert len(job.files) == 2


@pytest.mark.long
async def test_what_many_runs_left_before_a_landing_was_moved_is_logged_once(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        job.put(b"no")
        await job.land()
    job.put(b"no")
    await land_until_killed(job, monkeypatch)
    job.at = (job.root / "landing").rename(job.root / "moved")
    await job.land()
    assert caplog.text.count("is in no entry of this landing, which was moved from") == 1


@pytest.mark.long
async def test_a_copy_lets_the_original_write_its_bad_records(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.put(b"first")
    await job.land()
    shutil.copytree(job.root / "landing", job.root / "copy")
    copied = copy(job)
    copied.at = job.root / "copy"
    real = LocalStorage.publish

    def meanwhile(storage: LocalStorage, local_file: Path, name: str) -> None:
        if local_file.name.startswith("bad-"):
            monkeypatch.setattr(LocalStorage, "publish", real)
            asyncio.run(copied.land())
        real(storage, local_file, name)

    monkeypatch.setattr(LocalStorage, "publish", meanwhile)
    job.put(b"no")
    await job.land()
    assert job.bad() == [b"first", b"no", b"no"]


@pytest.mark.long
async def test_what_a_run_left_is_found_that_stored_its_location_alone(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So did versions before the one that starts without a list."""
    await leave_one(job, monkeypatch)
    (left,) = job.files
    record = job.root / "landing/bad/location-000001.json"
    record.write_text(json.dumps({"version": 1, "location": job.bad_at}))
    for _ in range(6):
        job.put(b"no")
        await job.land()
    assert left not in job.files
    assert job.records == [f"location-{run:06}.json" for run in range(3, 8)]


@pytest.mark.long
async def test_a_list_of_all_files_reads_an_entry_for_each_run(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        job.put(*[b"no"] * 6)
        await job.land(max_records=2)
    assert len(job.files) == 6
    read: list[int] = []
    real = EntryLog.bad_file

    def counted(log: EntryLog, number: int) -> str | None:
        read.append(number)
        return real(log, number)

    monkeypatch.setattr(EntryLog, "bad_file", counted)
    (job.root / "landing/bad/location-000002.json").unlink()
    await job.land()
    assert len(read) == 2
    assert len(job.files) == 6


@pytest.mark.long
async def test_a_location_that_is_not_there_after_a_landing_was_moved_is_logged_once(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    job.bad_at = str(job.root / "landing/kept")
    job.put(b"no")
    await job.land()
    job.at = (job.root / "landing").rename(job.root / "moved")
    job.bad_at = str(job.root / "moved/kept")
    await job.land()
    words = f"left in {job.root}/landing/kept is not known: {job.root}/landing/kept is not there"
    assert caplog.text.count(words) == 1
    caplog.clear()
    await job.land()
    assert "landing/kept" not in caplog.text
    assert not (job.root / "landing").exists()


@pytest.mark.long
async def test_another_spelling_of_a_landing_is_no_copy(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    await leave_one(job, monkeypatch)
    (left,) = job.files
    job.at = job.root / "link"
    job.at.symlink_to(job.root / "landing")
    await job.land()
    assert left not in job.files


@pytest.mark.long
async def test_a_location_of_before_that_cannot_be_used_is_logged(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await leave_one(job, monkeypatch)
    (job.root / "bad").rename(job.root / "moved")
    (job.root / "bad").write_bytes(b"")
    quiet: dict[str, Any] = {"bad_records": None, "source": {"on_bad_record": "gap"}}
    await job.land(**quiet)
    words = f"what a run that was killed may have left in {job.root}/bad is not deleted before"
    assert words in caplog.text
    (job.root / "bad").unlink()
    (job.root / "moved").rename(job.root / "bad")
    await job.land(**quiet)
    assert job.files == []


@pytest.mark.long
async def test_a_disk_of_before_that_is_not_there_is_left_alone(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await leave_one(job, monkeypatch)
    (job.root / "bad").rename(job.root / "moved")
    quiet: dict[str, Any] = {"bad_records": None, "source": {"on_bad_record": "gap"}}
    for mount_point in (False, True):
        if mount_point:
            (job.root / "bad").mkdir()
        await job.land(**quiet)
        assert f"{job.root}/bad is not there" in caplog.text
        assert "delete bad/location-000001.json of the landing if" in caplog.text
        assert (job.root / "bad").exists() == mount_point
        caplog.clear()
    (job.root / "bad").rmdir()
    (job.root / "moved").rename(job.root / "bad")
    await job.land(**quiet)
    assert job.files == []


def test_bad_records_of_landers_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    landing = LocalStorage(tmp_path / "landing")
    (tmp_path / "landing" / "bad").mkdir()
    (tmp_path / "landing" / "bad" / "run-1.parquet").write_bytes(b"no Parquet")
    with closing(BadRecordFiles(str(tmp_path / "kept"), None, "0" * 32, "/one", 1)) as files:
        for name in ("bad/run-1.parquet", "bad/run-2.parquet"):
            with pytest.raises(CheckpointError, match=f"cannot read {tmp_path}/landing/{name}: "):
                files.gather(landing, [name], 1)


def test_bad_records_of_landers_that_the_disk_has_altered_are_an_error(tmp_path: Path) -> None:
    landing = LocalStorage(tmp_path / "landing")
    records = pa.RecordBatch.from_pydict({"data": [b"no record"], "reason": ["no number"]})
    path = landing.scratch() / "run-000001-000001-00000001.parquet"
    segment = OpenSegment(path, records.schema, max_records=10, max_bytes=1000)
    segment.bad.append(records)
    staged = stage_bad_records(landing, segment)
    assert staged is not None
    file = tmp_path / "landing" / staged.name
    whole = file.read_bytes()
    at = pq.read_metadata(file).row_group(0).column(0).total_compressed_size
    with closing(BadRecordFiles(str(tmp_path / "kept"), None, "0" * 32, "/one", 1)) as files:
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CheckpointError, match=f"cannot read {file}: .*CRC"):
            files.gather(landing, [staged.name], 1)
        file.write_bytes(whole)
        name = files.gather(landing, [staged.name], 1)
    kept = pq.read_table(tmp_path / "kept" / name, partitioning=None)
    assert kept.to_batches() == [records]


@pytest.mark.long
async def test_what_landers_of_earlier_runs_have_staged_is_deleted(job: Job) -> None:
    job.put(good(1))
    await job.land()
    directory = job.root / "landing" / "bad"
    earlier, later = (directory / f"run-{run:06}-000001-00000001.parquet" for run in (1, 9))
    for path in (earlier, later):
        path.write_bytes(b"staged")
    await job.land()
    assert not earlier.exists()
    assert later.exists()


WRITE = EntryLog.write


def fence_only(log: EntryLog, entry: Any) -> None:
    if entry.segments or entry.bad:
        raise KilledError
    WRITE(log, entry)


async def land_until_killed(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Land, and be killed before the entry of the first records is written."""
    with monkeypatch.context() as patch:
        patch.setattr(EntryLog, "write", fence_only)
        with pytest.raises(KilledError):
            await job.land()


@pytest.mark.long
async def test_files_of_entries_stay_that_retention_has_deleted(job: Job) -> None:
    job.put(b"no")
    (entry,) = await job.land()
    job.put(b"nor this")
    await job.land()
    await asyncio.to_thread(expire, job.root / "landing", entry.number + 1)
    await job.land()
    assert job.bad() == [b"no", b"nor this"]


async def test_a_file_of_another_landing_stays(job: Job) -> None:
    job.put(b"no")
    await job.land()
    (file,) = job.files
    (file.parent / "theirs.parquet").write_bytes(file.read_bytes())
    other = job.root / "bad" / f"landing={'0' * 32}"
    other.mkdir()
    (other / "entry-000000000000-run-000001.parquet").write_bytes(b"theirs")
    await job.land()
    assert len(job.files) == 3


async def test_a_run_that_was_overtaken_deletes_its_file(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.put(b"no")

    def late(log: EntryLog, entry: Any) -> None:
        if entry.bad:
            other = type(entry)(entry.batch_id, "", (), entry.positions)
            WRITE(log, other)
            raise CheckpointError("another run has the number")
        WRITE(log, entry)

    monkeypatch.setattr(EntryLog, "write", late)
    with pytest.raises(CheckpointError):
        await job.land()
    assert job.files == []


@pytest.mark.parametrize("place", ["landing/segments", "landing/segments/", "landing/segments/bad"])
async def test_a_location_among_the_records_is_refused(job: Job, place: str) -> None:
    with pytest.raises(OptionError, match=r"bad_records='.*' must be elsewhere: readers take"):
        await job.land(bad_records=f"{job.root}/{place}")


def test_a_location_among_the_records_is_refused_however_it_is_spelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "orders")
    monkeypatch.chdir(tmp_path)
    for landing, location in [
        ("./orders", "orders/segments"),
        ("orders", f"{tmp_path}/orders//segments/bad"),
        ("orders", f"file:{tmp_path}/orders/segments"),
        ("orders", "link/segments"),
        ("s3://lake/orders", "s3a://lake//orders/segments/bad"),
        ("az://lake/orders", "abfss://lake@one.dfs.core.windows.net/orders/segments"),
    ]:
        with pytest.raises(OptionError, match=r"bad_records='.*' must be elsewhere"):
            check_bad_records(location, landing)
    check_bad_records("orders/segments2", "orders")
    check_bad_records("s3://lake/orders/segments", "orders")
    check_bad_records("s3://lake/orders/bad", "s3://lake/orders")


@pytest.mark.parametrize(
    ("location", "words"),
    [
        (5, "bad_records must be a path or a URI, .*it is of the type int"),
        ("", "bad_records='' must be a string, and not empty"),
        ("http://lake/bad", "bad_records='http://lake/bad' must be a path, or a URI such as"),
    ],
)
async def test_what_is_no_location_is_refused(job: Job, location: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        await job.land(bad_records=location)
    assert not (job.root / "landing").exists()


async def test_a_location_that_cannot_be_used_is_refused(job: Job, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"cannot use .*file"):
        await job.land(bad_records=str(tmp_path / "file"))


async def test_bad_records_are_about_decode(job: Job, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="bad_records is about decode: pass decode"):
        await job.land(source={"decode": None})
    with pytest.raises(OptionError, match="on_bad_record must be left out where bad_records is"):
        await job.land(source={"on_bad_record": "gap"})
    with pytest.raises(OptionError, match="bad_records is about decode"):
        async with land(ManualSource(), str(tmp_path / "two"), bad_records=str(tmp_path / "bad")):
            pass


@given(st.lists(st.sampled_from(["good", "bad", "left out"]), min_size=1, max_size=12))
def test_bad_records_of_kafka_keep_their_places(kinds: list[str]) -> None:
    """Good and bad ones are in the order of offsets, and are told apart again."""
    made = [
        {"key": b"k", "value": kind.encode(), "topic": "t", "partition": 3, "offset": number}
        | {"timestamp": AT, "timestampType": 0, "headers": [{"key": "h", "value": None}]}
        for number, kind in enumerate(kinds)
    ]
    given_rows = pa.RecordBatch.from_pylist(made, schema=NO_RECORDS.schema)
    decode = UserDecode(
        lambda rows: rows.select(["topic", "partition", "offset"]), NO_RECORDS, PLACES
    )
    bad = {number: ValueError("x" * 5000) for number, kind in enumerate(kinds) if kind == "bad"}
    assume(bad)
    good = pa.array([kind == "good" for kind in kinds])
    decoded = given_rows.filter(good).select(["topic", "partition", "offset"])
    mixed = decode.with_bad(given_rows, decoded, bad)
    left = [number for number, kind in enumerate(kinds) if kind != "left out"]
    assert mixed.column("offset").to_pylist() == left
    again, found = divided(mixed, decoded.schema)
    assert again.equals(decoded)
    reasons = found.column("reason").to_pylist()
    assert found.drop_columns(["reason"]).to_pylist() == [made[number] for number in bad]
    assert reasons == ["ValueError: " + "x" * 988] * len(bad)


def test_what_is_left_in_the_scratch_directory_is_removed(tmp_path: Path) -> None:
    first = BadRecordFiles(str(tmp_path), None, "0" * 32, "/one", 1)
    first._scratch.write_bytes(b"half")
    BadRecordFiles(str(tmp_path), None, "1" * 32, "/one", 1).close()
    BadRecordFiles(str(tmp_path), None, "0" * 32, "/copy", 1).close()
    assert first._scratch.exists()
    BadRecordFiles(str(tmp_path), None, "0" * 32, "/one", 2)
    assert not first._scratch.exists()
