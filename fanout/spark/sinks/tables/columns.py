"""Options that name columns, and such names in SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout.errors import BatchNotWrittenError, OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.types import StructType


def column_names(option: str, value: str | Sequence[str]) -> tuple[str, ...]:
    """Return the different names in an option, of which one may stand alone; OptionError."""
    names = (value,) if isinstance(value, str) else tuple(value)
    if not all(isinstance(name, str) and name for name in names) or len({*names}) < len(names):
        raise OptionError(f"{option}={value!r} must be the names of columns, each once")
    return names


def check_has(schema: StructType, option: str, names: Sequence[str]) -> None:
    """Raise OptionError unless a DataFrame has the columns that an option names."""
    for name in names:
        if name not in schema.names:
            raise OptionError(
                f"{option} names the column {name!r}, which the DataFrame has not; it has "
                f"{', '.join(schema.names)}"
            )


def check_kept(table: str, kinds: Mapping[str, object], counts: Mapping[str, int]) -> None:
    """Check that a table has no value to alter, as its columns would cut or round it.

    `kinds` are the types of its columns, for messages; `counts` the rows with such a value, by
    column.

    Raises:
        BatchNotWrittenError: There are such rows.
    """
    altered = [
        f"{count} rows in {name!r}, which is {kinds[name]}"
        for name, count in counts.items()
        if count
    ]
    if altered:
        raise BatchNotWrittenError(
            f"the table {table} would alter values: {'; '.join(altered)}; give its columns types "
            f"that keep them, or change the values in transform"
        )


def in_spark(name: str) -> str:
    """Return a column's name as Spark's SQL has it."""
    return "`" + name.replace("`", "``") + "`"
