"""Tables that files of a landing do not fit stop with the reason; the landing goes on."""

# ruff: noqa: ASYNC240 - the files are small, and nothing else runs

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pyiceberg.catalog
import pytest

from fanout.errors import CheckpointError
from fanout.landers.land import land
from fanout.landing.log.columns import LandedColumns
from fanout.landing.projections.delta import _Delta
from fanout.landing.projections.table_projection import NamedFiles
from fanout.landing.storage.opening import open_files
from tests.landing.projections.tables import Delta, Iceberg, Lab, iceberg_catalog, row
from tests.support.manual_source import SCHEMA
from tests.support.shaped_source import ShapedSource
from tests.support.timed_source import TimedSource

if TYPE_CHECKING:
    from fanout.core.statistics import TableStatistics


def delta(tmp_path: Path, name: str = "landing") -> Lab:
    location = str(tmp_path / name)
    return Lab(location, Delta(location, None), None)


def iceberg(tmp_path: Path, name: str = "landing") -> Lab:
    return Lab(str(tmp_path / name), Iceberg(iceberg_catalog(tmp_path)), None)


async def refused(lab: Lab) -> str:
    told: TableStatistics = await lab.land(1)
    assert told.stopped
    return told.failure


NOT_NULL = [
    pa.field("sequence", pa.int64(), nullable=False),
    pa.field("theirs", pa.string(), nullable=False),
]


@pytest.mark.parametrize("field", NOT_NULL, ids=["may be null", "lacks"])
async def test_columns_of_delta_that_are_not_null(tmp_path: Path, field: pa.Field) -> None:
    lab = delta(tmp_path)
    await lab.land(tables=())
    deltalake.DeltaTable.create(f"{lab.location}/segments", pa.schema([field]))
    assert f"its column {field.name} is NOT NULL" in await refused(lab)


@pytest.mark.parametrize("rule", ["delta.invariants", "delta.generationExpression"])
async def test_columns_of_delta_with_rules(tmp_path: Path, rule: str) -> None:
    lab = delta(tmp_path)
    await lab.land(1)
    (log,) = Path(lab.location, "segments", "_delta_log").glob("*0.json")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "metaData" in line:
            schema = json.loads(line["metaData"]["schemaString"])
            schema["fields"][0]["metadata"] = {rule: "{}"}
            line["metaData"]["schemaString"] = json.dumps(schema)
    log.write_text("\n".join(map(json.dumps, lines)))
    assert rule in await refused(lab)


@pytest.mark.parametrize("name", ["a b", "ü", "h#x", "q?x", "100%", "p%q"])
async def test_locations_that_delta_takes(tmp_path: Path, name: str) -> None:
    lab = delta(tmp_path, name)
    told = await lab.land(2)
    assert told.failure == ""
    assert [path.name for path in tmp_path.iterdir()] == [name]
    table = deltalake.DeltaTable(Path(lab.location, "segments").as_uri())
    assert table.to_pyarrow_table().num_rows == 2


async def test_locations_that_tables_cannot_name(tmp_path: Path) -> None:
    assert "the location" in await refused(delta(tmp_path, "p%20q"))
    assert [path.name for path in tmp_path.iterdir()] == ["p%20q"]
    for name in ("h#x", "q?x"):
        assert "the location" in await refused(iceberg(tmp_path, name))


async def test_a_file_outside_of_the_directories_by_date(tmp_path: Path) -> None:
    lab = delta(tmp_path)
    source: Any = TimedSource()

    async def run(*tables: Any) -> Any:
        options: dict[str, Any] = {"partition_by_date": "time", "tables": tables}
        async with land(source, lab.location, max_wait=0.0, **options) as landing:
            source.put(b"0")
            await anext(landing)
        return landing.statistics().tables

    await run()
    entry, content, name = first_entry(lab)
    flat = f"segments/{name.rpartition('/')[2]}"
    Path(lab.location, name).rename(Path(lab.location, flat))
    content["segments"][0]["name"] = flat
    entry.write_text(json.dumps(content))
    (told,) = await run(lab.kind.option())
    assert told.stopped
    assert "is in no directory by date" in told.failure


async def test_a_file_whose_column_has_another_type(tmp_path: Path) -> None:
    lab = delta(tmp_path)
    await lab.land(1, tables=())
    entry, content, name = first_entry(lab)
    path = Path(lab.location, name)
    table = await asyncio.to_thread(pq.read_table, path)
    pq.write_table(table.set_column(1, "sequence", pa.array(["one"])), path)
    content["segments"][0]["size"] = path.stat().st_size
    entry.write_text(json.dumps(content))
    assert "its column sequence is" in await refused(lab)


