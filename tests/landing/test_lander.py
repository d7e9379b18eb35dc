from __future__ import annotations

import asyncio
import os
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fanout.core.checkpoint import Checkpoint
from fanout.errors import CheckpointError, OptionError, SplitFailedError
from fanout.landers.land import land
from fanout.landing import lander
from fanout.landing.log.entries import BatchEntry, EntryLog, encode_entry, entry_name
from fanout.landing.log.followed import followed
from fanout.landing.retention import Retention
from fanout.landing.storage.opening import open_storage
from fanout.testing.s3_clients import BUCKET
from tests.support.manual_source import Acknowledged, ManualSource, Subscribed
from tests.support.s3 import S3_SERVERS, s3_options
from tests.support.timed_source import DAY, TimedSource

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from fanout.landing.lander import Landing
    from fanout.landing.log.followed import LandedEntry
    from fanout.landing.segments.segments import SegmentFile
    from fanout.landing.storage.storage import Storage


class Place:
    """A location to land at, on a disk or in a bucket."""

    def __init__(self, location: str, options: dict[str, str] | None = None) -> None:
        self.location = location
        self.options = options

    def land(self, source: ManualSource, **options: Any) -> AbstractAsyncContextManager[Landing]:
        chosen = {"max_wait": 0.0, "storage_options": self.options}
        return land(source, self.location, **chosen | options)

    def storage(self) -> Storage:
        return open_storage(self.location, self.options)

    async def files(self) -> list[str]:
        """Return the files that are there, whether an entry names them or not."""
        found = await asyncio.to_thread(lambda: self.storage().list("segments"))
        return [f"{self.location}/segments/{file.name}" for file in found]

    async def walk(self) -> list[str]:
        """Return the files that are there, in all directories."""
        found = await asyncio.to_thread(lambda: self.storage().walk("segments"))
        return [f"{self.location}/{name}" for name in found]

    async def read(self, *entries: LandedEntry) -> list[bytes]:
        return [data for entry in entries for data in await asyncio.to_thread(self._read, entry)]

    def _read(self, entry: LandedEntry) -> list[bytes]:
        found: list[bytes] = []
        for file in entry.files:
            data = self.storage().read(file.removeprefix(f"{self.location}/"), limit=1 << 20)
            found += pq.read_table(pa.BufferReader(data)).column("data").to_pylist()
        return found


# The quick tests have what matters most on object storage too.
EVERYWHERE = pytest.mark.parametrize("place", ["disk", *S3_SERVERS], indirect=True)


@pytest.fixture(params=["disk", pytest.param("moto", marks=pytest.mark.long), *S3_SERVERS[1:]])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "disk":
        return Place(str(tmp_path / "landing"))
    endpoint = request.getfixturevalue(request.param)
    return Place(f"s3://{BUCKET}/{uuid.uuid4().hex}", s3_options(endpoint))


@pytest.fixture
def source() -> ManualSource:
    return ManualSource()


async def rest(landing: Landing) -> list[LandedEntry]:
    async with asyncio.timeout(20):
        return [entry async for entry in landing]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.01)


async def follow(place: Place, count: int, **options: Any) -> list[LandedEntry]:
    found: list[LandedEntry] = []
    async with asyncio.timeout(20):
        async for entry in followed(
            place.location, poll=0.01, storage_options=place.options, **options
        ):
            found.append(entry)
            if len(found) == count:
                break
    return found


@EVERYWHERE
async def test_records_are_durable_and_acknowledged_before_their_entry_is_yielded(
    place: Place, source: ManualSource
) -> None:
    source.put(b"one", b"two")
    async with place.land(source) as landing:
        entry = await anext(landing)
        assert await place.read(entry) == [b"one", b"two"]
        assert (entry.rows, len(entry.files)) == (2, 1)
        assert source.trace[-1] == Acknowledged(
            {id_: state.position for id_, state in entry.positions.splits.items()}
        )
        source.put(b"three")
        second = await anext(landing)
        assert await place.read(second) == [b"three"]
        assert second.number == entry.number + 1


