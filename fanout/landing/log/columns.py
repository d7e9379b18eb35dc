"""The identity and the columns of a landing, which readers know it by."""

from __future__ import annotations

import base64
import binascii
import logging
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from fanout.core.record_decoder import reader_of, with_stored_reader
from fanout.core.sentence import Option, Sentence
from fanout.core.stored_json import StoredFormat
from fanout.errors import CheckpointError, OptionError, PositionError
from fanout.landing.claims import create_owned
from fanout.landing.log.entries import MAX_ENTRY_BYTES, ORIGIN
from fanout.landing.segments.partitions import PartitionField
from fanout.landing.segments.segments import SEGMENTS, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fanout.core.source import Source
    from fanout.landing.claims import Ownership
    from fanout.landing.log.entries import EntryLog
    from fanout.landing.storage.storage import LandingStorage, Storage, StoredFiles

IDENTITY: Final = "landing.json"
_MAX_BYTES: Final = 1024 * 1024
_VERSION: Final = 1


@final
@dataclass(frozen=True, slots=True)
class LandingIdentity:
    """A landing, as readers know it again."""

    id: str  # a random text that was chosen when the landing was started
    schema: pa.Schema  # the columns of its records at the beginning; see `LandedColumns`


class _IdentityWire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
    schema: str


_IDENTITY_FORMAT: Final = StoredFormat(
    wire=_IdentityWire,
    max_size=_MAX_BYTES,
    error=CheckpointError,
    version=_VERSION,
    hint="restore this file alone from a backup",
)


def give_identity(storage: Storage, schema: pa.Schema) -> None:
    """Give a landing an identity, with the columns of its records, if it has none. It blocks."""
    if storage.read(IDENTITY, limit=_MAX_BYTES) is None:
        wire = _IdentityWire(_VERSION, uuid.uuid4().hex, encode_schema(schema))
        with suppress(FileExistsError):  # another run was faster, and its identity holds
            storage.create(IDENTITY, msgspec.json.encode(wire))


def read_identity(files: StoredFiles) -> LandingIdentity:
    """Return the identity of a landing. It blocks.

    Where there is no landing, that is an OptionError; one without an identity is a CheckpointError.
    """
    if (found := stored_identity(files)) is not None:
        return found
    if files.read(ORIGIN, limit=MAX_ENTRY_BYTES) is None:
        raise OptionError(
            f"there is no landing at {files.location}: start one with fanout.land, or with "
            f"`fanout land`"
        )
    raise CheckpointError(
        f"{files.location} has no {IDENTITY}: it was landed by an older version of fanout; start "
        f"fanout.land or `fanout land` of this version there, which adds the file"
    )


def stored_identity(files: StoredFiles) -> LandingIdentity | None:
    """Return the identity of a landing; None where there is none. It blocks."""
    data = files.read(IDENTITY, limit=_MAX_BYTES)
    if data is None:
        return None
    what = f"{IDENTITY} in {files.location}"
    wire = _IDENTITY_FORMAT.read(data, what)
    return LandingIdentity(wire.id, decode_schema(wire.schema, _IDENTITY_FORMAT, what))


def encode_schema(schema: pa.Schema) -> str:
    """Return columns as text."""
    return base64.b64encode(schema.remove_metadata().serialize()).decode()


