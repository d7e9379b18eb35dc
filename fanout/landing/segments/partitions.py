"""Put the records of a segment into directories by their values, as Hive lays out partitions."""

from __future__ import annotations

import re
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Self, final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fanout.core.sentence import Option
from fanout.errors import CheckpointError, OptionError
from fanout.landing.segments.segments import (
    SEGMENTS,
    SegmentFile,
    publish,
    publish_errors,
    write_options,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from fanout.landing.segments.segments import OpenSegment
    from fanout.landing.storage.storage import Storage

MAX_PARTITIONS: Final = 1_000
"""The most partitions of one segment; each is a file."""

_AT_ONCE: Final = 8  # files that are published at the same time
_MAX_COMPONENT_BYTES: Final = 255  # of most file systems
_MAX_DIRECTORY_BYTES: Final = 700  # below what S3 takes, with the location before it
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
# A producer of Kafka may write any time; a directory's name has four digits for the year.
_FIRST: Final = datetime(1, 1, 1)  # noqa: DTZ001 - Arrow counts it in UTC
_LAST: Final = datetime(9999, 12, 31, 23)  # noqa: DTZ001 - the same
_TRANSFORMED: Final = re.compile(r"(day|hour)\((.+)\)")
# What Hive and Spark escape, and NUL, which no file system takes.
_ESCAPED: Final = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
_CODE: Final = re.compile("%([0-9A-F]{2})")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


_IDENTITY: Final = (
    _is_text,
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_date32,
)


@final
@dataclass(frozen=True, slots=True)
class PartitionField:
    """One level of directories."""

    name: str  # of the directories, and of the column that readers make of them
    column: str  # of the records; empty where that is unknown, of an older version's landing
    transform: str = "identity"  # or day, or hour, of a time in UTC

    @classmethod
    def by_date(cls, column: str) -> Self:
        """Return the field of the option `partition_by_date`."""
        return cls("date", column, "day")

    @classmethod
    def of(cls, text: str, names: Sequence[str]) -> Self:
        """Return the field that a text such as "country" or "day(at)" names among columns."""
        match = None if text in names else _TRANSFORMED.fullmatch(text)
        if match is None:
            return cls(text, text)
        return cls(f"{match[2]}_{match[1]}", match[2], match[1])

    @property
    def is_date(self) -> bool:
        """Whether it is that of `partition_by_date`."""
        return self.transform == "day" and self.name == "date"

    @property
    def text(self) -> str:
        """The field as `partition_by` names it."""
        return self.column if self.transform == "identity" else f"{self.transform}({self.column})"


def partition_fields(
    schema: pa.Schema, partition_by: str | Sequence[str], partition_by_date: str | None
) -> tuple[PartitionField, ...]:
    """Return the levels of directories that the two options ask for.

    What the records have no column for, or what readers would take for another column, is an
    OptionError.
    """
    texts = [partition_by] if isinstance(partition_by, str) else partition_by
    if not (isinstance(texts, list | tuple) and all(isinstance(one, str) for one in texts)):
        raise OptionError(
            Option("partition_by", partition_by), " must be the name of a column, or a list of them"
        )
    if partition_by_date is not None and texts:
        raise OptionError(
            Option("partition_by_date", partition_by_date),
            " must not be given with ",
            Option("partition_by"),
            f", which can have {PartitionField.by_date(partition_by_date).text!r}",
        )
    if partition_by_date is not None:
        fields = [PartitionField.by_date(partition_by_date)]
        _check(schema, fields, "partition_by_date")
    else:
        fields = [PartitionField.of(text, schema.names) for text in texts]
        _check(schema, fields, "partition_by")
    return tuple(fields)


def _check(schema: pa.Schema, fields: Sequence[PartitionField], name: str) -> None:
    times = [one.name for one in schema if pa.types.is_timestamp(one.type)]
    plain = [one.name for one in schema if any(is_one(one.type) for is_one in _IDENTITY)]
    seen: set[str] = set()
    for field in fields:
        option = Option(name, field.column if field.is_date else field.text)
        timed = field.transform != "identity"
        if field.column not in (times if timed else plain):
            timed_ones = f" must be a column with times: {_any_of(times)}"
            others = f", or day() or hour() of one with times: {_any_of(times)}" if times else ""
            kinds = "texts, integers, booleans or dates"
            plain_ones = f" must be a column with {kinds}: {_any_of(plain)}{others}"
            raise OptionError(option, timed_ones if timed else plain_ones)
        # Spark and Hive tell no names by their case, and put that of the directory in its place.
        same = (one for one in schema.names if one.lower() == field.name.lower())
        if taken := next((one for one in same if timed or one != field.column), None):
            raise OptionError(
                option,
                f" must not be given with a column {taken!r}: readers take the {field.name} of a "
                "directory for it; let decode give that column another name",
            )
        if field.name[0] in "_.":
            raise OptionError(
                option,
                f" must not have the column {field.name!r}: readers take directories that begin "
                f"with {field.name[0]!r} for hidden; let decode give it another name",
            )
        if field.name.lower() in seen:
            raise OptionError(option, " is there twice")
        seen.add(field.name.lower())


def _any_of(names: Sequence[str]) -> str:
    return " or ".join(names) or "there is none"


def partition_values(name: str) -> dict[str, str | None]:
    """Return the values of a file's directories by their names, as text; None for null."""
    directories = (one.partition("=") for one in name.split("/")[:-1])
    return {
        unescaped(column): None if value == _NULL else unescaped(value)
        for column, equals, value in directories
        if equals
    }


def escaped(text: str) -> str:
    """Return a text as Hive and Spark have it in the name of a directory."""
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)