def first_entry(lab: Lab) -> tuple[Path, Any, str]:
    entry = sorted(Path(lab.location, "batches").glob("*"))[1]
    content = json.loads(entry.read_text())
    return entry, content, content["segments"][0]["name"]


async def test_a_table_of_iceberg_with_partitions(tmp_path: Path) -> None:
    lab = iceberg(tmp_path)
    catalog = pyiceberg.catalog.load_catalog("lab", **iceberg_catalog(tmp_path))
    catalog.create_namespace("db")
    table = catalog.create_table("db.orders", SCHEMA)
    with table.update_spec() as update:
        update.add_identity("shard")
    table.append(row(1))
    assert await refused(lab) == "it must be partitioned by nothing"


@pytest.mark.parametrize("make", [delta, iceberg])
async def test_a_file_that_an_engine_has_deleted(tmp_path: Path, make: Any) -> None:
    lab = make(tmp_path)
    await lab.land(1, tables=())
    path = Path(lab.location, first_entry(lab)[2])
    path.rename(tmp_path / "kept")
    assert (await refused(lab)).startswith("an engine has deleted")
    (tmp_path / "kept").rename(path)
    told = await lab.land(1)
    assert (told.entries_behind, told.failure) == (0, "")
    await lab.check()


def shaped(lab: Lab, name: str, kind: pa.DataType) -> None:
    source = ShapedSource(pa.schema([*SCHEMA, (name, kind)]), **{name: None})
    lab.source = source


def make_iceberg(tmp_path: Path, schema: pa.Schema) -> None:
    catalog = pyiceberg.catalog.load_catalog("lab", **iceberg_catalog(tmp_path))
    catalog.create_namespace("db")
    catalog.create_table("db.orders", schema)


async def test_times_of_a_zone_in_iceberg(tmp_path: Path) -> None:
    lab = iceberg(tmp_path)
    shaped(lab, "at", pa.timestamp("us", "Europe/Berlin"))
    assert "the column at has the type" in await refused(lab)
    catalog = pyiceberg.catalog.load_catalog("lab", **iceberg_catalog(tmp_path))
    assert not catalog.namespace_exists("db")


async def test_columns_of_iceberg_of_another_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = iceberg(tmp_path)
    make_iceberg(tmp_path, SCHEMA.set(1, pa.field("sequence", pa.string())))
    assert await refused(lab) == "its column sequence is string, and that of the landing long"
    assert capsys.readouterr().out == ""


async def test_columns_of_iceberg_that_are_required(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = iceberg(tmp_path)
    make_iceberg(tmp_path, SCHEMA.set(1, NOT_NULL[0]))
    assert "its column sequence is required" in await refused(lab)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("make", [delta, iceberg])
async def test_names_that_differ_by_case(tmp_path: Path, make: Any) -> None:
    lab = make(tmp_path)
    await lab.land(1)
    await asyncio.to_thread(lab.kind.add_column, "x")
    lab.source = ShapedSource(pa.schema([*SCHEMA, ("X", pa.string())]), X="v")
    lab.source.put(b"0")
    assert "its columns x and X differ by case alone" in await refused(lab)


async def test_a_column_of_delta_that_was_dropped_meanwhile(tmp_path: Path) -> None:
    lab = delta(tmp_path)
    async with land(lab.source, lab.location, max_wait=0.0, tables=[lab.kind.option()]) as landing:
        lab.source.put(b"0")
        await anext(landing)
        rows = lab.kind.read().drop_columns(["data"])
        where = f"{lab.location}/segments"
        deltalake.write_deltalake(where, rows, mode="overwrite", schema_mode="overwrite")
        lab.source.put(b"1")
        await anext(landing)
        (told,) = landing.statistics().tables
    assert (told.stopped, told.failure) == (True, "its column data was dropped")


def test_a_delta_table_to_which_rows_are_only_appended_keeps_its_files(tmp_path: Path) -> None:
    lab = delta(tmp_path)
    asyncio.run(lab.land(1))
    table = deltalake.DeltaTable(f"{lab.location}/segments")
    table.alter.set_table_properties({"delta.appendOnly": "true"})
    files = open_files(lab.location, None)
    opened = lab.kind.option().open(NamedFiles(files, {}, LandedColumns(SCHEMA)))
    opened.newest()
    with pytest.raises(CheckpointError, match=r"it has delta\.appendOnly"):
        opened.remove(["segments/run-000001-00000001.parquet"])


def test_names_of_s3_that_deltalake_lacks() -> None:
    class Storage:
        location = "s3a://lake/orders"

    files: Any = NamedFiles(Storage(), {}, LandedColumns(SCHEMA))  # type: ignore[arg-type]
    table: Any = object.__new__(_Delta)
    table._files = files
    assert table._uri == "s3://lake/orders/segments"
