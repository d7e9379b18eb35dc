"""Columns by their names and types, and whether a table keeps their values.

Spark's own assignment rounds: it takes 1.7 for a column of integers, and stores 1.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import types

from fanout.core.option_checks import as_sequence
from fanout.errors import BatchNotWrittenError, OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.types import DataType, StructType

BATCHES: Final = "fanout_batches"
"""The table with the newest batch of each sink, in the schema of the tables that they write."""

# The decimal digits of the greatest value, and the binary ones that hold each value.
_WHOLE: Final[Mapping[type[DataType], tuple[int, int]]] = {
    types.ByteType: (3, 7),
    types.ShortType: (5, 15),
    types.IntegerType: (10, 31),
    types.LongType: (19, 63),
}
_FLOATING: Final[Mapping[type[DataType], int]] = {types.FloatType: 24, types.DoubleType: 53}
_NESTED: Final = (types.ArrayType, types.MapType, types.StructType)
_TEXT: Final = (types.StringType, types.VarcharType)
# A string has all of their digits, in one way.
_AS_TEXT: Final = (*_WHOLE, types.DecimalType, types.BooleanType, types.DateType)


def column_names(option: str, value: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of columns in an option, one or several; raise OptionError for others."""
    names = (value,) if isinstance(value, str) else value
    names = tuple(as_sequence(option, names, "the name of a column, or several"))
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


def staging_prefix(writer: str, digits: int) -> str:
    """Return what the names of a sink's staging tables begin with.

    That many hexadecimal `digits` tell it from other sinks.
    """
    return f"fanout_{hashlib.sha256(writer.encode()).hexdigest()[:digits]}_"


def check_types(rows: StructType, table: StructType, name: str, *, exact_case: bool) -> None:
    """Check that a table keeps the values of a DataFrame; columns that it lacks are left to Spark.

    `exact_case` says that names that differ in case alone are different ones.

    Raises:
        OptionError: A column of the table has a type that may change a value.
    """
    columns = _by_name(table, exact_case)
    for column in rows:
        wanted = columns.get(column.name if exact_case else column.name.lower())
        if wanted is not None and not _keeps(wanted, column.dataType, exact_case):
            raise OptionError(
                f"the column {column.name!r} is {column.dataType.simpleString()}, and "
                f"{wanted.simpleString()} in {name}, which may change a value: cast it in transform"
            )


def _by_name(schema: StructType, exact_case: bool) -> dict[str, DataType]:  # noqa: FBT001
    return {one.name if exact_case else one.name.lower(): one.dataType for one in schema}


def _keeps(wide: DataType, kind: DataType, exact_case: bool) -> bool:  # noqa: FBT001
    """Return whether one type has each value of another, or Spark refuses those that it has not."""
    if isinstance(kind, types.NullType):
        return True
    if isinstance(wide, _NESTED):
        return type(wide) is type(kind) and all(
            _keeps(of_wide, of_kind, exact_case)
            for of_wide, of_kind in _parts(wide, kind, exact_case)
        )
    if isinstance(wide, types.DecimalType):
        return _keeps_digits(wide, kind)
    if type(wide) in _WHOLE:
        return type(kind) in _WHOLE and _WHOLE[type(kind)] <= _WHOLE[type(wide)]
    if type(wide) in _FLOATING:
        bits = _FLOATING.get(type(kind)) or _WHOLE.get(type(kind), (0, 64))[1]
        return bits <= _FLOATING[type(wide)]
    return (
        type(wide) is type(kind)
        or (isinstance(wide, _TEXT) and isinstance(kind, _TEXT))
        or (isinstance(wide, types.StringType) and isinstance(kind, _AS_TEXT))
    )


def _parts(wide: Any, kind: Any, exact_case: bool) -> list[tuple[DataType, DataType]]:  # noqa: FBT001
    """Return what two nested types of one kind have in the same place."""
    if isinstance(wide, types.ArrayType):
        return [(wide.elementType, kind.elementType)]
    if isinstance(wide, types.MapType):
        return [(wide.keyType, kind.keyType), (wide.valueType, kind.valueType)]
    fields = _by_name(wide, exact_case)
    found = _by_name(kind, exact_case)
    return [(fields[name], one) for name, one in found.items() if name in fields]


def _keeps_digits(wide: types.DecimalType, kind: DataType) -> bool:
    if isinstance(kind, types.DecimalType):
        before, after = kind.precision - kind.scale, kind.scale
    else:
        before, after = _WHOLE.get(type(kind), (99, 0))[0], 0
    return before <= wide.precision - wide.scale and after <= wide.scale
