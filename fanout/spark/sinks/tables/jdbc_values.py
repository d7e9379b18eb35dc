"""Which values of a DataFrame a database would alter, by the types of its columns.

Databases round numbers and times without an error, and pad bytes. Spark replaces bytes that are not
UTF-8, and writes times by java.sql, which knows the wall clock of the JVM's time zone alone, and
another calendar before 1582.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from pyspark.sql import types

from fanout.spark.sinks.tables.columns import in_spark

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

# Constants of java.sql.Types.
_TEXT: Final = (1, 12, -9, -15)
_BINARY, _VARBINARY = -2, -3
_DECIMAL: Final = (2, 3)
_INTEGER: Final = (-6, -5, 4, 5)
_FLOATS: Final = (6, 7, 8)
_FLOAT, _REAL = _FLOATS[:2]
_DATE, _TIMESTAMP, _TIMESTAMP_WITH_ZONE = 91, 93, 2014
_TIMES_OF_DAY: Final = (92, 2013)

# A decimal without limits, such as H2's DECFLOAT, names a greater one; Oracle's NUMBER names none.
_MOST_DIGITS: Final = 1000
# Oracle's FLOAT is a NUMERIC that counts binary digits, with a lower scale than this.
_LEAST_SCALE: Final = -84
# What drivers say of bytes without a limit.
_NO_LENGTH: Final = 2**31 - 1
# The bits, or digits, of a float that is a REAL in truth.
_SINGLE: Final = 24
_MICROSECONDS: Final = 6
_UTC: Final = ("UTC", "Etc/UTC", "GMT", "Etc/GMT", "Z")
_BEFORE: Final = "{0} < date'1582-10-15'"
# The zones of java.util begin in 1900.
_BEFORE_ZONES: Final = "{0} < timestamp'1900-01-01 00:00:00Z'"
# Spark's greatest decimal with digits enough behind the point.
_AS_DECIMAL: Final = "try_cast({0} AS decimal(38, 18))"


@final
@dataclass(frozen=True, slots=True)
class JdbcColumn:
    """A column as the driver describes it."""

    name: str  # as the database writes it
    kind: int  # of java.sql.Types
    type_name: str  # as the database calls it
    precision: int  # its greatest length, or number of digits; 0 where it has none
    scale: int  # its digits behind the point

    def __str__(self) -> str:
        bounds = ", ".join(str(bound) for bound in (self.precision, self.scale) if bound > 0)
        return f"{self.type_name}({bounds})" if bounds else self.type_name

    def alters(self, kind: DataType, zone: str) -> str:
        """Return the condition of Spark's SQL that the column would alter a value; empty for none.

        `zone` is the time zone of Spark's JVM, in which its writer writes times.
        """
        name = in_spark(self.name)
        return " OR ".join(condition.format(name) for condition in self._conditions(kind, zone))

    def _conditions(self, kind: DataType, zone: str) -> list[str]:
        if isinstance(kind, types.StringType):
            return self._of_text()
        if isinstance(kind, types.BinaryType):
            return self._of_bytes()
        if isinstance(kind, types.NumericType):
            return self._of_number(kind)
        if isinstance(kind, types.TimestampType):
            return self._of_instant(zone)
        if isinstance(kind, types.TimestampNTZType):
            return self._of_wall_clock(zone)
        return self._of_day() if isinstance(kind, types.DateType) else []

    def _of_bytes(self) -> list[str]:
        compared = {_BINARY: "<>", _VARBINARY: ">"}.get(self.kind)
        bounded = compared and 0 < self.precision < _NO_LENGTH
        return [f"octet_length({{0}}) {compared} {self.precision}"] if bounded else []

    def _of_text(self) -> list[str]:
        found = ["NOT (CAST({0} AS binary) <=> encode({0}, 'UTF-8'))"]
        if self.kind in _TEXT and self.precision > 0:
            found.append(f"char_length({{0}}) > {self.precision}")
        if self._is_bounded or self.kind in _INTEGER:
            found.append(f"NOT (round({_AS_DECIMAL}, {self.scale}) <=> {_AS_DECIMAL})")
        return found

    def _of_number(self, kind: DataType) -> list[str]:
        if self.kind in _INTEGER:
            other = "bigint"
        elif self.kind in _FLOATS:
            single = self.kind == _REAL or (self.kind == _FLOAT and self.precision <= _SINGLE)
            other = "float" if single else "double"
            if isinstance(kind, types.IntegralType):
                # A cast back would end at the greatest integer.
                exact = 2 ** (24 if single else 53)
                return [f"{{0}} NOT BETWEEN -{exact} AND {exact}"]
        elif self._is_bounded and self.scale < 0:
            return [f"NOT (round({{0}}, {self.scale}) <=> {{0}})"]
        elif self._is_bounded and not isinstance(kind, types.IntegralType):
            other = f"decimal(38, {min(self.scale, 38)})"
        else:
            return []
        return [f"NOT (try_cast(try_cast({{0}} AS {other}) AS {kind.simpleString()}) <=> {{0}})"]

    def _of_day(self) -> list[str]:
        return ["{0} IS NOT NULL"] if self.kind in _TIMES_OF_DAY else [_BEFORE]

    def _of_instant(self, zone: str) -> list[str]:
        if self.kind == _DATE or self.kind in _TIMES_OF_DAY:
            return ["{0} IS NOT NULL"]
        found = [*self._of_fraction(), _BEFORE if zone in _UTC else _BEFORE_ZONES]
        if self.kind == _TIMESTAMP:
            # The hour that comes twice.
            there = f"from_utc_timestamp({{0}}, '{zone}')"
            found.append(f"NOT (to_utc_timestamp({there}, '{zone}') <=> {{0}})")
        return found

    def _of_wall_clock(self, zone: str) -> list[str]:
        if zone not in _UTC or self.kind in _TIMES_OF_DAY:
            # In a zone Spark takes it for one of UTC, and the driver writes that of the zone.
            return ["{0} IS NOT NULL"]
        if self.kind == _DATE:
            return ["NOT (CAST(CAST({0} AS date) AS timestamp_ntz) <=> {0})", _BEFORE]
        return [*self._of_fraction(), _BEFORE]

    def _of_fraction(self) -> list[str]:
        if self.kind not in {_TIMESTAMP, _TIMESTAMP_WITH_ZONE} or self.scale >= _MICROSECONDS:
            return []
        return [f"extract(SECOND FROM {{0}}) * {10**self.scale} % 1 <> 0"]

    @property
    def _is_bounded(self) -> bool:
        bounded = 0 < self.precision <= _MOST_DIGITS and self.scale >= _LEAST_SCALE
        return self.kind in _DECIMAL and bounded
