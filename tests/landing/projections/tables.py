"""Tables of each kind for tests, with another reader and another writer of each."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import deltalake
import duckdb
import duckdb_extension_avro
import duckdb_extension_delta
import duckdb_extension_iceberg
import pyarrow as pa
import pyarrow.compute as pc
import pyiceberg.catalog
import pyiceberg.expressions
from pyiceberg.types import StringType

from fanout.landers.land import land
from fanout.landing.projections import delta, iceberg
from tests.support.manual_source import SCHEMA, ManualSource

if TYPE_CHECKING:
    from fanout.core.statistics import TableStatistics
    from fanout.landing.projections.delta import DeltaTable
    from fanout.landing.projections.iceberg import IcebergTable


EXPRESSIONS: Any = pyiceberg.expressions  # its types ask for keywords that it refuses


class Kind(Protocol):
    """A kind of table."""

    commits: Any  # the class that has the methods newest, add and remove

    def option(self) -> DeltaTable | IcebergTable: ...

    def read(self) -> pa.Table: ...

    def append(self, rows: pa.Table) -> None: ...

    def compact(self) -> None: ...

    def delete(self, number: int) -> None: ...

    def drop(self) -> None: ...

    def make(self) -> None: ...

    def take_back(self, commits: int) -> None: ...

    def where(self, column: str, value: Any) -> list[int]: ...

    def add_column(self, name: str) -> None: ...

    def change_column(self) -> None: ...

    def in_duckdb(self) -> pa.Table: ...

    def through(self, endpoint: str) -> None: ...


def duckdb_table(statement: str) -> pa.Table:
    """Return what DuckDB answers."""
    with duckdb.connect() as connection:
        for extension in (duckdb_extension_avro, duckdb_extension_delta, duckdb_extension_iceberg):
            (file,) = Path(str(extension.__file__)).parent.rglob("*.duckdb_extension")
            connection.execute(f"LOAD '{file}'")
        return connection.sql(statement).to_arrow_table()


def iceberg_catalog(directory: Path, **more: str) -> dict[str, str]:
    """Return the properties of a catalog in a directory."""
    (directory / "warehouse").mkdir(exist_ok=True)
    return {
        "type": "sql",
        "uri": f"sqlite:///{directory}/catalog.db",
        "warehouse": f"file://{directory}/warehouse",
        **more,
    }


def numbers(kind: Kind) -> list[int]:
    """Return the payloads, in order."""
    return sorted(int(data) for data in kind.read().column("data").to_pylist())


def row(number: int) -> pa.Table:
    """Return a row of another writer."""
    return pa.table([["b"], [number], [b"%d" % number]], schema=SCHEMA)


@dataclass
class Delta:
    root: str
    options: dict[str, str] | None
    commits: Any = delta._Delta

    def through(self, endpoint: str) -> None:
        assert self.options is not None
        self.options["endpoint"] = endpoint

    def option(self) -> DeltaTable:
        return delta.DeltaTable()

    def open(self) -> deltalake.DeltaTable:
        options = None if self.options is None else {**self.options, "allow_http": "true"}
        return deltalake.DeltaTable(f"{self.root}/segments", storage_options=options)

    def read(self) -> pa.Table:
        return self.open().to_pyarrow_table()

    def append(self, rows: pa.Table) -> None:
        deltalake.write_deltalake(self.open(), rows, mode="append")

    def compact(self) -> None:
        self.open().optimize.compact()

    def delete(self, number: int) -> None:
        self.open().delete(f"sequence = {number}")

    def vacuum(self) -> None:
        self.open().vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)

    def take_back(self, commits: int) -> None:
        table = self.open()
        table.restore(table.version() - commits)

    def make(self) -> None:
        deltalake.DeltaTable.create(f"{self.root}/segments", SCHEMA)

    def drop(self) -> None:
        shutil.rmtree(f"{self.root}/segments/_delta_log")

    def where(self, column: str, value: Any) -> list[int]:
        data = self.open().to_pyarrow_dataset()
        found = data.to_table(
            filter=pc.field(column) == pa.scalar(value, data.schema.field(column).type)
        )
        return sorted(found.column("sequence").to_pylist())

    def in_duckdb(self) -> pa.Table:
        return duckdb_table(f"FROM delta_scan('{self.root}/segments')")

    def change_column(self) -> None:
        rows = self.read().cast(SCHEMA.set(1, pa.field("sequence", pa.string())))
        deltalake.write_deltalake(self.open(), rows, mode="overwrite", schema_mode="overwrite")

    def add_column(self, name: str) -> None:
        fields = [deltalake.Field(name, deltalake.schema.PrimitiveType("string"))]
        self.open().alter.add_columns(fields)


@dataclass
class Iceberg:
    catalog: dict[str, str]
    io: dict[str, str] = field(default_factory=dict)  # of others: the landing has its own options
    commits: Any = iceberg._Iceberg

    @property
    def properties(self) -> dict[str, str]:
        return self.catalog | self.io

    def through(self, endpoint: str) -> None:
        self.io["s3.endpoint"] = endpoint

    def option(self) -> IcebergTable:
        return iceberg.IcebergTable("lab", "db.orders", self.catalog)

    def open(self) -> Any:
        return pyiceberg.catalog.load_catalog("lab", **self.properties).load_table("db.orders")

    def read(self) -> pa.Table:
        return self.open().scan().to_arrow()

    def append(self, rows: pa.Table) -> None:
        self.open().append(rows)

    def compact(self) -> None:
        table = self.open()
        table.overwrite(table.scan().to_arrow())

    def delete(self, number: int) -> None:
        self.open().delete(EXPRESSIONS.EqualTo("sequence", number))

    def where(self, column: str, value: Any) -> list[int]:
        found = self.open().scan(row_filter=EXPRESSIONS.EqualTo(column, value)).to_arrow()
        return sorted(found.column("sequence").to_pylist())

    def in_duckdb(self) -> pa.Table:
        return duckdb_table(f"FROM iceberg_scan('{self.open().metadata_location[7:]}')")

    def change_column(self) -> None:
        with self.open().update_schema() as update:
            update.delete_column("sequence")

    def add_column(self, name: str) -> None:
        with self.open().update_schema() as update:
            update.add_column(name, StringType())

    def take_back(self, commits: int) -> None:
        table = self.open()
        former = sorted(table.snapshots(), key=lambda one: one.sequence_number)[-1 - commits]
        with table.manage_snapshots() as manage:
            manage.rollback_to_snapshot(former.snapshot_id)

    def make(self) -> None:
        catalog = pyiceberg.catalog.load_catalog("lab", **self.properties)
        catalog.create_table("db.orders", SCHEMA)

    def drop(self) -> None:
        pyiceberg.catalog.load_catalog("lab", **self.properties).drop_table("db.orders")


class Lab:
    """A landing, and one table that names its files."""

    def __init__(self, location: str, kind: Kind, options: dict[str, str] | None) -> None:
        self.location = location
        self.kind = kind
        self.source = ManualSource()
        self.count = 0
        self.options = options

    async def land(self, entries: int = 0, **options: Any) -> TableStatistics:
        """Run once, and land as many entries with a record each; tell of the table."""
        chosen: dict[str, Any] = {"max_wait": 0.0, "tables": [self.kind.option()]}
        async with land(
            self.source, self.location, storage_options=self.options, **chosen | options
        ) as landing:
            for _ in range(entries):
                self.source.put(b"%d" % self.count)
                self.count += 1
                async with asyncio.timeout(60):
                    await anext(landing)
        told = landing.statistics().tables
        return told[0] if told else None  # type: ignore[return-value]

    async def check(self, *others: int) -> None:
        """Check that the table has each record of the landing once, and those of others."""
        assert await asyncio.to_thread(numbers, self.kind) == sorted([*range(self.count), *others])
