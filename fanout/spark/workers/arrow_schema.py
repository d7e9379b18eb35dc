"""The Arrow schema of a Spark schema and the other way round, in every version of pyspark."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from pyarrow import types
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

_MAX_DIGITS: Final = 38
# What Spark reads as pyarrow writes it, beside what `_is_read` looks at.
_READ: Final = (
    types.is_boolean,
    types.is_signed_integer,
    types.is_float32,
    types.is_float64,
    types.is_date32,
    types.is_string,
    types.is_large_string,
    types.is_binary,
    types.is_large_binary,
    types.is_fixed_size_binary,
)
_OF_VALUES: Final = (
    types.is_list,
    types.is_large_list,
    types.is_fixed_size_list,
    types.is_dictionary,
)
_INSTEAD: Final = (
    (types.is_timestamp, "timestamp('us') with its time zone"),
    (types.is_duration, "duration('us')"),
    (types.is_time, "a string, or to the number of its microseconds"),
    (types.is_date64, "date32"),
    (types.is_uint64, "decimal128(20, 0)"),
    (types.is_unsigned_integer, "int64"),
    (types.is_float16, "float32"),
    (types.is_decimal, "a decimal of 38 digits at most, with a scale from 0 to its digits"),
)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a DataFrame's rows, with timestamps in UTC."""
    convert: Any = to_arrow_schema
    try:
        return convert(schema, timezone="UTC")
    except TypeError:  # some older ones always means UTC
        return convert(schema)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of Arrow records; every column may be null.

    Raises:
        OptionError: If Spark has no type for one of them.
    """
    return StructType([StructField(field.name, _spark_type(field)) for field in schema])


def check_spark_reads(schema: pa.Schema, *, case_sensitive: bool) -> None:
    """Check that Spark reads each value of some records as it is, from Parquet.

    `case_sensitive` is `spark.sql.caseSensitive`: whether names that differ in case are two.

    Raises:
        OptionError: If Spark does not read a column, or reads other values: it takes seconds of a
            duration for microseconds, for one.
    """
    _check_names(schema.names, case_sensitive=case_sensitive)
    for field in schema:
        if (part := _unread(field.type, case_sensitive=case_sensitive)) is not None:
            raise OptionError(
                f"the column {field.name!r} {_has(field, part)}, which Spark cannot read: let "
                f"decode {_remedy(part)}"
            )
    spark_schema(schema)


def is_case_sensitive(spark: SparkSession) -> bool:
    """Say whether two names that differ in case are two columns in a session."""
    return str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true"


def _spark_type(field: pa.Field) -> DataType:
    try:
        # What has no time zone is no instant: a session's time zone must not move it.
        return from_arrow_type(field.type, prefer_timestamp_ntz=True)
    except (PySparkException, ValueError) as error:
        raise OptionError(
            f"the column {field.name!r} is {field.type}, for which this version of Spark has no "
            f"type: let decode {_remedy(field.type)}"
        ) from error


def _check_names(names: Sequence[str], *, case_sensitive: bool) -> None:
    seen = Counter(name if case_sensitive else name.lower() for name in names)
    for name in names:
        if seen[name if case_sensitive else name.lower()] > 1:
            raise OptionError(
                f"the column {name!r} is there twice, as Spark compares names: let decode give "
                f"each column a name of its own, also without upper and lower case"
            )


def _unread(kind: pa.DataType, *, case_sensitive: bool) -> pa.DataType | None:
    """Return the part of a type that Spark does not read; None for none."""
    if types.is_struct(kind):
        names = [field.name for field in kind]
        if not names:
            return kind
        _check_names(names, case_sensitive=case_sensitive)
        inner = [field.type for field in kind]
    elif types.is_map(kind):
        inner = [kind.key_type, kind.item_type]
    elif any(is_kind(kind) for is_kind in _OF_VALUES):
        inner = [kind.value_type]
    else:
        return None if _is_read(kind) else kind
    parts = (_unread(one, case_sensitive=case_sensitive) for one in inner)
    return next((part for part in parts if part is not None), None)


def _is_read(kind: pa.DataType) -> bool:
    if types.is_timestamp(kind):
        return bool(kind.unit != "ns")
    if types.is_duration(kind):
        return bool(kind.unit == "us")
    if types.is_decimal(kind):
        return bool(0 <= kind.scale <= kind.precision <= _MAX_DIGITS)
    return any(is_kind(kind) for is_kind in _READ)


def _has(field: pa.Field, part: pa.DataType) -> str:
    return f"is {part}" if field.type == part else f"has {part} in it"


def _remedy(kind: pa.DataType) -> str:
    """Return what a user can do about a type."""
    for is_kind, instead in _INSTEAD:
        if is_kind(kind):
            return f"cast it to {instead}"
    return "cast it to another type, such as a string, or leave it out"
