"""What Delta's log says of the columns of a Parquet file, so that engines skip files."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import pyarrow.parquet as pq

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - Arrow counts it in UTC
# Spark keeps as many letters of a text.
_MAX_LETTERS: Final = 32
_LAST_LETTER: Final = chr(0x10FFFF)
_MICROS: Final = {"ms": 1_000, "us": 1}
_ORDERED: Final = (
    pa.types.is_signed_integer,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_date32,
    pa.types.is_timestamp,
)


def has_statistics(kind: pa.DataType) -> bool:
    """Say whether columns of a type have them: those that Parquet orders as Delta does.

    Numbers that can be NaN have none, as Parquet leaves NaN out; nor have decimals, which engines
    read from JSON as numbers that have no such digits.
    """
    return any(is_ordered(kind) for is_ordered in _ORDERED)


def delta_statistics(
    metadata: pq.FileMetaData, lacking: Collection[str] = (), partitions: Collection[str] = ()
) -> str:
    """Return the statistics of a file in JSON, from its footer.

    deltalake leaves out the rows of a file that has limits of some columns, and not of all that the
    table describes. Where a column has none, the file has none. Columns of the table that the file
    is `lacking` are null in all of its rows; others among them are left. Those of `partitions` have
    one value, which the log has elsewhere.
    """
    schema = metadata.schema.to_arrow_schema()
    described = [one for one in schema if has_statistics(one.type) and one.name not in partitions]
    types = {one.name: one.type for one in described}
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls = {name: metadata.num_rows for name in lacking if name not in schema.names}
    unlimited = len(types)
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        chunks = [
            metadata.row_group(group).column(index) for group in range(metadata.num_row_groups)
        ]
        found = [chunk.statistics for chunk in chunks]
        if name not in types or not all(one is not None and one.has_null_count for one in found):
            continue
        nulls[name] = sum(one.null_count for one in found)
        filled = [one for one in found if one.num_values]
        low, high = _limits(types[name], filled) if filled else (None, None)
        unlimited -= not filled or None not in {low, high}
        lowest |= {} if low is None else {name: low}
        highest |= {} if high is None else {name: high}
    limits = {} if unlimited else {"minValues": lowest, "maxValues": highest}
    return msgspec.json.encode(
        {"numRecords": metadata.num_rows, **limits, "nullCount": nulls}
    ).decode()


def _limits(kind: pa.DataType, found: Sequence[pq.Statistics]) -> tuple[Any, Any]:
    """Return the lowest and the highest value of row groups; None for what cannot be said."""
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not all(one.has_min_max for one in found):
        # Parquet keeps no limits of long texts.
        return ("", _LAST_LETTER) if is_text else (None, None)
    if is_text:
        high = max(one.max for one in found)
        low = min(one.min for one in found)[:_MAX_LETTERS]
        return low, high if len(high) <= _MAX_LETTERS else high[:_MAX_LETTERS] + _LAST_LETTER
    low, high = min(one.min_raw for one in found), max(one.max_raw for one in found)
    if pa.types.is_integer(kind):
        return low, high
    if pa.types.is_date32(kind):
        return _day(low), _day(high)
    if pa.types.is_timestamp(kind) and kind.unit in _MICROS:
        # Engines read milliseconds: the one before, and the one after.
        zone, micros = "" if kind.tz is None else "Z", _MICROS[kind.unit]
        return _time(low * micros // 1_000, zone), _time(-(-high * micros // 1_000), zone)
    return None, None


def _day(days: int) -> str | None:
    moment = _moment(days * 86_400_000)
    return None if moment is None else moment.date().isoformat()


def _time(millis: int, zone: str) -> str | None:
    moment = _moment(millis)
    return None if moment is None else f"{moment.isoformat(timespec='milliseconds')}{zone}"


def _moment(millis: int) -> datetime | None:
    """Return a time without its zone; None outside of the years that have four digits."""
    try:
        return _EPOCH + timedelta(milliseconds=millis)
    except OverflowError:
        return None
