"""Columns of a landing as those of a table: the same values, each of which may be null."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# The types that Delta and Iceberg have, besides times and types with parts.
_KEPT: Final = (
    pa.types.is_signed_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_date32,
    pa.types.is_decimal128,
)


def table_schema(columns: pa.Schema, form: str, *more: Callable[[pa.DataType], bool]) -> pa.Schema:
    """Return the columns of a table of a form, such as "Delta", which also has `more` types.

    A type that it lacks is an OptionError. pyiceberg would take some for others that cannot keep
    all of their values.
    """

    def kept(kind: pa.DataType) -> pa.DataType | None:
        if pa.types.is_timestamp(kind) and kind.unit in {"ms", "us"}:
            if form == "Iceberg" and kind.tz not in {None, "UTC"}:
                return None  # pyiceberg takes no file with such times
            return pa.timestamp("us", None if kind.tz is None else "UTC")
        if any(is_kept(kind) for is_kept in (*_KEPT, *more)):
            return kind
        if pa.types.is_map(kind):
            key, value = kept(kind.key_type), kept(kind.item_type)
            absent = key is None or value is None
            return None if absent else pa.map_(key, kind.item_field.with_type(value))
        parts = [kind.field(index) for index in range(kind.num_fields)]
        types = [kept(part.type) for part in parts]
        if None in types or not (pa.types.is_struct(kind) or pa.types.is_list(kind)):
            return None
        parts = [part.with_type(type_) for part, type_ in zip(parts, types, strict=True)]
        return pa.struct(parts) if pa.types.is_struct(kind) else pa.list_(*parts)

    fields = []
    for column in columns:
        if (type_ := kept(column.type)) is None:
            raise OptionError(
                f"the column {column.name} has the type {column.type}, and {form} has no type for "
                f"all of its values: let decode cast it"
            )
        fields.append(pa.field(column.name, type_))
    check_names(columns.names, ())
    return pa.schema(fields)


def check_names(names: Iterable[str], there: Iterable[str]) -> None:
    """Check that no two names, and none of those `there`, differ by case alone: engines ignore it.

    That is an OptionError.
    """
    known = {name.lower(): name for name in there}
    for name in names:
        if (other := known.setdefault(name.lower(), name)) != name:
            raise OptionError(f"its columns {other} and {name} differ by case alone")
