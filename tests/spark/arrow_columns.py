"""Columns of every Arrow type that Spark reads, with extreme values, and what they are in Spark."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# 0001-01-01, the last day of the Julian calendar, a time before the zone's standard time, the hour
# that comes twice in New York, and 9999-12-31.
_SECONDS = (-62_135_596_800, -12_219_379_200, -2_717_650_801, 1_793_509_200, 253_402_300_799)
_DAYS = (-719_162, -141_428, -1, 0, 2_932_896)
# Far beyond what datetime can be.
_FAR = 200_000 * 31_556_952
_DIGITS = "12345678901234567890123456789012345678"


def _moments(unit: str, per_second: int, zone: str | None) -> pa.Array:
    counts = [second * per_second for second in (*_SECONDS, _FAR)]
    return pa.array([*counts, None], pa.timestamp(unit, zone))


def columns() -> dict[str, pa.Array]:
    """Return a column of each type, of one length, with a null in each."""
    found = {
        "boolean": pa.array([True, False]),
        "int8": pa.array([-(2**7), 2**7 - 1], pa.int8()),
        "int16": pa.array([-(2**15), 2**15 - 1], pa.int16()),
        "int32": pa.array([-(2**31), 2**31 - 1], pa.int32()),
        "int64": pa.array([-(2**63), 2**63 - 1], pa.int64()),
        "float": pa.array([math.nan, -0.0, math.inf, -math.inf, 2.0**-149], pa.float32()),
        "double": pa.array([math.nan, -0.0, math.inf, -math.inf, 5e-324], pa.float64()),
        "string": pa.array(["", "x" * 1_000_000, "a\0b", "\U0001f600\u0301", " x "]),
        "large_string": pa.array(["", "a\0b"], pa.large_string()),
        "binary": pa.array([b"", bytes(range(256)), b"\xed\xa0\x80"]),
        "large_binary": pa.array([b"", b"\0\xff"], pa.large_binary()),
        "dictionary": pa.array(["a", "b", "a"]).dictionary_encode(),
        "date": pa.array(_DAYS, pa.date32()),
        "seconds": _moments("s", 1, "UTC"),
        "millis": _moments("ms", 1000, "UTC"),
        "micros": _moments("us", 1_000_000, "UTC"),
        "elsewhere": _moments("us", 1_000_000, "America/New_York"),
        "local_seconds": _moments("s", 1, None),
        "local_millis": _moments("ms", 1000, None),
        "local_micros": _moments("us", 1_000_000, None),
        "duration": pa.array([-(2**53), -1, 0, 2**53], pa.duration("us")),
        "large": pa.array([Decimal(f"-{_DIGITS}"), Decimal(_DIGITS)], pa.decimal128(38, 0)),
        "huge": pa.array([Decimal("1.50"), Decimal("-0.01")], pa.decimal256(20, 2)),
        "struct": pa.array(
            [{"n": None, "s": "x"}, {"n": 2**63 - 1, "s": None}],
            pa.struct([("n", pa.int64()), ("s", pa.string())]),
        ),
        "list": pa.array([[], [None, 1]], pa.list_(pa.int64())),
        "map": pa.array([[], [("a", 1), ("b", None)]], pa.map_(pa.string(), pa.int64())),
        "nested": pa.array(
            [[{"at": -62_135_596_800_000_000}], [None], None],
            pa.list_(pa.struct([("at", pa.timestamp("us", "UTC"))])),
        ),
    }
    if hasattr(pa, "decimal32"):  # since pyarrow 18
        found |= {
            "small": pa.array([Decimal("-999.99"), Decimal("0.01")], pa.decimal32(5, 2)),
            "medium": pa.array([Decimal("0.000000000001")], pa.decimal64(12, 12)),
        }
    if not pyspark.__version__.startswith("3."):
        found |= {
            "fixed": pa.array([b"abcd", b"\0\0\0\0"], pa.binary(4)),
            "large_list": pa.array([[1], []], pa.large_list(pa.int64())),
            "fixed_list": pa.array([[1, 2]], pa.list_(pa.int64(), 2)),
        }
    rows = max(len(column) for column in found.values())
    return {
        name: pa.chunked_array([column, pa.nulls(rows - len(column), column.type)]).combine_chunks()
        for name, column in found.items()
    }


def in_arrow(column: pa.Array) -> list[str]:
    """Return the values of a column, as `in_spark` has them, sorted."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    elif pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    elif column.type == pa.list_(pa.struct([("at", pa.timestamp("us", "UTC"))])):
        column = column.cast(pa.list_(pa.struct([("at", pa.int64())])))
    values = column.to_pylist()
    if pa.types.is_map(column.type):
        values = [None if value is None else dict(value) for value in values]
    return sorted(repr(_plain(value)) for value in values)


def in_spark(df: DataFrame, name: str) -> list[str]:
    """Return the values of a column, sorted; moments and days as numbers since 1970."""
    kind = df.schema[name].dataType.simpleString()
    value = {
        "timestamp": f"unix_micros({name})",
        "timestamp_ntz": f"timestampdiff(MICROSECOND, timestamp_ntz'1970-01-01', {name})",
        "date": f"unix_date({name})",
        "array<struct<at:timestamp>>": f"transform({name}, one -> "
        "if(one is null, null, named_struct('at', unix_micros(one.at))))",
    }.get(kind, name)
    return sorted(repr(_plain(row.v)) for row in df.selectExpr(f"{value} AS v").collect())


def _plain(value: Any) -> Any:
    """Return a value of pyarrow or pyspark in one form."""
    match value:
        case list():
            return [_plain(one) for one in value]
        case bytearray():
            return bytes(value)
        case _ if hasattr(value, "asDict"):
            return value.asDict(recursive=True)
        case _:
            return value
