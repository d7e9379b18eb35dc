"""Tables of each kind for tests, with another reader and another writer of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import deltalake
import pyarrow as pa
import pyiceberg.catalog

from fanout.landing.projections import delta, iceberg
from tests.support.manual_source import SCHEMA

if TYPE_CHECKING:
    from fanout.landing.projections.delta import DeltaTable
    from fanout.landing.projections.iceberg import IcebergTable


class Kind(Protocol):
    """A kind of table."""

    commits: Any  # the class that has the methods newest, add and remove

    def option(self) -> DeltaTable | IcebergTable: ...

    def read(self) -> pa.Table: ...

    def append(self, rows: pa.Table) -> None: ...

    def compact(self) -> None: ...

    def drop(self) -> None: ...


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

    def drop(self) -> None:
        raise NotImplementedError


@dataclass
class Iceberg:
    properties: dict[str, str]
    commits: Any = iceberg._Iceberg

    def option(self) -> IcebergTable:
        return iceberg.IcebergTable("lab", "db.orders", self.properties)

    def open(self) -> Any:
        return pyiceberg.catalog.load_catalog("lab", **self.properties).load_table("db.orders")

    def read(self) -> pa.Table:
        return self.open().scan().to_arrow()

    def append(self, rows: pa.Table) -> None:
        self.open().append(rows)

    def compact(self) -> None:
        table = self.open()
        table.overwrite(table.scan().to_arrow())

    def drop(self) -> None:
        pyiceberg.catalog.load_catalog("lab", **self.properties).drop_table("db.orders")
