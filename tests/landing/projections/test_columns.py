"""What engines read of a table is what was landed: types, nulls, limits, and files they skip."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from fanout.landers.land import land
from fanout.landing.log.columns import LandedColumns
from fanout.landing.projections.delta_statistics import delta_statistics
from fanout.landing.projections.table_projection import NamedFiles
from fanout.landing.segments.partitions import PartitionField
from fanout.landing.storage.opening import open_files
from tests.landing.projections.tables import Delta, Iceberg, Kind, iceberg_catalog
from tests.support.manual_source import SCHEMA
from tests.support.shaped_source import ShapedSource
from tests.support.timed_source import DAY, TimedSource

if TYPE_CHECKING:
    from pathlib import Path

HEADER = [pa.field("key", pa.string(), nullable=False), ("value", pa.binary())]
HEADERS = pa.list_(pa.struct(HEADER))
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "byte": (pa.int8(), [-128, None, 127]),
    "short": (pa.int16(), [-(2**15), None, 2**15 - 1]),
    "whole": (pa.int32(), [-(2**31), None, 2**31 - 1]),
    "long": (pa.int64(), [-(2**63), None, 2**63 - 1]),
    "single": (pa.float32(), [-1.5, None, 1.5]),
    "double": (pa.float64(), [-0.0, None, 1e300]),
    "truth": (pa.bool_(), [False, None, True]),
    "text": (pa.string(), ["", None, "ü" * 100]),
    "raw": (pa.binary(), [b"", None, b"\x00\xff"]),
    "day": (pa.date32(), [date(1, 1, 1), None, date(9999, 12, 31)]),
    "milli": (
        pa.timestamp("ms", "UTC"),
        [datetime(1969, 1, 1, tzinfo=UTC), None, datetime(2026, 1, 2, 3, 4, 5, 999000, UTC)],
    ),
    "micro": (
        pa.timestamp("us", "UTC"),
        [datetime(1, 1, 1, tzinfo=UTC), None, datetime(2026, 1, 2, 3, 4, 5, 123456, UTC)],
    ),
    "local": (
        pa.timestamp("us"),
        [datetime(1969, 1, 1), None, datetime(2026, 1, 2, 3, 4, 5, 123456)],  # noqa: DTZ001
    ),
    "price": (
        pa.decimal128(38, 18),
        [Decimal(f"-{10**19}.{0:018}"), None, Decimal("0.000000000000000001")],
    ),
    "headers": (HEADERS, [[], None, [{"key": "a", "value": None}, {"key": "", "value": b"1"}]]),
    "parts": (
        pa.struct([("at", pa.timestamp("ms", "UTC")), ("n", pa.int32())]),
        [{"at": None, "n": 1}, None, {"at": datetime(2026, 1, 1, tzinfo=UTC), "n": None}],
    ),
    "map": (
        pa.map_(pa.string(), pa.timestamp("ms", "UTC")),
        [[], None, [("a", datetime(2026, 1, 1, tzinfo=UTC)), ("b", None)]],
    ),
}
WIDE = pa.schema([*SCHEMA, *((name, kind) for name, (kind, _) in TYPES.items())])


@pytest.fixture(params=["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    if request.param == "delta":
        return Delta(str(tmp_path / "landing"), None)
    return Iceberg(iceberg_catalog(tmp_path))


async def run(source: Any, kind: Kind, tmp_path: Path, *data: bytes, **options: Any) -> Any:
    """Land an entry of each payload, or none; return what is told of the table."""
    chosen: dict[str, Any] = {"max_wait": 0.0, "tables": [kind.option()]}
    async with land(source, str(tmp_path / "landing"), **chosen | options) as landing:
        for each in data:
            source.put(each)
            await anext(landing)
    return next(iter(landing.statistics().tables), None)


def rows(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: row["sequence"])


def landed(tmp_path: Path) -> list[dict[str, Any]]:
    files = sorted((tmp_path / "landing" / "segments").rglob("run-*.parquet"))
    return rows(pa.concat_tables([pq.read_table(file) for file in files]))


@pytest.mark.parametrize("kind", ["delta", "iceberg"], indirect=True)
async def test_each_type_is_read_as_it_was_landed(kind: Kind, tmp_path: Path) -> None:
    for index in range(3):
        source = ShapedSource(WIDE, **{name: values[index] for name, (_, values) in TYPES.items()})
        source.put(*[b"%d" % number for number in range(index)])  # read already
        told = await run(source, kind, tmp_path, b"%d" % index)
        assert told.failure == ""
    wanted = await asyncio.to_thread(landed, tmp_path)
    assert len(wanted) == 3
    assert rows(await asyncio.to_thread(kind.in_duckdb)) == wanted
    if isinstance(kind, Iceberg):
        wanted[1]["headers"] = []  # pyiceberg reads a null as a list without parts
    assert rows(await asyncio.to_thread(kind.read)) == wanted


async def test_engines_skip_no_file_that_has_what_they_look_for(kind: Kind, tmp_path: Path) -> None:
    for index in range(3):
        source = ShapedSource(WIDE, **{name: values[index] for name, (_, values) in TYPES.items()})
        source.put(*[b"%d" % number for number in range(index)])
        await run(source, kind, tmp_path, b"%d" % index)
    for name, (_, values) in TYPES.items():
        if name in {"headers", "parts", "map"}:
            continue
        for index in (0, 2):
            found = await asyncio.to_thread(kind.where, name, values[index])
            assert found == [index + 1], name


async def test_no_file_with_nan_is_skipped(kind: Kind, tmp_path: Path) -> None:
    """Limits leave NaN out: of a file with it alone there are none."""
    for index, value in enumerate([math.nan, 1.5, None]):
        source = ShapedSource(pa.schema([*SCHEMA, ("double", pa.float64())]), double=value)
        source.put(*[b"%d" % number for number in range(index)])
        await run(source, kind, tmp_path, b"%d" % index)
    assert await asyncio.to_thread(kind.where, "double", 1.5) == [2]
    found = rows(await asyncio.to_thread(kind.in_duckdb))
    assert [str(row["double"]) for row in found] == ["nan", "1.5", "None"]


async def test_a_file_is_skipped_that_lacks_it(kind: Kind, tmp_path: Path) -> None:
    source = ShapedSource(WIDE, **{name: values[0] for name, (_, values) in TYPES.items()})
    await run(source, kind, tmp_path, b"0", b"1", b"2")
    (tmp_path / "landing" / "segments" / "run-000001-00000001.parquet").unlink()
    assert await asyncio.to_thread(kind.where, "sequence", 3) == [3]


@pytest.mark.parametrize("names", [["a,b"], ["a.b", "a b", "a`b", "`", "ü", "a`.`b,c"]])
async def test_columns_of_odd_names_have_statistics_in_delta(
    tmp_path: Path, names: list[str]
) -> None:
    """deltalake writes those of the columns that a property of the table names."""
    schema = pa.schema([*SCHEMA, *((name, pa.int64()) for name in names)])
    kind = Delta(str(tmp_path / "landing"), None)
    source = ShapedSource(schema, **dict.fromkeys(names, 7))
    told = await run(source, kind, tmp_path, b"0", b"1")
    assert told.failure == ""
    await asyncio.to_thread(lambda: kind.append(kind.read()))
    for action in pa.table(kind.open().get_add_actions()).to_pylist():
        assert [action["min"][name] for name in names] == [7] * len(names)
    assert [kind.where(name, 7) for name in names] == [[1, 1, 2, 2]] * len(names)
    assert (await run(source, kind, tmp_path, b"2")).failure == ""


@pytest.mark.parametrize("type_", [pa.timestamp("ns", "UTC"), pa.uint64(), pa.time32("s")])
async def test_a_type_that_a_table_lacks_stops_the_table_alone(
    kind: Kind, tmp_path: Path, type_: pa.DataType
) -> None:
    source = ShapedSource(pa.schema([*SCHEMA, ("odd", type_)]), odd=None)
    told = await run(source, kind, tmp_path, b"0", b"1")
    assert told.stopped
    assert "odd" in told.failure or str(type_) in told.failure or "ns" in told.failure
    assert told.entries_behind == 3
    assert len(landed(tmp_path)) == 2


async def test_a_column_that_the_landing_gets_is_added(kind: Kind, tmp_path: Path) -> None:
    source = ShapedSource(SCHEMA)
    await run(source, kind, tmp_path, b"0")
    wider = ShapedSource(pa.schema([*SCHEMA, ("more", pa.string())]), more="x")
    wider.put(b"0")
    told = await run(wider, kind, tmp_path, b"1")
    assert told.failure == ""
    found = rows(await asyncio.to_thread(kind.read))
    assert [row["more"] for row in found] == [None, "x"]


async def test_a_column_of_another_writer_stays(kind: Kind, tmp_path: Path) -> None:
    source = ShapedSource(SCHEMA)
    await run(source, kind, tmp_path, b"0")
    await asyncio.to_thread(kind.add_column, "theirs")
    told = await run(source, kind, tmp_path, b"1")
    assert told.failure == ""
    assert [row["theirs"] for row in rows(await asyncio.to_thread(kind.read))] == [None, None]


async def test_directories_by_date_are_partitions(kind: Kind, tmp_path: Path) -> None:
    source = TimedSource()
    at = [0, 2 * DAY, 20_000 * DAY]
    async with land(
        source,
        str(tmp_path / "landing"),
        max_wait=0.0,
        partition_by_date="time",
        tables=[kind.option()],
    ) as landing:
        source.put(*[b"%d" % each for each in at])
        await anext(landing)
    assert landing.statistics().tables[0].failure == ""
    found = rows(await asyncio.to_thread(kind.read))
    assert [row["time"].timestamp() * 1000 for row in found] == at
    if isinstance(kind, Delta):
        assert [str(row["date"]) for row in found] == ["1970-01-01", "1970-01-03", "2024-10-04"]
    assert rows(await asyncio.to_thread(kind.in_duckdb)) == found
    gone = "segments/date=1970-01-03/run-000001-00000001.parquet"
    await asyncio.to_thread(remove, kind, tmp_path, gone, "segments/none.parquet")
    left = rows(await asyncio.to_thread(kind.in_duckdb))
    assert left == [found[0], found[2]] == rows(await asyncio.to_thread(kind.read))


def remove(kind: Kind, tmp_path: Path, *names: str) -> None:
    columns = LandedColumns(TimedSource.schema, (PartitionField.by_date("time"),))
    files = NamedFiles(open_files(str(tmp_path / "landing"), None), {}, columns)
    table = kind.option().open(files)
    table.newest()
    table.remove(names)


def statistics_of(table: pa.Table, **options: Any) -> dict[str, Any]:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    text = delta_statistics(pq.read_metadata(pa.BufferReader(sink.getvalue())))
    return json.loads(text, parse_float=Decimal)  # type: ignore[no-any-return]


def test_the_statistics_of_a_file() -> None:
    table = pa.table(
        {name: pa.array(values, kind) for name, (kind, values) in TYPES.items()},
    )
    found = statistics_of(table, row_group_size=1)
    assert found["numRecords"] == 3
    assert found["nullCount"] == dict.fromkeys(found["maxValues"], 1)
    assert found["minValues"] == {
        "byte": -128,
        "short": -(2**15),
        "whole": -(2**31),
        "long": -(2**63),
        "text": "",
        "day": "0001-01-01",
        "milli": "1969-01-01T00:00:00.000Z",
        "micro": "0001-01-01T00:00:00.000Z",
        "local": "1969-01-01T00:00:00.000",
    }
    assert found["maxValues"] == {
        "byte": 127,
        "short": 2**15 - 1,
        "whole": 2**31 - 1,
        "long": 2**63 - 1,
        "text": "ü" * 32 + "\U0010ffff",
        "day": "9999-12-31",
        "milli": "2026-01-02T03:04:05.999Z",
        "micro": "2026-01-02T03:04:05.124Z",
        "local": "2026-01-02T03:04:05.124",
    }


def test_times_that_no_calendar_has_have_no_limits() -> None:
    times = pa.array([-(2**62), 2**62], pa.timestamp("us", "UTC"))
    found = statistics_of(pa.table({"at": times, "none": pa.nulls(2, pa.int32()), "n": [1, 2]}))
    assert found == {"numRecords": 2, "nullCount": {"at": 0, "none": 2, "n": 0}}


async def test_polars_reads_a_delta_table(tmp_path: Path) -> None:
    kind = Delta(str(tmp_path / "landing"), None)
    source = ShapedSource(WIDE, **{name: values[2] for name, (_, values) in TYPES.items()})
    await run(source, kind, tmp_path, b"0", b"1")
    where = f"{kind.root}/segments"
    assert rows(pl.read_delta(where).to_arrow()) == landed(tmp_path)


async def test_polars_reads_an_iceberg_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # it warns of a package otherwise
    kind = Iceberg(iceberg_catalog(tmp_path))
    source = ShapedSource(WIDE, **{name: values[2] for name, (_, values) in TYPES.items()})
    await run(source, kind, tmp_path, b"0", b"1")
    assert rows(pl.scan_iceberg(kind.open()).collect().to_arrow()) == landed(tmp_path)


def where_valid(kind: Delta, column: str) -> list[int]:
    data = kind.open().to_pyarrow_dataset()
    found = data.to_table(filter=pc.field(column).is_valid())
    return sorted(found.column("sequence").to_pylist())


async def test_deltalake_finds_texts_and_times_without_limits(tmp_path: Path) -> None:
    kind = Delta(str(tmp_path / "landing"), None)
    columns = [("text", pa.string()), ("at", pa.timestamp("us", "UTC"))]
    far = pa.scalar(2**62, columns[1][1])
    for number, values in enumerate(({"text": "y" * 5000, "at": None}, {"text": "", "at": far})):
        source = ShapedSource(pa.schema([*SCHEMA, *columns]), **values)
        source.put(*[b"0"] * number)
        await run(source, kind, tmp_path, b"1")
    assert await asyncio.to_thread(kind.where, "text", "y" * 5000) == [1]
    assert await asyncio.to_thread(kind.where, "sequence", 2) == [2]
    assert await asyncio.to_thread(where_valid, kind, "at") == [2]


async def test_deltalake_finds_rows_of_files_that_lack_a_column(tmp_path: Path) -> None:
    kind = Delta(str(tmp_path / "landing"), None)
    await run(ShapedSource(SCHEMA), kind, tmp_path, b"0", tables=())
    wider = ShapedSource(pa.schema([*SCHEMA, ("more", pa.string())]), more="x")
    wider.put(b"0")
    await run(wider, kind, tmp_path, b"1")
    assert await asyncio.to_thread(kind.where, "sequence", 1) == [1]
    assert await asyncio.to_thread(kind.where, "more", "x") == [2]
    data = kind.open().to_pyarrow_dataset()
    assert data.to_table(filter=pc.field("more").is_null()).column("sequence").to_pylist() == [1]


@pytest.mark.parametrize("made", [False, True])
async def test_deltalake_finds_values_of_columns_without_statistics(
    tmp_path: Path, *, made: bool
) -> None:
    kind = Delta(str(tmp_path / "landing"), None)
    for columns in (
        pa.schema([("real", pa.float64())]),
        SCHEMA.append(pa.field("real", pa.float64())),
    ):
        source = ShapedSource(columns, real=2.5)
        shutil.rmtree(kind.root, ignore_errors=True)
        if made:
            await run(source, kind, tmp_path, tables=())
            deltalake.DeltaTable.create(f"{kind.root}/segments", columns)
        await run(source, kind, tmp_path, b"0")
        data = kind.open().to_pyarrow_dataset()
        assert data.to_table(filter=pc.field("real") == 2.5).num_rows == 1


async def test_a_property_that_promises_statistics_stops_a_delta_table(tmp_path: Path) -> None:
    kind = Delta(str(tmp_path / "landing"), None)
    await run(ShapedSource(SCHEMA), kind, tmp_path, tables=())
    described = {"delta.dataSkippingStatsColumns": "sequence,data"}
    deltalake.DeltaTable.create(f"{kind.root}/segments", SCHEMA, configuration=described)
    told = await run(ShapedSource(SCHEMA), kind, tmp_path, b"0")
    assert told.stopped
    assert "names data, of which files have no statistics" in told.failure
