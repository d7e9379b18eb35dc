"""An Iceberg table that names the files of a landing; pyiceberg commits to its catalog."""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    ResolveError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import MetricModeTypes, compute_statistics_plan, pyarrow_to_schema
from pyiceberg.schema import promote
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform

from fanout.core.error_text import text_of
from fanout.errors import OptionError
from fanout.landing.projections.table_columns import check_names, table_schema
from fanout.landing.projections.table_projection import (
    FORMER,
    TAKEN_BACK,
    ConflictError,
    NewestEntry,
)
from fanout.landing.segments.segments import SEGMENTS, write_options

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from fanout.landing.projections.table_projection import NamedFiles
    from fanout.landing.segments.partitions import PartitionField
    from fanout.landing.segments.segments import SegmentFile

# Of a table that is made here: each commit writes its metadata anew.
_PROPERTIES: Final = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
}
# The options of obstore that pyiceberg has, with `s3.` before them.
_S3: Final = ("endpoint", "region", "access_key_id", "secret_access_key", "session_token")
_TRANSFORMS: Final[dict[str, Any]] = {
    "identity": IdentityTransform(),
    "day": DayTransform(),
    "hour": HourTransform(),
}
# Where a landing is whose files a table has; see `_property`.
_LOCATION: Final = re.compile(r"fanout\.([0-9a-f]{32})\.location")
# In a commit that is made again, pyiceberg first looks at the table anew.
_STOPPED: Final = {"commit.retry.num-retries": "1", "commit.retry.min-wait-ms": "0"}


@final
@dataclass(frozen=True, slots=True)
class IcebergTable:
    """An Iceberg table of what is landed, for `fanout.land`.

    Its catalog is one that pyiceberg loads by name: from `.pyiceberg.yaml`, from the environment,
    or from `properties`. A table that does not exist is made, with its namespace. The files stay
    where they are, and each entry that has some is one commit.

    Args:
        catalog: The name of the catalog.
        table: The name of the table, with its namespace: `"db.orders"`.
        properties: Properties of the catalog, such as `{"type": "rest", "uri": "https://..."}`.
    """

    catalog: str
    table: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def open(self, files: NamedFiles) -> _Iceberg:
        """Return the table of a landing; nothing is asked of the catalog yet."""
        return _Iceberg(self, files)


