"""Put the records of a segment into one directory for each date, as Hive lays out partitions."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fanout.core.sentence import Option
from fanout.errors import OptionError
from fanout.landing.segments.segments import (
    SEGMENTS,
    SegmentFile,
    publish,
    publish_errors,
    write_options,
)

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.landing.segments.segments import OpenSegment
    from fanout.landing.storage.storage import Storage

# A producer of Kafka may write any time; a directory's name has four digits for the year.
_FIRST: Final = datetime(1, 1, 1)  # noqa: DTZ001 - Arrow counts it in UTC
_LAST: Final = datetime(9999, 12, 31)  # noqa: DTZ001 - the same


def check_date_column(schema: pa.Schema, column: str) -> None:
    """Check that records can be put into directories by a column.

    It has times, and the records have no column of the name that readers give to the date of a
    directory.
    """
    times = [field.name for field in schema if pa.types.is_timestamp(field.type)]
    if column not in times:
        raise OptionError(
            Option("partition_by_date", column),
            f" must be a column with times: {' or '.join(times)}",
        )
    # Spark and Hive do not tell names by their case, and put that of the directory in its place.
    if taken := next((name for name in schema.names if name.lower() == "date"), None):
        raise OptionError(
            Option("partition_by_date", column),
            f" must not be given with a column {taken!r}: readers take the date of a directory for "
            "it; let decode give that column another name",
        )


def publish_parts(
    storage: Storage, segment: OpenSegment, column: str | None
) -> tuple[SegmentFile, ...]:
    """Seal and publish a segment, by the date of a column if there is one; it blocks."""
    if column is None:
        return (publish(storage, segment),)
    return publish_by_date(storage, segment, column)


def publish_by_date(storage: Storage, segment: OpenSegment, column: str) -> tuple[SegmentFile, ...]:
    """Seal a segment and publish its records, a file for each date of a column; it blocks.

    The date is that of UTC. If publishing is refused, the segment is gone.
    """
    with publish_errors(storage, segment):
        sealed = segment.seal()
        dates = _dates(sealed.path, column)
        parts = [(sealed.path, dates[0])] if len(dates) == 1 else _split(sealed.path, column, dates)
        found = []
        for path, date in parts:
            rows, size = pq.read_metadata(path).num_rows, path.stat().st_size
            name = f"{SEGMENTS}/date={date}/{sealed.path.name}"
            storage.publish(path, name)
            found.append(SegmentFile(name, rows, size))
        sealed.path.unlink(missing_ok=True)
        return tuple(found)


def _dates(path: Path, column: str) -> list[str]:
    """Return the dates in a file, oldest first."""
    dates = _date_of(pq.read_table(path, columns=[column]).column(column))
    return sorted(pc.unique(dates).to_pylist())


def _split(path: Path, column: str, dates: list[str]) -> list[tuple[Path, str]]:
    """Write a file for each date, in the order of the records."""
    parts = [(path.with_name(f"{date}-{path.name}"), date) for date in dates]
    with pq.ParquetFile(path) as file:
        compression = file.metadata.row_group(0).column(0).compression.lower()
        compression = "none" if compression == "uncompressed" else compression
        options = write_options(file.schema_arrow, compression)
        writers = [pq.ParquetWriter(part, file.schema_arrow, **options) for part, _ in parts]
        try:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group)
                of_row = _date_of(table.column(column))
                for writer, date in zip(writers, dates, strict=True):
                    if (rows := table.filter(pc.equal(of_row, date))).num_rows:
                        writer.write_table(rows)
        finally:
            for writer in writers:
                writer.close()
    return parts


def _date_of(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the date in UTC of each time, as text."""
    unit = pa.timestamp(times.type.unit)
    first, last = (pa.scalar(limit, unit).cast(pa.int64()) for limit in (_FIRST, _LAST))
    clipped = pc.min_element_wise(pc.max_element_wise(times.cast(pa.int64()), first), last)
    return clipped.cast(unit).cast(pa.date32()).cast(pa.string())
