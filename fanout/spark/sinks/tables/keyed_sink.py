"""Sinks that append rows, or insert and update them by a key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fanout.errors import OptionError
from fanout.spark.sinks.tables.columns import check_has, column_names
from fanout.spark.sinks.tables.table_sink import TableSink
from fanout.spark.sinks.tables.widening import check_kept

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedSink(TableSink):
    """A handler that appends the rows of each batch once, or keeps the newest row of each key."""

    key: str | Sequence[str] = ()
    latest_by: str | None = None

    @property
    def _keys(self) -> tuple[str, ...]:
        return column_names("key", self.key)

    def _check_key(self) -> None:
        if bool(self._keys) is not (self.latest_by is not None):
            raise OptionError(
                "key and latest_by belong together: key names the columns that tell rows apart, "
                "and latest_by the column whose greatest value is the newest row of a key"
            )
        if self.latest_by in self._keys:
            raise OptionError(f"latest_by={self.latest_by!r} must not be one of the key's columns")

    def _check_columns(self, schema: StructType) -> None:
        check_has(schema, "key", self._keys)
        if self.latest_by is not None:
            check_has(schema, "latest_by", (self.latest_by,))

    def _check_kept(self, rows: DataFrame, table: StructType) -> None:
        """Check that a table keeps the values of the rows; raise OptionError."""
        exact_case = rows.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
        check_kept(rows.schema, table, self._destination, exact_case=exact_case)
