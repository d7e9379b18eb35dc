"""Types of Spark, with values that are hard to keep, in a form that no client can alter.

A value is made in Spark from a raw one: an instant from its microseconds, a string from its bytes,
a decimal from its digits. Readers return raw values too, so that neither the limits of Python's own
types nor a time zone come between.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, final

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import SearchStrategy
    from pyspark.sql import DataFrame, SparkSession

_DAY: Final = 86_400_000_000
# 9999-12-31 and the day after.
_DAYS: Final = (2932896, 2932897, 0, -1)
# 0001-01-01, and the days around the change of calendars in 1582.
_OLD_DAYS: Final = (-719162, -719529, -141428, -141418, -141417)
# The hour that New York has twice, the one that it leaves out, and the end of what 64 bits of
# nanoseconds have.
_MOMENTS: Final = (
    1793511000000000,
    1793514600123456,
    1772937000000000,
    9223372036854776,
    *(day * _DAY for day in _DAYS),
    999,
)
# The first rule of New York's zone, and the beginning of such nanoseconds.
_OLD_MOMENTS: Final = (
    -2717650800000000,
    -2208988800000001,
    -9223372036854777,
    *(day * _DAY for day in _OLD_DAYS),
)
_FLOATS: Final = (0.0, -0.0, math.inf, -math.inf, math.nan, 0.5, -1.5)
_TEXTS: Final = (
    b"",
    b" a ",
    "é😀\ufffd".encode(),
    b"a\\b'\"\n\r\t,{}",
    b"NULL",
    b"\\N",
    b"\\x41",
    b"/=%20:",
)
# A NUL, bytes that are not UTF-8, and a lone surrogate.
_BROKEN: Final = (b"a\0b", b"\x80", b"\xed\xa0\x80")
_WALL_CLOCK: Final = (
    f"timestamp_ntz'1970-01-01 00:00:00' + make_dt_interval(CAST(raw div {_DAY} AS int), 0, 0, "
    f"CAST(raw % {_DAY} AS decimal(18, 0)) / 1000000)"
)


@final
@dataclass(frozen=True)
class Kind:
    """A type of Spark, and values of it.

    Args:
        name: The type, as Spark's SQL has it.
        raw: The type of raw values.
        make: The expression that makes a value of the column `raw`.
        kept: Raw values that a sink keeps, where it has the type.
        old: Raw values from before 1900, which a sink may refuse.
        hard: Raw values that a sink may refuse.
        some: Raw values of every sort.
    """

    name: str
    raw: str
    make: str
    kept: tuple[Any, ...]
    old: tuple[Any, ...]
    hard: tuple[Any, ...]
    some: SearchStrategy[Any]


@final
@dataclass(frozen=True)
class Column:
    """Values of a type, and where they are stored.

    Args:
        kind: The type.
        target: The type of the column where they are stored.
        values: Raw values.
    """

    kind: Kind
    target: str
    values: Sequence[Any]

    def __repr__(self) -> str:
        shown = ", ".join(repr(value)[:40] for value in self.values)
        return f"{self.kind.name} as {self.target}: {shown}"


def rows(spark: SparkSession, columns: Sequence[Column]) -> DataFrame:
    """Return rows with a number `id` and the columns `v0`, `v1`, ..., as long as the longest."""
    length = max(len(column.values) for column in columns)
    padded = [[*column.values, *[None] * (length - len(column.values))] for column in columns]
    kinds = ", ".join(f"r{number} {column.kind.raw}" for number, column in enumerate(columns))
    raw = spark.createDataFrame([*zip(range(length), *padded, strict=True)], f"id int, {kinds}")
    made = [
        f"{column.kind.make.replace('raw', f'r{number}')} AS v{number}"
        for number, column in enumerate(columns)
    ]
    return raw.selectExpr("id", *made)


def comparable(value: Any, *, signed: bool) -> Any:
    """Return a raw value so that it equals itself alone, as NaN does not.

    Args:
        value: The value.
        signed: -0.0 is another value than 0.0.
    """
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else struct.pack(">d", value if signed else value + 0.0)
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, (list, tuple)):
        return [comparable(one, signed=signed) for one in value]
    return value


def _integer(name: str, bits: int) -> Kind:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    wide = tuple(one for one in (2**24 + 1, 2**53 + 1) if one < high)
    edges = (low, high, 0, -1, *wide)
    return Kind(name, "bigint", f"CAST(raw AS {name})", edges, (), (), st.integers(low, high))


def _decimal(precision: int, scale: int) -> Kind:
    def text(number: int) -> Decimal:
        return Decimal(f"{number}E-{scale}")

    most = 10**precision - 1
    name = f"decimal({precision},{scale})"
    edges = (most, -most, 1, -1, 0, most // 2 * 2, 10 ** (precision - 1), 10 ** (precision // 2))
    numbers = st.integers(-most, most).map(text)
    make = f"CAST(raw AS {name})"
    return Kind(name, "string", make, tuple(map(text, edges)), (), (), numbers)


def _array(kind: Kind) -> Kind:
    make = f"transform(raw, x -> {kind.make.replace('raw', 'x')})"
    kept: tuple[Any, ...] = ([], [None], [None, *kind.kept, *kind.old, None])
    hard = tuple([one] for one in kind.hard)
    some = st.lists(st.none() | kind.some, max_size=4)
    return Kind(f"array<{kind.name}>", f"array<{kind.raw}>", make, kept, (), hard, some)


_STRING: Final = Kind(
    "string",
    "binary",
    "CAST(raw AS string)",
    (*_TEXTS, "é".encode() * 2**19),
    (),
    _BROKEN,
    st.binary(max_size=9) | st.text(max_size=9).map(str.encode) | st.sampled_from(_TEXTS),
)
_DATE: Final = Kind(
    "date",
    "int",
    "date_from_unix_date(raw)",
    _DAYS,
    _OLD_DAYS,
    (-(2**31), 2**31 - 1, -(2**31) + 10957),
    st.integers(-1000000, 4000000) | st.integers(-(2**31), 2**31 - 1),
)
_INSTANT: Final = Kind(
    "timestamp",
    "bigint",
    "timestamp_micros(raw)",
    _MOMENTS,
    _OLD_MOMENTS,
    (-(2**63), 2**63 - 1, -(2**63) + 946684800000000),
    st.integers(-62135596800000000, 253402300800000000) | st.integers(-(2**63), 2**63 - 1),
)
KINDS: Final = (
    Kind("boolean", "boolean", "raw", (True, False), (), (), st.booleans()),
    *(_integer(*one) for one in (("tinyint", 8), ("smallint", 16), ("int", 32), ("bigint", 64))),
    Kind(
        "float",
        "double",
        "CAST(raw AS float)",
        (*_FLOATS, 2.0**-149, 3.4028234663852886e38),
        (),
        (),
        st.floats(width=32),
    ),
    Kind(
        "double",
        "double",
        "raw",
        (*_FLOATS, 5e-324, 1.7976931348623157e308, 0.1 + 0.2),
        (),
        (),
        st.floats(),
    ),
    *(_decimal(*one) for one in ((5, 2), (18, 6), (38, 0), (38, 18), (38, 38))),
    _STRING,
    Kind("binary", "binary", "raw", (*_TEXTS, *_BROKEN, b"\xff" * 2**20), (), (), st.binary()),
    _DATE,
    _INSTANT,
    Kind("timestamp_ntz", "bigint", _WALL_CLOCK, _MOMENTS, _OLD_MOMENTS, (), _INSTANT.some),
    _array(_STRING),
    _array(_decimal(38, 18)),
    _array(_DATE),
    _array(_INSTANT),
)
"""All types that some sink takes, each with its hard values."""