@pytest.mark.long
async def test_a_run_continues_after_the_newest_entry(place: Place, source: ManualSource) -> None:
    source.put(b"one")
    async with place.land(source) as landing:
        first = await anext(landing)
    source.put(b"two")
    async with place.land(source) as landing:
        second = await anext(landing)
    assert await place.read(first, second) == [b"one", b"two"]
    # Each run takes a number before it writes, so that no earlier run can.
    assert second.number == first.number + 2


async def test_the_log_says_whether_a_run_is_the_first_one(
    tmp_path: Path, source: ManualSource, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fanout.lifecycle")
    place = Place(str(tmp_path / "landing"))
    for _ in range(2):
        async with place.land(source):
            pass
    started = [
        each for each in caplog.records if vars(each).get("event.name") == "fanout.stream.started"
    ]
    assert [vars(each)["fanout.stream.resumed"] for each in started] == [False, True]
    first, second = (each.getMessage() for each in started)
    assert " starts with 1 split: a" in first
    assert " resumes from stored positions with 1 split: a" in second


@EVERYWHERE
async def test_a_bounded_run_ends_with_what_is_there(place: Place, source: ManualSource) -> None:
    source.put(*(b"%d" % number for number in range(10)))
    async with place.land(source, available_now=True, max_records=4, max_wait=60.0) as landing:
        entries = await rest(landing)
    assert [entry.rows for entry in entries] == [4, 4, 2]
    async with place.land(source, available_now=True) as landing:
        assert await rest(landing) == []


async def test_stop_lands_what_was_read(place: Place, source: ManualSource) -> None:
    source.put(b"one")
    async with place.land(source, max_wait=3600.0) as landing:
        waiting = asyncio.create_task(rest(landing))
        await until(lambda: sum(one.records for one in landing.statistics().splits.values()))
        landing.stop()
        (entry,) = await waiting
    assert await place.read(entry) == [b"one"]


async def test_the_failure_of_the_source_comes_after_its_last_records(
    place: Place, source: ManualSource
) -> None:
    source.put(b"one")
    async with place.land(source) as landing:
        entry = await anext(landing)
        assert entry.rows == 1
        source.fail(ValueError("broken"))
        with pytest.raises(SplitFailedError, match="broken"):
            await anext(landing)


async def test_the_error_of_the_block_is_raised_as_it_is(
    place: Place, source: ManualSource
) -> None:
    mine = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as raised:
        async with place.land(source):
            raise mine
    assert raised.value is mine


@EVERYWHERE
async def test_a_file_that_a_killed_run_left_is_deleted_and_its_records_come_again(
    place: Place, source: ManualSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.put(b"one")
    async with place.land(source) as landing:
        named = await anext(landing)
        source.put(b"two")
        with monkeypatch.context() as patch:
            patch.setattr(EntryLog, "write", killed)
            with pytest.raises(KilledError):
                await anext(landing)
        assert len(await place.files()) == 2
    async with place.land(source) as landing:
        assert len(await place.files()) == 1
        assert await place.read(await anext(landing)) == [b"two"]
    assert await place.read(named) == [b"one"]


async def test_a_landing_whose_write_failed_does_not_skip_its_records(
    place: Place, source: ManualSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.put(b"one")
    async with place.land(source) as landing:
        with monkeypatch.context() as patch:
            patch.setattr(EntryLog, "write", refused)
            with pytest.raises(CheckpointError, match="refused"):
                await anext(landing)
        source.put(b"two")
        with pytest.raises(CheckpointError, match="refused"):
            await anext(landing)
    async with place.land(source) as landing:
        assert await place.read(await anext(landing)) == [b"one", b"two"]


def refused(*_: object) -> None:
    raise CheckpointError("refused")


class KilledError(BaseException):
    """The process is killed."""


def killed(*_: object) -> None:
    raise KilledError


def killed_at_files(_: object, files: tuple[SegmentFile, ...]) -> None:
    if files:
        raise KilledError


async def test_a_landing_that_another_run_has_taken_over_writes_nothing(
    place: Place, source: ManualSource
) -> None:
    if place.options is None:
        async with place.land(source):
            with pytest.raises(CheckpointError, match="in use by another run of this process"):
                async with place.land(source):
                    pass
        return
    async with place.land(source) as older:
        source.put(b"one")
        async with place.land(source) as newer:
            entry = await anext(newer)
            with pytest.raises(CheckpointError, match="taken over by a newer run"):
                await anext(older)
            # What the older run had published is gone.
            assert await place.files() == [*entry.files]


async def test_a_run_ends_soon_after_another_has_taken_over(
    moto: str, source: ManualSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(f"s3://{BUCKET}/{uuid.uuid4().hex}", s3_options(moto))
    monkeypatch.setattr(lander, "_CLAIM_SECONDS", 0.01)
    async with place.land(source) as older:
        waiting = asyncio.create_task(rest(older))
        async with place.land(source):
            with pytest.raises(CheckpointError, match="taken over by a newer run"):
                await waiting


@pytest.mark.long
async def test_a_landing_whose_runs_somebody_deleted_goes_on(
    place: Place, source: ManualSource
) -> None:
    """Its next run takes a number, and names, that no earlier one had."""
    entries = []
    for data in (b"one", b"two"):
        source.put(data)
        async with place.land(source) as landing:
            entries.append(await anext(landing))
        storage = await asyncio.to_thread(place.storage)
        for run in await asyncio.to_thread(storage.list, "runs"):
            await asyncio.to_thread(storage.delete, f"runs/{run.name}")
    assert await place.read(*entries) == [b"one", b"two"]
    assert entries[1].files[0].endswith("/segments/run-000002-00000001.parquet")


async def test_positions_without_records_are_stored(
    place: Place, source: ManualSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lander, "_IDLE_SECONDS", 0.01)
    async with place.land(source) as landing:
        waiting = asyncio.create_task(rest(landing))
        source.idle()
        await until(lambda: any(isinstance(one, Acknowledged) for one in source.trace))
        landing.stop()
        assert await waiting == []
    async with place.land(source):
        pass
    subscribed = [one.position for one in source.trace if isinstance(one, Subscribed)]
    assert subscribed[-1] != subscribed[0]


async def test_what_is_older_than_it_is_kept_is_deleted(
    place: Place, source: ManualSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.put(b"one")
    async with place.land(source, keep=timedelta(hours=1)) as landing:
        await anext(landing)
        source.put(b"two")
        second = await anext(landing)
        assert len(await place.files()) == 2
    now = Retention.now()
    monkeypatch.setattr(Retention, "now", staticmethod(lambda: now + 3_601_000))
    source.put(b"three")
    async with place.land(source, keep=timedelta(hours=1)) as landing:
        third = await anext(landing)
    assert await place.files() == [*third.files]
    with pytest.raises(CheckpointError, match=r"were deleted, because they are older"):
        await follow(place, 1, after=second.number - 1)
    assert await follow(place, 1, after=third.number - 1) == [third]


@pytest.mark.long
async def test_a_kill_while_too_old_files_are_deleted_is_made_good_by_the_next_run(
    place: Place, source: ManualSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.put(b"one")
    async with place.land(source, keep=timedelta(hours=1)) as landing:
        first = await anext(landing)
        now = Retention.now()
        monkeypatch.setattr(Retention, "now", staticmethod(lambda: now + 3_601_000))
        source.put(b"two")
        with monkeypatch.context() as patch:
            patch.setattr(Retention, "_delete_files", killed_at_files)
            with pytest.raises(KilledError):
                await anext(landing)
    # A follower sees the entry with its files, or a sentence.
    assert (await follow(place, 1))[0].number > first.number
    with pytest.raises(CheckpointError, match=r"were deleted, because they are older"):
        await follow(place, 1, after=first.number - 1)
    async with place.land(source):
        pass
    (second,) = await follow(place, 1)
    assert await place.files() == [*second.files]


async def test_no_entry_stays_between_others_that_are_too_old(
    place: Place, source: ManualSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place.land(source, keep=timedelta(hours=1)) as landing:
        source.put(b"one")
        await anext(landing)
        with monkeypatch.context() as patch:
            patch.setattr(lander, "_IDLE_SECONDS", 0.01)
            waiting = asyncio.create_task(anext(landing))
            source.idle()
            await until(lambda: landing._log.next_number == 3)
        source.put(b"two")
        await waiting
        now = Retention.now()
        monkeypatch.setattr(Retention, "now", staticmethod(lambda: now + 3_601_000))
        source.put(b"three")
        last = await anext(landing)
    found = await asyncio.to_thread(lambda: place.storage().list("batches"))
    assert [file.name for file in found] == [f"{last.number:012}.json"]


async def test_a_follower_that_waits_is_told_that_its_next_entry_was_deleted(
    place: Place, source: ManualSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanout.landing.log.followed._EXPIRY_SECONDS", 0.01)
    source.put(b"one")
    async with place.land(source, keep=timedelta(hours=1)) as landing:
        first = await anext(landing)
        entries = followed(
            place.location, after=first.number - 1, poll=0.01, storage_options=place.options
        )
        assert await anext(entries) == first
        source.put(b"two")
        await anext(landing)
        now = Retention.now()
        monkeypatch.setattr(Retention, "now", staticmethod(lambda: now + 3_601_000))
        source.put(b"three")
        last = await anext(landing)
    sentence = rf"the entries 2 to 2 of .* were deleted, .*, with after={last.number - 1}"
    with pytest.raises(CheckpointError, match=sentence):
        await anext(entries)


async def test_a_follower_reads_every_entry_and_waits_for_the_next(
    place: Place, source: ManualSource
) -> None:
    source.put(b"one")
    async with place.land(source) as landing:
        first = await anext(landing)
        following = asyncio.create_task(follow(place, 3))
        source.put(b"two")
        second = await anext(landing)
        assert await follow(place, 1, after=first.number) == [second]
    source.put(b"three")
    async with place.land(source) as landing:
        third = await anext(landing)
        assert await following == [first, second, third]


@pytest.mark.long
async def test_a_landing_that_was_begun_again_is_not_followed_from_its_former_end(
    place: Place, source: ManualSource
) -> None:
    """Its next entries would be passed by without a word."""
    source.put(b"one")
    async with place.land(source) as landing:
        known = (await anext(landing)).number
    with pytest.raises(
        CheckpointError, match=r"the newest entry of .* is 1, and after=7 was known"
    ):
        await follow(place, 1, after=known + 6)
    source.put(b"two")
    async with place.land(source) as landing:
        await anext(landing)
    assert await place.read(*await follow(place, 1, after=known)) == [b"two"]


async def test_there_is_nothing_to_follow(place: Place) -> None:
    with pytest.raises(OptionError, match=r"there is no landing at .*: start one with"):
        await follow(place, 1)


async def test_a_landing_of_another_source_is_refused(place: Place, source: ManualSource) -> None:
    async with place.land(source):
        pass
    other = ManualSource(identity="manual:two")
    with pytest.raises(CheckpointError, match=r"cannot be continued: .* belong to manual:one"):
        async with place.land(other):
            pass


def write_batch(storage: Storage) -> None:
    entry = BatchEntry(1, "a-query", (), Checkpoint("manual:one", {}))
    storage.create(entry_name(1), encode_entry(entry, run=1))


async def test_the_checkpoint_of_a_query_is_refused(place: Place, source: ManualSource) -> None:
    async with place.land(source):
        pass
    await asyncio.to_thread(lambda: write_batch(place.storage()))
    with pytest.raises(CheckpointError, match="is the checkpoint of the Spark query a-query"):
        async with place.land(source):
            pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_records": 0}, "max_records=0 must be at least 1"),
        ({"max_bytes": 0}, "max_bytes=0 must be at least 1"),
        ({"max_wait": -1.0}, "max_wait=-1.0 must not be negative"),
        ({"keep": timedelta()}, "keep=0:00:00 must be longer"),
        ({"keep_for_readers": timedelta()}, "keep_for_readers=0:00:00 must be longer than nothing"),
        ({"compression": "tar"}, "compression='tar'"),
        ({"storage_options": {"region": "eu"}}, "storage_options can only be given for"),
        ({"group": "orders-app"}, "group cannot be used here: a landing has one writer"),
    ],
)
async def test_an_option_that_makes_no_sense_is_refused(
    tmp_path: Path, source: ManualSource, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        async with land(source, str(tmp_path), **options):
            pass


@pytest.mark.parametrize("location", ["hdfs://name/there", "", "http://there"])
async def test_a_location_that_is_nowhere_is_refused(source: ManualSource, location: str) -> None:
    with pytest.raises(OptionError, match=r"location=.* must be a path, or a URI such as"):
        async with land(source, location):
            pass


@pytest.mark.parametrize(
    ("name", "words"),
    [("l\udce4nd", r"location='.*l\\udce4nd' must be a path in UTF-8"), ("a\0b", "has no NUL")],
)
@pytest.mark.parametrize("scheme", ["", "file://"])
async def test_a_path_that_cannot_be_stored_is_refused_before_it_is_made(
    tmp_path: Path, source: ManualSource, name: str, words: str, scheme: str
) -> None:
    path = f"{tmp_path}/{name}"
    with pytest.raises(OptionError, match=words):
        async with land(source, f"{scheme}{quote(os.fsencode(path)) if scheme else path}"):
            pass
    assert not os.listdir(tmp_path)  # noqa: PTH208 - it is quick


async def test_a_directory_that_is_not_utf_8_is_refused(
    tmp_path: Path, source: ManualSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "l\udce4nd"
    directory.mkdir()
    monkeypatch.chdir(directory)
    with pytest.raises(OptionError, match="must be a path in UTF-8"):
        async with land(source, "orders"):
            pass
    assert not os.listdir(directory)  # noqa: PTH208 - it is quick


@pytest.mark.long
@pytest.mark.parametrize("compression", ["zstd", "none"])
async def test_files_are_in_a_directory_for_each_date(place: Place, compression: str) -> None:
    source = TimedSource()
    options: dict[str, Any] = {"partition_by_date": "time", "compression": compression}
    async with place.land(source, **options) as landing:
        source.put(b"0", b"1")
        one = await anext(landing)
        source.put(b"%d" % (2 * DAY), b"5", b"%d" % (2 * DAY + 1), b"%d" % -1, b"%d" % 10**15)
        several = await anext(landing)
    directories = [file.split("/segments/")[1].split("/")[0] for file in several.files]
    assert directories == [
        "date=1969-12-31",
        "date=1970-01-01",
        "date=1970-01-03",
        "date=9999-12-31",
    ]
    assert [file.split("/segments/")[1] for file in one.files] == [
        "date=1970-01-01/run-000001-00000001.parquet"
    ]
    assert await place.read(several) == [b"-1", b"5", b"172800000", b"172800001", b"%d" % 10**15]
    assert (several.rows, await place.read(one)) == (5, [b"0", b"1"])


@pytest.mark.long
async def test_files_of_any_date_that_a_killed_run_left_are_deleted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = TimedSource()
    source.put(b"0", b"%d" % DAY)
    async with place.land(source, partition_by_date="time") as landing:
        with monkeypatch.context() as patch:
            patch.setattr(EntryLog, "write", killed)
            with pytest.raises(KilledError):
                await anext(landing)
        assert len(await place.walk()) == 2
    async with place.land(source, partition_by_date="time") as landing:
        assert await place.walk() == []
        entry = await anext(landing)
        assert await place.walk() == [*entry.files]


async def test_a_column_without_times_makes_no_dates(place: Place, source: ManualSource) -> None:
    with pytest.raises(OptionError, match="partition_by_date='data' must be a column with times"):
        async with place.land(source, partition_by_date="data"):
            pass


async def test_a_walk_finds_files_in_every_directory(place: Place) -> None:
    storage = await asyncio.to_thread(place.storage)
    for name in ("segments/date=2/b", "segments/date=1/a", "segments/c", "batches/d"):
        await asyncio.to_thread(storage.create, name, b"")
    found = await asyncio.to_thread(storage.walk, "segments")
    assert found == ("segments/c", "segments/date=1/a", "segments/date=2/b")
    assert await asyncio.to_thread(storage.walk, "nowhere") == ()