def decode_schema(text: str, form: StoredFormat[Any], what: str) -> pa.Schema:
    """Return the columns that a text stands for; the form and the file `what` are for errors."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (pa.ArrowException, OSError, binascii.Error) as error:
        raise form.damaged(what, "its columns cannot be read") from error


COLUMNS: Final = "columns"
_LOG: Final = logging.getLogger(__name__)
_OUT: Final = "or land to another location"
_OR_IGNORE: Final = Sentence.of(", or read with the schema of before by {new_columns='ignore'}")


@final
@dataclass(frozen=True, slots=True)
class LandedColumns:
    """What the records of a landing look like, and where its files are."""

    schema: pa.Schema
    partitions: tuple[PartitionField, ...] = ()  # the directories of its files
    reader: str = ""  # the schema that `decode` read with, as text; empty for none


class _ColumnsWire(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    version: Literal[1]
    schema: str
    by_date: bool
    date_of: Annotated[str, msgspec.Meta(max_length=10_000)]
    reader: str = ""
    partition_by: tuple[str, ...] = ()  # other directories than those by date

    def partitions(self, names: Sequence[str]) -> tuple[PartitionField, ...]:
        if self.by_date:
            return (PartitionField.by_date(self.date_of),)
        return tuple(PartitionField.of(text, names) for text in self.partition_by)


_FORMAT: Final = StoredFormat(
    wire=_ColumnsWire,
    max_size=_MAX_BYTES,
    error=CheckpointError,
    version=_VERSION,
    hint="restore it from a backup",
)


def landed_schema(files: StoredFiles) -> pa.Schema:
    """Return the columns of a landing's records, those that were added included. It blocks.

    Where there is no landing, that is an OptionError.
    """
    first = read_identity(files).schema
    stored, _ = _stored(files)
    return first if stored is None else stored.schema


def stored_columns(files: StoredFiles) -> LandedColumns | None:
    """Return the columns of a landing that are stored; None where there are none. It blocks."""
    return _stored(files)[0]


def stored_reader(files: StoredFiles) -> str:
    """Return the schema that a landing was read with; empty where there is none. It blocks."""
    landed = stored_columns(files)
    return "" if landed is None else landed.reader


def with_reader_of_start(
    storage: Storage, source: Source
) -> tuple[Source, Callable[[Ownership], None]]:
    """Return what a query reads with, and what stores that for the next run. Both block.

    Columns of before that are missing, or have another type, are a CheckpointError.
    """
    stored, number = _stored(storage)
    before = "" if stored is None else stored.reader
    remedy = f"delete {storage.location}/{COLUMNS} to go on with the columns of this one"
    try:
        source = with_stored_reader(source, before, remedy)
    except PositionError as error:
        raise CheckpointError(f"{storage.location} cannot be continued: ", error) from error
    reader = reader_of(getattr(source, "decode", None))
    columns = LandedColumns(pa.schema([]), reader=reader)  # the schema has its columns

    def keep(ownership: Ownership) -> None:
        if reader not in {"", before} and len(_encoded(columns)) <= _MAX_BYTES:
            keep_columns(storage, ownership, columns, number)

    return source, keep


def continued(
    storage: LandingStorage,
    log: EntryLog,
    schema: pa.Schema,
    partitions: tuple[PartitionField, ...],
    reader: str,
) -> tuple[LandedColumns, int | None]:
    """Return the columns of a landing with those of a run, before the run has written. It blocks.

    `partitions` are the directories that the run makes, and `reader` is the schema that it reads
    with. With the columns comes the number under which `keep_columns` is to store them; None where
    the same are stored already.

    Raises:
        OptionError: The run would put files elsewhere than the runs before, or has a column that
            Parquet cannot keep.
        CheckpointError: The run lacks a column, or has another type, or adds a column that is never
            null; or the storage refused.
    """
    schema = schema.remove_metadata()
    _check_parquet(schema)
    stored, number = _stored(storage)
    landed = stored or _inferred(storage, log, schema)
    if landed is None:
        return LandedColumns(schema, partitions, reader), number
    _check_directories(storage.location, landed.partitions, partitions)
    added = _added(storage.location, landed, schema)
    columns = LandedColumns(pa.schema([*landed.schema, *added]), partitions, reader)
    return columns, None if columns == stored else number


def _check_parquet(schema: pa.Schema) -> None:
    for field in schema:
        try:
            pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
        except (pa.ArrowException, OSError) as error:  # some are errors of the operating system
            raise OptionError(
                f"the column {field.name!r} is {field.type}, which Parquet cannot keep: let decode "
                f"cast it to another type, or leave it out"
            ) from error


def keep_columns(
    storage: Storage, ownership: Ownership, columns: LandedColumns, number: int
) -> None:
    """Store the columns of a landing under the number of `continued`. It blocks.

    Call it when this run has written an entry, and before it writes records.
    """
    create_owned(storage, ownership, _name(number), _encoded(columns))


def _encoded(columns: LandedColumns) -> bytes:
    """Return what a file has of columns."""
    schema = encode_schema(columns.schema)
    date = next((one for one in columns.partitions if one.is_date), None)
    others = () if date else tuple(one.text for one in columns.partitions)
    date_of = date.column if date else ""
    wire = _ColumnsWire(_VERSION, schema, date is not None, date_of, columns.reader, others)
    return msgspec.json.encode(wire)


def _check_directories(
    location: str, landed: tuple[PartitionField, ...], given: tuple[PartitionField, ...]
) -> None:
    if given == landed or (landed and not landed[0].column and given[:1] and given[0].is_date):
        return
    for one, before in zip(given, landed, strict=False):
        if one.transform == "identity" and one.text == before.text and not before.is_date:
            raise OptionError(
                Option("partition_by", one.text),
                f" is a new column by now, and {location} has files in directories by the "
                f"{before.transform} of {before.column}: let decode give that column another name, "
                f"or leave it out with ",
                Option("new_columns", "ignore"),
            )
    mixed = "most readers of a directory leave records out where the two are mixed"
    if not landed:
        option = _option(given)
        raise OptionError(
            option,
            f" must be left out: {location} has all files in one directory, and {mixed}; leave ",
            Option(option.name),
            f" out, {_OUT}",
        )
    was = _option(landed)
    if given and given[0].is_date and landed[0].is_date:
        raise OptionError(
            _option(given),
            f" must be {was.value}: {location} has files in directories by the date of that "
            f"column, and a query that names a date would miss records; give that column, {_OUT}",
        )
    value = was.value if landed[0].column else "the column with times of before"
    kind = "by date" if landed[0].is_date else "by these"
    raise OptionError(
        Option(was.name),
        f" must be {value}: {location} has files in directories {kind}, and {mixed}; give ",
        Option(was.name),
        f", {_OUT}",
    )


def _option(partitions: tuple[PartitionField, ...]) -> Option:
    """Return the option that asks for directories."""
    if partitions[0].is_date:
        return Option("partition_by_date", partitions[0].column)
    return Option("partition_by", " and ".join(one.text for one in partitions))


def _added(location: str, landed: LandedColumns, schema: pa.Schema) -> list[pa.Field]:
    """Return the columns that are new."""
    for field in landed.schema:
        found = schema.field(field.name) if field.name in schema.names else None
        if found is None or found.type != field.type:
            has = "does not have it" if found is None else f"has {found.type}"
            raise CheckpointError(
                f"{location} cannot be continued: its records have the column {field.name} of type "
                f"{field.type}, and this source {has}; let decode return all columns of before, to "
                f"which it may add some that can be null, {_OUT}",
                _OR_IGNORE if found is None and landed.reader else "",
            )
        if found.nullable and not field.nullable:
            raise CheckpointError(
                f"{location} cannot be continued: the column {field.name} of its records is never "
                f"null, and this source says that it may be; let decode return it as before, {_OUT}"
            )
    added = [field for field in schema if field.name not in landed.schema.names]
    if never := [field.name for field in added if not field.nullable]:
        raise CheckpointError(
            f"{location} cannot be continued: the column {', '.join(never)} is new and never null, "
            f"and the records that are there lack it; let decode say that it may be null, {_OUT}"
        )
    _check_case(location, landed.schema, added)
    return added


def _check_case(location: str, landed: pa.Schema, added: list[pa.Field]) -> None:
    """Refuse a new column whose name differs from another one's in case alone."""
    names = {name.lower(): name for name in landed.names}
    for field in added:
        if (other := names.setdefault(field.name.lower(), field.name)) != field.name:
            raise CheckpointError(
                f"{location} cannot be continued: the column {field.name} is new, and Spark takes "
                f"its name for that of {other}; let decode give it another name, {_OUT}"
            )


