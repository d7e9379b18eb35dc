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

from fanout.landing.lander import land
from tests.landing.projections.tables import Delta, Iceberg, Lab, iceberg_catalog, row
from tests.support.manual_source import SCHEMA
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
    assert "is in no directory of a date" in told.failure


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
