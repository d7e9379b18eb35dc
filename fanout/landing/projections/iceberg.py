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
from fanout.landing.projections.table_projection import ConflictError
from fanout.landing.segments.segments import write_options

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
        self._described = {"fanout.landing": files.identity()}
        self._key = f"fanout.{self._described['fanout.landing']}.entry"
        self._catalog: Any = None
        self._table: Any = None

    @cached_property
    def _columns(self) -> pa.Schema:
        return table_schema(self._files.columns.schema, "Iceberg", pa.types.is_time64)

    def newest(self, *, make: bool = True) -> int:
        """Look at the table; make it in the first call, and bring its columns up to date."""
        if re.search("[#?]", self._files.root):
            raise OptionError("the location has a # or a ?: take another")
        found = self._load()
        if found is None and self._table is not None:
            raise OptionError("it was dropped")
        if self._table is None and make:
            found = self._with_columns(found or self._create())
        if make and found is not None:
            self._check_partitions(found)
        before = found if self._table is None else self._table
        if found is not None and found.metadata.table_uuid != before.metadata.table_uuid:
            raise OptionError("it was replaced by another table of its name")
        self._table = found
        return -1 if found is None else int(found.properties.get(self._key, -1))

    def add(self, files: Sequence[SegmentFile], entry: int) -> None:
        """Add files by one snapshot; the number of the entry is in a property of the table."""
        # Snapshots expire, and properties do not.
        with self._transaction() as transaction:
            transaction.set_properties({self._key: str(entry)})
            transaction.add_files(
                [self._uri(file.name) for file in files],
                snapshot_properties={**self._described, "fanout.entry": str(entry)},
                check_duplicate_files=False,  # it reads all manifests
            )

    def remove(self, names: Collection[str]) -> None:
        """Remove files by one snapshot, those that the table names."""
        snapshot, io = self._table.current_snapshot(), self._table.io
        gone = {self._uri(name) for name in names}
        found = [
            entry.data_file
            for manifest in (() if snapshot is None else snapshot.manifests(io))
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
            if entry.data_file.file_path in gone
        ]
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