@final
class _Iceberg:
    """The table; see `Table`."""

    def __init__(self, option: IcebergTable, files: NamedFiles) -> None:
        self.name = f"the Iceberg table {option.table} of {option.catalog}"
        self._option = option
        self._files = files
        self._identity = files.identity()
        self._described = {"fanout.landing": self._identity}
        self._catalog: Any = None
        self._table: Any = None

    @cached_property
    def _columns(self) -> pa.Schema:
        return table_schema(self._files.columns.schema, "Iceberg", pa.types.is_time64)

    def newest(self, *, make: bool = True) -> NewestEntry:
        """Look at the table; make it in the first call, and bring its columns up to date."""
        if re.search("[#?]", self._files.root):
            raise OptionError("the location has a # or a ?: take another")
        found = self._load()
        if found is None and self._table is not None:
            raise OptionError("it was dropped")
        newest = NewestEntry() if found is None else self._newest(found)
        if self._table is None and make:
            found = self._with_columns(found or self._create())
        if make and found is not None:
            self._check_partitions(found)
        before = found if self._table is None else self._table
        if found is not None and found.metadata.table_uuid != before.metadata.table_uuid:
            raise OptionError("it was replaced by another table of its name")
        self._table = found
        return newest

    def _newest(self, table: Any) -> NewestEntry:
        """Return what a table has, unless its files are not those that it had with that."""
        stored = table.properties
        number = int(stored.get(_property(self._identity, "entry"), -1))
        if number < 0:
            self._check_no_files(table)
            return NewestEntry()
        if self._is_taken_back(table.metadata, number):
            raise OptionError(TAKEN_BACK.format(number))
        checksum = stored.get(_property(self._identity, "checksum"))
        return NewestEntry(number, None if checksum is None else int(checksum))

    def _check_no_files(self, table: Any) -> None:
        """Check that a table without an entry of this landing has none of one that was here."""
        for key, value in table.properties.items():
            match = _LOCATION.fullmatch(key)
            if match and value == self._files.root:
                last = table.properties.get(_property(match[1], "entry"))
                raise OptionError(FORMER.format(f"the entries up to {last} of {match[1]}"))
        for file in _data_files(table):
            if file.file_path.startswith(self._uri(f"{SEGMENTS}/")):
                raise OptionError(FORMER.format(file.file_path))

    def _is_taken_back(self, metadata: Any, number: int) -> bool:
        """Say whether the rows of an entry have left a table by a change of its snapshot."""
        others = {one.snapshot_id: one for one in metadata.snapshots}
        at, oldest = metadata.current_snapshot_id, 0
        while (one := others.pop(at, None)) is not None:
            entry = self._entry_of(one)
            if entry is not None:
                return entry != number
            at, oldest = one.parent_snapshot_id, one.sequence_number or 0
        # The snapshot of the entry has expired, or is none that led to the current one.
        later = (one for one in others.values() if (one.sequence_number or 0) > oldest)
        return any(self._entry_of(one) is not None for one in later)

    def _entry_of(self, snapshot: Any) -> int | None:
        """Return up to which entry of this landing a snapshot has added files, if it has."""
        summary = snapshot.summary
        if summary is None or summary["fanout.landing"] != self._identity:
            return None
        entry = summary["fanout.entry"]
        return None if entry is None else int(entry)

    def add(self, files: Sequence[SegmentFile], newest: NewestEntry) -> None:
        """Add files by one snapshot; the number of the entry is in a property of the table."""
        # Snapshots expire, and properties do not.
        stored = {"entry": newest.number, "checksum": newest.checksum, "location": self._files.root}
        with self._transaction() as transaction:
            transaction.set_properties(
                {
                    _property(self._identity, name): str(value)
                    for name, value in stored.items()
                    if value is not None
                }
            )
            transaction.add_files(
                [self._uri(file.name) for file in files],
                snapshot_properties={**self._described, "fanout.entry": str(newest.number)},
                check_duplicate_files=False,  # it reads all manifests
            )

    def remove(self, names: Collection[str]) -> None:
        """Remove files by one snapshot, those that the table names."""
        gone = {self._uri(name) for name in names}
        found = [file for file in _data_files(self._table) if file.file_path in gone]
        if found:
            with self._transaction() as transaction:
                update = transaction.update_snapshot(self._described)
                with update.overwrite() as overwrite:
                    for file in found:
                        overwrite.delete_data_file(file)

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """Change the table as it was looked at, or not at all.

        pyiceberg would make the change again after that of another writer, which may be a run that
        has added the same entry. Before that it reads the table again. There it is stopped: where
        its commit fails in another way, it takes it for certain that nothing was written, and
        deletes files that a commit whose answer was lost needs.
        """

        def refresh() -> NoReturn:
            raise ConflictError

        table = self._table
        table.refresh = refresh
        table.metadata = table.metadata.model_copy(
            update={"properties": {**table.metadata.properties, **_STOPPED}}
        )
        transaction = table.transaction()
        try:
            yield transaction
        except FileNotFoundError as error:
            raise OptionError("an engine has deleted a file that the landing names") from error
        except (ValueError, TypeError) as error:
            if type(error) in {ValueError, TypeError}:  # and none of Arrow's, of a bad read
                raise OptionError(f"it takes no file of the landing: {text_of(error)}") from error
            raise
        try:
            transaction.commit_transaction()
        except CommitFailedException as error:
            raise ConflictError from error

    def _load(self) -> Any:
        if self._catalog is None:
            options = self._files.storage_options
            found = {f"s3.{one.replace('_', '-')}": options[one] for one in _S3 if one in options}
            found.update(self._option.properties)
            self._catalog = load_catalog(self._option.catalog, **found)
        try:
            return self._catalog.load_table(self._option.table)
        except NoSuchTableError:
            return None

    def _create(self) -> Any:
        """Make the table; if another run is faster, it is that one."""
        columns, namespace = self._columns, self._option.table.rpartition(".")[0]
        self._catalog.create_namespace_if_not_exists(namespace)
        table, properties, partitions = self._option.table, self._properties(), self._partitions()
        if not partitions:
            return self._catalog.create_table_if_not_exists(
                table, schema=columns, properties=properties
            )
        with suppress(TableAlreadyExistsError, CommitFailedException):
            making = self._catalog.create_table_transaction(
                table, schema=columns, properties=properties
            )
            with making as transaction, transaction.update_spec() as spec:
                for one in partitions:
                    spec.add_field(one.column, _TRANSFORMS[one.transform], one.name)
        return self._catalog.load_table(table)

    def _partitions(self) -> list[PartitionField]:
        """Return the partitions that the table has: an hour tells the day, and none is by date."""
        found = [one for one in self._files.columns.partitions if not one.is_date]
        hours = {one.column for one in found if one.transform == "hour"}
        return [one for one in found if one.transform != "day" or one.column not in hours]

    def _check_partitions(self, table: Any) -> None:
        """Check that the table is partitioned as the files are, and that it can tell by which."""
        schema = table.schema()
        there = [(one.source_id, str(one.transform)) for one in table.spec().fields]
        wanted = self._partitions()
        ids = {one.column: schema.find_field(one.column).field_id for one in wanted}
        if there != [(ids[one.column], one.transform) for one in wanted]:
            names = " and ".join(one.text for one in wanted) or "nothing"
            raise OptionError(f"it must be partitioned by {names}")
        plan = compute_statistics_plan(schema, table.properties)
        for name, number in ids.items():
            if plan[number].mode.type not in {MetricModeTypes.FULL, MetricModeTypes.TRUNCATE}:
                raise OptionError(
                    f"its property write.metadata.metrics.column.{name} lets it have no limits of "
                    f"the column, by which files have partitions"
                )

    def _properties(self) -> dict[str, str]:
        """Say which columns have statistics in the files: pyiceberg warns of others in each."""
        described = write_options(self._files.columns.schema, "zstd")["write_statistics"]
        metrics = "write.metadata.metrics"
        return {
            **_PROPERTIES,
            f"{metrics}.default": "none",
            **{f"{metrics}.column.{name}": "truncate(16)" for name in described},
        }

    def _with_columns(self, table: Any) -> Any:
        """Add the columns that the landing has, and the table has not; it may know them renamed."""
        mapping = table.metadata.name_mapping()
        known = {*table.schema().column_names}
        if mapping is not None:
            known.update(name for one in mapping.root for name in one.names)
        added = pa.schema([field for field in self._columns if field.name not in known])
        check_names(added.names, known)
        self._compare(table)
        if len(added):
            with table.update_schema() as update:
                update.union_by_name(added)
        return table

    def _compare(self, table: Any) -> None:
        """Check that columns have the types of the table: pyiceberg prints what differs."""
        schema = table.schema()
        there = {one.name: one for one in schema.fields}
        may_be_null = {one.name: one.nullable for one in self._files.columns.schema}
        for name, one in there.items():
            if one.required and may_be_null.get(name, True):
                raise OptionError(f"its column {name} is required, and the landing may have none")
        same = pa.schema([one for one in self._columns if one.name in there])
        for one in pyarrow_to_schema(same, schema.name_mapping).fields:
            kind = there[one.name].field_type
            if one.field_type == kind or not kind.is_primitive:
                continue
            try:
                promote(one.field_type, kind)
            except ResolveError as error:
                kinds = f"{kind}, and that of the landing {one.field_type}"
                raise OptionError(f"its column {one.name} is {kinds}") from error

    def _uri(self, name: str) -> str:
        return f"{self._files.root}/{name}"


def _property(identity: str, name: str) -> str:
    """Return the property of a table that has something of a landing."""
    return f"fanout.{identity}.{name}"


def _data_files(table: Any) -> Iterator[Any]:
    """Yield the files that a table names."""
    snapshot, io = table.current_snapshot(), table.io
    for manifest in () if snapshot is None else snapshot.manifests(io):
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=True):
            yield entry.data_file