def _inferred(storage: LandingStorage, log: EntryLog, given: pa.Schema) -> LandedColumns | None:
    """Return what the newest file has, of a version that stored nothing; None without files.

    A type that Parquet lacks, such as times in whole seconds, is the one that is given now.
    """
    entries = log.newest_first(range(log.oldest(), log.next_number))
    file = next((entry.segments[-1].name for entry in entries if entry.segments), None)
    if file is None:
        return None
    try:
        with pq.ParquetFile(storage.open(file)) as parquet:
            schema = _as_given(parquet.schema_arrow.remove_metadata(), given)
    except FileNotFoundError:
        return None  # somebody deletes old files
    except (OSError, pa.ArrowException) as error:
        raise CheckpointError(f"cannot read {storage.location}/{file}: ", error) from error
    _warn_of_mixture(storage, schema)
    return LandedColumns(schema, (PartitionField.by_date(""),) if _is_by_date(file) else ())


def _as_given(found: pa.Schema, given: pa.Schema) -> pa.Schema:
    """Return the columns of a file, those as they are given that Parquet stores as it has them."""
    sink = pa.BufferOutputStream()
    pq.write_table(given.empty_table(), sink)
    stored = pq.read_schema(pa.BufferReader(sink.getvalue()))
    same = {field.name for field in stored if field in [*found]}
    return pa.schema([given.field(one.name) if one.name in same else one for one in found])


def _warn_of_mixture(storage: LandingStorage, schema: pa.Schema) -> None:
    """Say so if a version that compared nothing has mixed a landing."""
    names = [name for name in storage.walk(SEGMENTS) if place_of(name.rpartition("/")[2])]
    identity = stored_identity(storage)
    by_date = sum(map(_is_by_date, names))
    differs = identity is not None and not _fits(LandedColumns(identity.schema), schema)
    if differs or 0 < by_date < len(names):
        what = "records with different columns" if differs else "files in and out of directories"
        _LOG.warning(
            "%s has %s, of runs with other options: most readers of its directory leave records "
            "out or end with an error; fanout.followed yields all, so that they can be written to "
            "another location",
            storage.location,
            what,
        )


def _fits(landed: LandedColumns, schema: pa.Schema) -> bool:
    try:
        _added("", landed, schema)
    except CheckpointError:
        return False
    return True


def _is_by_date(name: str) -> bool:
    return name.startswith(f"{SEGMENTS}/date=")


def _stored(files: StoredFiles) -> tuple[LandedColumns | None, int]:
    """Return the newest columns that are stored, if any, and the number after theirs."""
    found: LandedColumns | None = None
    number = 0
    while (data := files.read(_name(number), limit=_MAX_BYTES)) is not None:
        what = f"{_name(number)} in {files.location}"
        wire = _FORMAT.read(data, what)
        schema = decode_schema(wire.schema, _FORMAT, what)
        found = LandedColumns(schema, wire.partitions(schema.names), wire.reader)
        number += 1
    return found, number


def _name(number: int) -> str:
    return f"{COLUMNS}/{number:012}.json"
