"""What engines read of a landing in directories by values is what was landed."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyiceberg.catalog
import pytest
from deltalake import QueryBuilder
from pyiceberg.transforms import DayTransform, IdentityTransform

from fanout.landers.land import land
from fanout.landing.log.columns import LandedColumns
from fanout.landing.projections.table_projection import NamedFiles, NewestEntry
from fanout.landing.segments.partitions import PartitionField
from fanout.landing.storage.opening import open_files, open_storage
from fanout.testing.s3_clients import BUCKET
from tests.landing.projections.tables import Delta, Iceberg, Kind, iceberg_catalog
from tests.support.manual_source import SCHEMA
from tests.support.s3 import s3_options
from tests.support.shaped_source import ShapedSource

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = [
    "DE", "a/b", "50%", "a%2Fb", "x=y", "ü 日本 😀", " sp ace ", "q\"'`", "007", "#?&+;",
    "~|<>@$,!", "{[^]}\\*:", "a\tb\n\x00", ".", "null", "é", "e\u0301", "x" * 240, None, "true",
    "2026-01-01",
]  # fmt: skip
AT = [
    None,
    datetime(2026, 11, 27, 23, 59, 59, 999000, UTC),
    datetime(2026, 11, 28, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999000, UTC),
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, tzinfo=UTC),
]
NUMBERS = [0, -1, None, 2**63 - 1, -(2**63)]
DAYS = [date(2026, 2, 28), None, date(1, 1, 1), date(9999, 12, 31)]
TRUTHS = [True, None, False]


def value(values: list[Any]) -> Any:
    return lambda data: values[int(data) % len(values)]


VALUES: dict[str, tuple[pa.DataType, list[Any], str]] = {
    "text": (pa.string(), TEXTS, "text"),
    "number": (pa.int64(), NUMBERS, "number"),
    "day": (pa.date32(), DAYS, "day"),
    "truth": (pa.bool_(), TRUTHS, "truth"),
    "milli": (pa.timestamp("ms", "UTC"), AT, "day(milli)"),
    "micro": (pa.timestamp("us"), [at and at.replace(tzinfo=None) for at in AT], "hour(micro)"),
}
WIDE = pa.schema([*SCHEMA, *((name, kind) for name, (kind, _, _) in VALUES.items())])


@pytest.fixture(params=["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    if request.param == "delta":
        return Delta(str(tmp_path / "landing"), None)
    return Iceberg(iceberg_catalog(tmp_path))


def source() -> ShapedSource:
    return ShapedSource(WIDE, **{name: value(values) for name, (_, values, _) in VALUES.items()})


async def run(kind: Kind, location: str, count: int, *by: str, **options: Any) -> list[Any]:
    """Land an entry with so many records by levels of directories; return its records."""
    given = source()
    given.put(*(b"%d" % number for number in range(count)))
    chosen: dict[str, Any] = {"max_wait": 0.0, "partition_by": by} | options
    chosen.setdefault("tables", [kind.option()])
    async with land(given, location, **chosen) as landing:
        entry = await anext(landing)
    assert [table.failure for table in landing.statistics().tables if table.failure] == []
    storage = await asyncio.to_thread(open_storage, location, options.get("storage_options"))
    tables = []
    for file in entry.files:
        name = file.removeprefix(f"{location}/")
        data = await asyncio.to_thread(storage.read, name, limit=1 << 30)
        tables.append(pq.read_table(pa.BufferReader(data)))
    return rows(pa.concat_tables(tables))


def rows(table: pa.Table) -> list[dict[str, Any]]:
    found = table.select(WIDE.names).to_pylist()
    return sorted(found, key=lambda row: row["sequence"])


@pytest.mark.parametrize(
    "name",
    [one if one == "text" else pytest.param(one, marks=pytest.mark.long) for one in VALUES],
)
async def test_each_value_is_read_as_it_was_landed(kind: Kind, tmp_path: Path, name: str) -> None:
    _, values, by = VALUES[name]
    wanted = await run(kind, str(tmp_path / "landing"), 2 * len(values), by)
    assert [row[name] for row in wanted] == 2 * values
    assert rows(await asyncio.to_thread(kind.read)) == wanted
    assert rows(await asyncio.to_thread(kind.in_duckdb)) == wanted
    for index, one in enumerate(values):
        if one is not None:
            found = await asyncio.to_thread(kind.where, name, one)
            assert found == [index + 1, index + 1 + len(values)], one


@pytest.mark.long
async def test_polars_and_datafusion_read_each_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    delta, iceberg = Delta(str(tmp_path / "landing"), None), Iceberg(iceberg_catalog(tmp_path))
    wanted = await run(
        delta, str(tmp_path / "landing"), 30, "text", "hour(milli)",
        tables=[delta.option(), iceberg.option()],
    )  # fmt: skip
    assert rows(pl.read_delta(f"{delta.root}/segments").to_arrow()) == wanted
    assert rows(pl.scan_iceberg(iceberg.open()).collect().to_arrow()) == wanted
    query = QueryBuilder().register("t", delta.open()).execute("SELECT * FROM t")
    assert rows(pa.table(query)) == wanted


async def test_readers_of_directories_read_each_text(tmp_path: Path) -> None:
    """The files have all columns, so a reader that leaves the directories alone has each value."""
    kind = Delta(str(tmp_path / "landing"), None)
    wanted = await run(kind, str(tmp_path / "landing"), 30, "text", "day(milli)")
    files = f"{kind.root}/segments/*/*/*.parquet"
    query = f"FROM read_parquet('{files}', hive_partitioning = %s)"
    assert rows(duckdb.sql(query % "false").to_arrow_table()) == wanted
    assert rows(pl.read_parquet(files, hive_partitioning=False).to_arrow()) == wanted
    found = duckdb.sql(f"{query % 'true'} WHERE milli_day = DATE '2026-11-27'")
    days = [row["sequence"] for row in wanted if row["milli"] == AT[1]]
    assert sorted(row[1] for row in found.fetchall()) == days


async def test_the_partitions_of_a_delta_table(tmp_path: Path) -> None:
    kind = Delta(str(tmp_path / "landing"), None)
    await run(kind, str(tmp_path / "landing"), 21, "text", "day(milli)", "hour(milli)")
    table = kind.open()
    assert table.metadata().partition_columns == ["text", "milli_day", "milli_hour"]
    types = {field.name: str(field.type) for field in table.schema().fields}
    assert (types["milli_day"], types["milli_hour"]) == (
        'PrimitiveType("date")',
        'PrimitiveType("string")',
    )
    found = table.to_pyarrow_table(filters=[("text", "=", "a/b")]).to_pylist()
    assert [(row["milli_day"], row["milli_hour"]) for row in found] == [
        (date(2026, 11, 27), "2026-11-27-23")
    ]
    kind.compact()
    deltalake.DeltaTable(f"{kind.root}/segments").delete("text = '007'")
    left = sorted(row["sequence"] for row in kind.read().to_pylist())
    assert left == [number for number in range(1, 22) if TEXTS[number - 1] != "007"]


async def test_the_partitions_of_an_iceberg_table(tmp_path: Path) -> None:
    kind = Iceberg(iceberg_catalog(tmp_path))
    await run(kind, str(tmp_path / "landing"), 21, "text", "day(milli)", "hour(milli)", "truth")
    table = kind.open()
    assert [(one.name, str(one.transform)) for one in table.spec().fields] == [
        ("text", "identity"),
        ("milli_hour", "hour"),  # which tells the day
        ("truth", "identity"),
    ]
    found = {
        (one["partition"]["text"], one["partition"]["truth"])
        for one in table.inspect.files().to_pylist()
    }
    assert found == {(text, TRUTHS[number % 3]) for number, text in enumerate(TEXTS)}


@pytest.mark.long
async def test_an_hour_and_a_day_of_an_iceberg_table_and_others(tmp_path: Path) -> None:
    kind = Iceberg(iceberg_catalog(tmp_path))
    catalog = pyiceberg.catalog.load_catalog("lab", **kind.properties)
    catalog.create_namespace("db")
    table = catalog.create_table("db.orders", WIDE)
    with table.update_spec() as update:
        update.add_field("text", IdentityTransform(), "any")
        update.add_field("milli", DayTransform(), "name")
    await run(kind, str(tmp_path / "landing"), 21, "text", "day(milli)")
    assert len(await asyncio.to_thread(kind.read)) == 21


@pytest.mark.long
@pytest.mark.parametrize(
    ("by", "properties", "words"),
    [
        (["day(milli)"], {}, "it must be partitioned by day(milli)"),
        (["text", "day(milli)"], {}, "it must be partitioned by text and day(milli)"),
        ([], {}, "it must be partitioned by nothing"),
        (
            ["text"],
            {"write.metadata.metrics.column.text": "counts"},
            "its property write.metadata.metrics.column.text lets it have no limits",
        ),
    ],
)
async def test_an_iceberg_table_with_other_partitions_stops(
    tmp_path: Path, by: list[str], properties: dict[str, str], words: str
) -> None:
    kind = Iceberg(iceberg_catalog(tmp_path))
    catalog = pyiceberg.catalog.load_catalog("lab", **kind.properties)
    catalog.create_namespace("db")
    table = catalog.create_table("db.orders", WIDE, properties=properties)
    with table.update_spec() as update:
        update.add_field("text", IdentityTransform(), "text")
    options: dict[str, Any] = {"partition_by": by, "tables": [kind.option()]}
    async with land(source(), str(tmp_path / "landing"), **options) as landing:
        (told,) = landing.statistics().tables
    assert told.stopped
    assert words in told.failure


@pytest.mark.long
def test_of_two_runs_that_make_an_iceberg_table_one_succeeds(tmp_path: Path) -> None:
    kind = Iceberg(iceberg_catalog(tmp_path))
    asyncio.run(run(kind, str(tmp_path / "landing"), 1, "text", tables=[]))
    columns = LandedColumns(WIDE, (PartitionField("text", "text"),))
    files = NamedFiles(open_files(str(tmp_path / "landing"), None), {}, columns)
    one, other = kind.option().open(files), kind.option().open(files)
    assert (one._load(), other._load()) == (None, None)
    one.newest()
    assert other._create().metadata.table_uuid == kind.open().metadata.table_uuid
    assert other.newest() == NewestEntry()


@pytest.mark.long
async def test_a_delta_table_with_other_partitions_stops(tmp_path: Path) -> None:
    kind = Delta(str(tmp_path / "landing"), None)
    deltalake.DeltaTable.create(f"{kind.root}/segments", WIDE, partition_by=["number"])
    options: dict[str, Any] = {"partition_by": "text", "tables": [kind.option()]}
    async with land(source(), str(tmp_path / "landing"), **options) as landing:
        (told,) = landing.statistics().tables
    assert told.stopped
    assert "it must be partitioned by ['text']" in told.failure


@pytest.mark.long
async def test_files_of_partitions_leave_the_tables(kind: Kind, tmp_path: Path) -> None:
    await run(kind, str(tmp_path / "landing"), 42, "text", "day(milli)")
    inside = tmp_path / "landing" / "segments"
    gone = [path for path in inside.rglob("run-*.parquet") if "text=a%252Fb" in str(path)]
    assert gone
    names = [str(path.relative_to(tmp_path / "landing")) for path in gone]
    await asyncio.to_thread(remove, kind, tmp_path, names)
    left = [row["sequence"] for row in rows(await asyncio.to_thread(kind.read))]
    assert left == [number for number in range(1, 43) if TEXTS[(number - 1) % 21] != "a%2Fb"]


def remove(kind: Kind, tmp_path: Path, names: list[str]) -> None:
    fields = (PartitionField("text", "text"), PartitionField("milli_day", "milli", "day"))
    columns = LandedColumns(WIDE, fields)
    table = kind.option().open(NamedFiles(open_files(str(tmp_path / "landing"), None), {}, columns))
    table.newest()
    table.remove(names)


@pytest.mark.long
async def test_partitions_in_a_bucket(tmp_path: Path, moto: str) -> None:
    location, options = f"s3://{BUCKET}/{uuid.uuid4().hex}", s3_options(moto)
    kind = Delta(location, options)
    wanted = await run(kind, location, 42, "text", "hour(milli)", storage_options=options)
    assert [row["text"] for row in wanted] == 2 * TEXTS
    assert rows(await asyncio.to_thread(kind.read)) == wanted
    catalog = iceberg_catalog(tmp_path, warehouse=f"{location}-warehouse")
    given = {
        "s3.endpoint": moto,
        "s3.region": options["region"],
        "s3.access-key-id": options["access_key_id"],
        "s3.secret-access-key": options["secret_access_key"],
    }
    other = Iceberg(catalog, given)
    async with land(
        source(), location, partition_by=["text", "hour(milli)"], storage_options=options,
        tables=[other.option()],
    ) as landing:  # fmt: skip
        assert landing.statistics().tables[0].failure == ""
    assert rows(await asyncio.to_thread(other.read)) == wanted


@pytest.mark.long
async def test_a_column_that_a_partitioned_landing_gets_is_added(
    kind: Kind, tmp_path: Path
) -> None:
    wanted = await run(kind, str(tmp_path / "landing"), 5, "text")
    more = pa.schema([*WIDE, ("more", pa.string())])
    given = source()
    wider = ShapedSource(more, more="x", **given._values)
    wider.put(*(b"%d" % number for number in range(6)))
    options: dict[str, Any] = {"max_wait": 0.0, "partition_by": "text", "tables": [kind.option()]}
    async with land(wider, str(tmp_path / "landing"), **options) as landing:
        await anext(landing)
    assert landing.statistics().tables[0].failure == ""
    table = await asyncio.to_thread(kind.read)
    assert rows(table)[:5] == wanted
    assert sorted(table.column("more").to_pylist(), key=str) == [None] * 5 + ["x"]


@pytest.mark.long
async def test_landings_by_date_make_an_iceberg_table_without_partitions(tmp_path: Path) -> None:
    kind = Iceberg(iceberg_catalog(tmp_path))
    given = source()
    given.put(b"0", b"1")
    options: dict[str, Any] = {"partition_by_date": "milli", "tables": [kind.option()]}
    async with land(given, str(tmp_path / "landing"), max_wait=0.0, **options) as landing:
        await anext(landing)
    assert kind.open().spec().fields == ()
    assert len(await asyncio.to_thread(kind.read)) == 2
    assert (tmp_path / "landing/segments/date=__HIVE_DEFAULT_PARTITION__").is_dir()