def unescaped(text: str) -> str:
    """Return the text that the name of a directory has."""
    return _CODE.sub(lambda match: chr(int(match[1], 16)), text)


def publish_segment(
    storage: Storage, segment: OpenSegment, fields: Sequence[PartitionField]
) -> tuple[SegmentFile, ...]:
    """Seal a segment and publish its good records, as `publish_partitions` does; it blocks."""
    if not segment.good:
        segment.discard()
        return ()
    if fields:
        return publish_partitions(storage, segment, fields)
    return (publish(storage, segment),)


def publish_partitions(
    storage: Storage, segment: OpenSegment, fields: Sequence[PartitionField]
) -> tuple[SegmentFile, ...]:
    """Seal a segment and publish its records, a file for each partition; it blocks.

    Some files are published at the same time, in any order: no reader knows them before an entry
    names them, which is written when all are durable. Those of a run that is killed meanwhile are
    named nowhere, and the next run finds them by the name that they have in common.

    If publishing is refused, the segment is gone, and no file is under way any more. A value that
    no directory can keep is a CheckpointError, and so are too many partitions.
    """

    def published(path: Path, directory: str) -> SegmentFile:
        rows, size = pq.read_metadata(path).num_rows, path.stat().st_size
        name = f"{SEGMENTS}/{directory}/{sealed.path.name}"
        storage.publish(path, name)
        return SegmentFile(name, rows, size)

    with publish_errors(storage, segment):
        sealed = segment.seal()
        try:
            directories, of_row = _directories(sealed.path, fields)
        except _UnkeptError as error:
            segment.discard()
            raise CheckpointError(f"{storage.location} cannot be continued: {error}") from None
        found: list[Future[SegmentFile]] = []
        with ThreadPoolExecutor(_AT_ONCE, "fanout-partitions") as threads:
            for path, directory in _split(sealed.path, directories, of_row):
                found.append(threads.submit(published, path, directory))
                if len(found) >= _AT_ONCE:
                    found[-_AT_ONCE].result()  # no more files than these are on the disk
        files = tuple(each.result() for each in found)
        sealed.path.unlink(missing_ok=True)
        return files


class _UnkeptError(ValueError):
    """A directory cannot keep a value, or there are too many."""


def _directories(path: Path, fields: Sequence[PartitionField]) -> tuple[list[str], pa.ChunkedArray]:
    """Return the directories of a file's records, sorted, and for each record the number of its."""
    with pq.ParquetFile(path) as file:
        table = file.read(columns=[field.column for field in fields])
    directories = [""]
    of_row: Any = None
    for field in fields:
        keys = _KEYS[field.transform](table.column(field.column)).combine_chunks()
        keys = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
        encoded = keys.dictionary_encode("encode")
        numbers, values = encoded.indices.cast(pa.int64()), encoded.dictionary
        if of_row is not None:
            pairs = pc.add(pc.multiply(of_row, len(values)), numbers).dictionary_encode()
            numbers, pairs = pairs.indices.cast(pa.int64()), pairs.dictionary.to_pylist()
        else:
            pairs = range(len(values))
        if len(pairs) > MAX_PARTITIONS:
            raise _UnkeptError(
                f"the records of a file would be in more than {MAX_PARTITIONS:,} directories by "
                f"{field.name}; take a column that has fewer values, or fill smaller files by "
                f"max_records or max_bytes"
            )
        names = [f"{escaped(field.name)}={_text(value, field)}" for value in _known(values, field)]
        directories = [
            f"{directories[pair // len(names)]}/{names[pair % len(names)]}" for pair in pairs
        ]
        if any(len(name.encode()) > _MAX_DIRECTORY_BYTES for name in directories):
            raise _UnkeptError(
                f"a record has texts in columns of partition_by that are longer than "
                f"{_MAX_DIRECTORY_BYTES} bytes together; take fewer columns"
            )
        of_row = numbers
    order = sorted(range(len(directories)), key=directories.__getitem__)
    place = dict(zip(order, range(len(order)), strict=True))
    ranks = pa.array([place[number] for number in range(len(order))], pa.int32())
    return [directories[number][1:] for number in order], ranks.take(of_row)


