"""A landing whose runs have other columns, or other directories."""

from __future__ import annotations

import asyncio
import re
import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fanout.errors import CheckpointError, FanOutError, OptionError
from fanout.landers.land import land
from fanout.landing.log.columns import IDENTITY, landed_schema
from fanout.landing.log.followed import followed
from fanout.landing.storage.local_storage import LocalStorage
from tests.support.manual_source import SCHEMA
from tests.support.shaped_source import ShapedSource

if TYPE_CHECKING:
    from pathlib import Path

TIME = pa.timestamp("us", "UTC")
TIMED = pa.schema([*SCHEMA, ("time", TIME), ("seen", TIME)])
TYPED = pa.schema([SCHEMA.field("shard"), SCHEMA.field("sequence"), ("amount", pa.int64())])
THEN = datetime(2026, 11, 22, tzinfo=UTC)
NO_OPTIONS: dict[str, Any] = {}


class Place:
    """A landing on the disk, which runs fill one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.storage = LocalStorage(path)
        self._records = 0

    def run(
        self, schema: pa.Schema, count: int = 2, identity: str = "manual:one", **options: Any
    ) -> None:
        """Land some more records with these columns."""
        source = ShapedSource(schema, time=THEN, seen=THEN, amount=7, note="new")
        source.identity = identity
        source.put(*[b"1"] * (self._records + count))
        asyncio.run(self._land(source, {"max_wait": 0.0, "available_now": True} | options))
        self._records += count

    async def _land(self, source: ShapedSource, options: dict[str, Any]) -> None:
        async with land(source, str(self.path), **options) as landing:
            async for _ in landing:
                pass

    def read(self, entries: int) -> list[int]:
        """Return the numbers of the records by the entries."""
        files = asyncio.run(self._follow(entries))
        return [n for file in files for n in pq.read_table(file).column("sequence").to_pylist()]

    async def _follow(self, entries: int) -> list[str]:
        found: list[str] = []
        async with asyncio.timeout(20):
            async for entry in followed(str(self.path), poll=0.01):
                found += entry.files
                entries -= 1
                if not entries:
                    break
        return found

    def names(self) -> set[str]:
        return {str(file.relative_to(self.path)) for file in self.path.rglob("*") if file.is_file()}

    def age(self) -> None:
        """Leave what a version wrote that stored no columns."""
        shutil.rmtree(self.path / "columns")
        (self.path / IDENTITY).unlink()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "landing")


REFUSED = {
    "dates after none": (
        (TIMED, {}),
        (TIMED, {"partition_by_date": "time"}),
        r"partition_by_date='time' must be left out: .* has all files in one directory",
    ),
    "none after dates": (
        (TIMED, {"partition_by_date": "time"}),
        (TIMED, {}),
        "partition_by_date must be 'time': .* has files in directories by date",
    ),
    "dates of another column": (
        (TIMED, {"partition_by_date": "time"}),
        (TIMED, {"partition_by_date": "seen"}),
        "partition_by_date='seen' must be 'time': .* by the date of that column",
    ),
    "raw after typed": (
        (TYPED, {}),
        (SCHEMA, {}),
        "the column amount of type int64, and this source does not have it",
    ),
    "another type": (
        (TYPED, {}),
        (TYPED.set(2, pa.field("amount", pa.string())), {}),
        "the column amount of type int64, and this source has string",
    ),
    "a type inside another": (
        (pa.schema([*SCHEMA, ("seen", pa.struct([("a", pa.int32())]))]), {}),
        (pa.schema([*SCHEMA, ("seen", pa.struct([("a", pa.int64())]))]), {}),
        "the column seen of type struct<a: int32>, and this source has struct<a: int64>",
    ),
    "a new column without nulls": (
        (SCHEMA, {}),
        (pa.schema([*SCHEMA, pa.field("amount", pa.int64(), nullable=False)]), {}),
        "the column amount is new and never null",
    ),
    "a new column whose name differs in case alone": (
        (TYPED, {}),
        (pa.schema([*TYPED, ("AMOUNT", pa.int64())]), {}),
        "the column AMOUNT is new, and Spark takes its name for that of amount",
    ),
    "nulls after none": (
        (pa.schema([*SCHEMA, pa.field("amount", pa.int64(), nullable=False)]), {}),
        (pa.schema([*SCHEMA, ("amount", pa.int64())]), {}),
        "the column amount of its records is never null, and this source says that it may be",
    ),
}


@pytest.mark.parametrize(("first", "second", "words"), REFUSED.values(), ids=REFUSED)
def test_a_run_that_would_mix_a_landing_is_refused_before_it_writes(
    place: Place, first: Any, second: Any, words: str
) -> None:
    place.run(first[0], 0, **first[1])
    before = place.names()
    with pytest.raises(FanOutError, match=words) as caught:
        place.run(second[0], 1, **second[1])
    assert isinstance(caught.value, OptionError if second[1] or first[1] else CheckpointError)
    assert {name for name in place.names() - before if not name.startswith("runs/")} == set()


@pytest.mark.parametrize("options", [{}, {"partition_by_date": "time"}])
def test_the_same_run_again_stores_its_columns_once(place: Place, options: Any) -> None:
    for _ in range(3):
        place.run(TIMED, **options)
    assert [one.name for one in place.storage.list("columns")] == ["000000000000.json"]
    assert place.read(3) == [1, 2, 3, 4, 5, 6]


def test_columns_that_may_be_null_are_added(place: Place) -> None:
    place.run(SCHEMA)
    more = pa.schema([("note", pa.string()), *SCHEMA, ("amount", pa.int64())])
    place.run(more)
    place.run(more)
    assert landed_schema(place.storage).names == [*SCHEMA.names, "note", "amount"]
    assert len(place.storage.list("columns")) == 2
    with pytest.raises(CheckpointError, match="the column note of type string"):
        place.run(SCHEMA)
    assert place.read(3) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("identity", [False, True])
def test_a_landing_of_a_version_that_stored_no_columns_goes_on(
    place: Place, caplog: pytest.LogCaptureFixture, *, identity: bool
) -> None:
    """What its newest file has is compared, and stored."""
    place.run(TIMED, partition_by_date="time")
    kept = (place.path / IDENTITY).read_bytes()
    place.run(TIMED, 0, partition_by_date="time")
    place.age()
    if identity:
        (place.path / IDENTITY).write_bytes(kept)
    for schema, options in ((TIMED, NO_OPTIONS), (TYPED, {"partition_by_date": "time"})):
        with pytest.raises(FanOutError):
            place.run(schema, **options)
    place.run(TIMED, partition_by_date="time")
    assert landed_schema(place.storage) == TIMED
    assert place.read(2) == [1, 2, 3, 4]
    assert not caplog.records


@pytest.mark.parametrize("identity", [False, True])
def test_types_that_parquet_lacks_are_those_of_before(
    place: Place, caplog: pytest.LogCaptureFixture, *, identity: bool
) -> None:
    """Whole seconds are milliseconds in a file, whose columns do not tell them apart."""
    schema = pa.schema([*SCHEMA, ("seen", pa.timestamp("s", "UTC"))])
    place.run(schema)
    kept = (place.path / IDENTITY).read_bytes()
    place.age()
    if identity:
        (place.path / IDENTITY).write_bytes(kept)
    place.run(schema)
    assert landed_schema(place.storage) == schema
    assert not caplog.records
    with pytest.raises(CheckpointError, match="the column seen of type timestamp"):
        place.run(TIMED)


@pytest.mark.parametrize(
    "kind",
    [
        pa.struct([]),
        pa.list_(pa.struct([])),
        pa.month_day_nano_interval(),
        pa.decimal128(5, -2),
    ],
    ids=str,
)
def test_types_that_parquet_cannot_keep_are_refused_before_anything_is_written(
    place: Place, kind: pa.DataType
) -> None:
    with pytest.raises(OptionError, match=r"the column 'odd' is .*, which Parquet cannot keep"):
        place.run(pa.schema([*SCHEMA, ("odd", kind)]))
    assert not list(place.path.glob("**/*.parquet"))
    place.run(SCHEMA)


def test_a_landing_without_files_has_the_columns_of_the_next_run(place: Place) -> None:
    place.run(SCHEMA, 0)
    place.age()
    place.run(TYPED)
    assert landed_schema(place.storage) == TYPED


def test_a_landing_whose_files_somebody_deleted_goes_on(place: Place) -> None:
    place.run(SCHEMA)
    place.age()
    shutil.rmtree(place.path / "segments")
    place.run(TYPED)
    assert landed_schema(place.storage) == TYPED


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ((TIMED, {"partition_by_date": "time"}), (TIMED, {}), "files in and out of directories"),
        ((SCHEMA, {}), (TYPED, {}), "records with different columns"),
    ],
)
def test_a_landing_that_is_mixed_already_goes_on_with_a_warning(
    place: Place, caplog: pytest.LogCaptureFixture, first: Any, second: Any, words: str
) -> None:
    """It goes on as its newest run; a version that compared nothing mixed it."""
    place.run(first[0], **first[1])
    identity = (place.path / IDENTITY).read_bytes()
    place.age()
    hidden = place.path / "segments", place.path / "hidden"
    hidden[0].rename(hidden[1])  # this version refuses to mix what it sees
    place.run(second[0], **second[1])
    shutil.copytree(hidden[1], hidden[0], dirs_exist_ok=True, ignore=lambda *_: ["_spark_metadata"])
    place.age()
    (place.path / IDENTITY).write_bytes(identity)
    with caplog.at_level("WARNING", "fanout.landing.log.columns"):
        place.run(second[0], **second[1])
        place.run(second[0], **second[1])
    (record,) = caplog.records
    assert words in record.getMessage()
    assert place.read(4) == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("name", ["date", "Date"])
def test_a_column_of_the_name_of_the_directories_is_refused(place: Place, name: str) -> None:
    """Spark shows the date of the directory in its place."""
    schema = pa.schema([*SCHEMA, ("time", TIME), (name, pa.string())])
    with pytest.raises(OptionError, match=f"partition_by_date='time' must not .* column '{name}'"):
        place.run(schema, partition_by_date="time")


def test_another_source_adds_no_columns(place: Place) -> None:
    place.run(SCHEMA)
    with pytest.raises(CheckpointError, match=r"cannot be continued: .* manual:other"):
        place.run(TYPED.insert(0, SCHEMA.field("data")), identity="manual:other")
    assert landed_schema(place.storage) == SCHEMA


@pytest.mark.parametrize("content", ["", "{", '{"version":1}', "canary"])
def test_columns_that_are_damaged_are_refused(place: Place, content: str) -> None:
    place.run(SCHEMA)
    stored = place.path / "columns" / "000000000000.json"
    whole = stored.read_text()
    for damaged in (content, re.sub(r'"schema":"[^"]*"', f'"schema":"{content}"', whole)):
        stored.write_text(damaged)
        with pytest.raises(CheckpointError, match=r"columns/000000000000.json in .* is damaged"):
            place.run(SCHEMA)
        with pytest.raises(CheckpointError, match="is damaged"):
            landed_schema(place.storage)


def test_columns_of_a_newer_version_are_refused(place: Place) -> None:
    place.run(SCHEMA)
    stored = place.path / "columns" / "000000000000.json"
    stored.write_text(stored.read_text().replace('"version":1', '"version":2'))
    with pytest.raises(CheckpointError, match="has format version 2, which is newer"):
        place.run(SCHEMA)
