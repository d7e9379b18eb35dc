"""The tables of a landing, as commands name them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout.core.sentence import Option
from fanout.errors import OptionError

if TYPE_CHECKING:
    from fanout.landing.projections.delta import DeltaTable
    from fanout.landing.projections.iceberg import IcebergTable


def table_option(text: str) -> DeltaTable | IcebergTable:
    """Return the table that `--table` names."""
    kind, _, rest = text.partition(":")
    catalog, _, table = rest.partition("/")
    if text == "delta":
        from fanout.landing.projections.delta import DeltaTable  # noqa: PLC0415 - an extra

        return DeltaTable()
    if kind == "iceberg" and catalog and "." in table.strip("."):
        from fanout.landing.projections.iceberg import IcebergTable  # noqa: PLC0415 - an extra

        return IcebergTable(catalog, table)
    raise OptionError(Option("tables", text), " must be delta, or iceberg:CATALOG/DB.TABLE")