def _day(times: pa.ChunkedArray) -> pa.ChunkedArray:
    return _clipped(times).cast(pa.date32())


def _hour(times: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.floor_temporal(_clipped(times), unit="hour").cast(pa.timestamp("s"))


def _clipped(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return times in UTC without a zone, of years with four digits."""
    unit = pa.timestamp(times.type.unit)
    numbers = times.cast(pa.int64())
    if times.type.unit != "ns":  # which count from 1677 to 2262
        first, last = (pa.scalar(limit, unit).cast(pa.int64()) for limit in (_FIRST, _LAST))
        numbers = pc.max_element_wise(numbers, first, skip_nulls=False)
        numbers = pc.min_element_wise(numbers, last, skip_nulls=False)
    return numbers.cast(unit)


_KEYS: Final[dict[str, Callable[[pa.ChunkedArray], pa.ChunkedArray]]] = {
    "identity": lambda values: values,
    "day": _day,
    "hour": _hour,
}


def _known(values: pa.Array, field: PartitionField) -> list[Any]:
    try:
        return values.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError):
        raise _UnkeptError(
            f"a record has a day in the column {field.column} that is before the year 1 or after "
            f"9999; let decode put null or another day there"
        ) from None


def _text(value: Any, field: PartitionField) -> str:
    """Return a value as the name of a directory has it."""
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat("-", "hours")
    text = str(value)
    if text in {"", _NULL}:
        what = "an empty text" if not text else f"the text {_NULL}"
        raise _UnkeptError(
            f"a record has {what} in the column {field.column}, which readers of directories and "
            f"of Delta take for null; let decode put null or another text there"
        )
    name = escaped(text)
    if len(escaped(field.name).encode()) + 1 + len(name.encode()) > _MAX_COMPONENT_BYTES:
        raise _UnkeptError(
            f"a record has a text in the column {field.column} that is too long for the name of a "
            f"directory, which has {_MAX_COMPONENT_BYTES} bytes at most; take another column"
        )
    return name


def _split(path: Path, directories: Sequence[str], of_row: pa.Array) -> Iterator[tuple[Path, str]]:
    """Write a file for each directory when its turn comes, with the records in their order.

    All records are in memory meanwhile: a segment has a bound.
    """
    if len(directories) == 1:
        yield path, directories[0]
        return
    pieces: list[list[pa.Table]] = [[] for _ in directories]
    with pq.ParquetFile(path) as file:
        groups = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
        schema, longest = file.schema_arrow, max(group.num_rows for group in groups)
        begins = accumulate((group.num_rows for group in groups), initial=0)
        for group, begin in zip(range(len(groups)), begins, strict=False):
            numbers = of_row.slice(begin, groups[group].num_rows)
            order = pc.sort_indices(numbers)  # it keeps the order of equal ones
            rows = file.read_row_group(group).combine_chunks().take(order)
            runs = pc.run_end_encode(numbers.take(order))
            begin_of_run = 0
            for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
                pieces[number].append(rows.slice(begin_of_run, end - begin_of_run))
                begin_of_run = end
    columns = [groups[0].column(each) for each in range(groups[0].num_columns)]
    options = write_options(schema, "none")
    options["compression"] = {
        one.path_in_schema: "none" if one.compression == "UNCOMPRESSED" else one.compression
        for one in columns
    }
    for number, directory in enumerate(directories):
        part = path.with_name(f"{number}-{path.name}")
        with pq.ParquetWriter(part, schema, **options) as writer:
            writer.write_table(pa.concat_tables(pieces[number]), row_group_size=longest)
        yield part, directory
