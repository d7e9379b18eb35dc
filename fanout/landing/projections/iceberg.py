"""An Iceberg table that names the files of a landing; pyiceberg commits to its catalog."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

import pyarrow as pa

from fanout._exports import naming_extras
from fanout.core.error_text import text_of
from fanout.errors import OptionError
from fanout.landing.projections.table_columns import table_schema
from fanout.landing.projections.table_projection import ConflictError
from fanout.landing.segments.segments import write_options

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from fanout.landing.projections.table_projection import NamedFiles
    from fanout.landing.segments.segments import SegmentFile

# Of a table that is made here: a commit writes its metadata anew, and reads all of its manifests'
# names.
_PROPERTIES: Final = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
}
# What pyiceberg calls the options of obstore.
_S3: Final = {
    "endpoint": "s3.endpoint",
    "region": "s3.region",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
}
# In a commit that is made again, pyiceberg first looks at the table anew.
_STOPPED: Final = {"commit.retry.num-retries": "1", "commit.retry.min-wait-ms": "0"}
_ENTRY: Final = "fanout.entry"


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
        with naming_extras("an Iceberg table"):
            import pyiceberg.catalog  # noqa: F401, PLC0415 - pyiceberg is optional
        return _Iceberg(self, files)


@final
class _Iceberg:
    """The table; see `Table`."""

    def __init__(self, option: IcebergTable, files: NamedFiles) -> None:
        self.name = f"the Iceberg table {option.table} of {option.catalog}"
        self._option = option
        self._files = files
        self._key = f"fanout.{files.landing}.entry"
        self._catalog: Any = None
        self._table: Any = None

    @cached_property
    def _columns(self) -> pa.Schema:
        return table_schema(self._files.columns.schema, "Iceberg", pa.types.is_time64)

    def stored(self) -> int | None:
        """Return the newest entry that the table has, as it is now; None if it has none."""
        table = self._load()
        entry = None if table is None else table.properties.get(self._key)
        return None if entry is None else int(entry)

    def newest(self) -> int:
        """Look at the table; make it in the first call, if there is none."""
        found = self._load()
        if found is None:
            if self._table is not None:
                raise OptionError("it was dropped")
            found = self._create()
        if self._table is None:
            found = self._with_columns(found)
        elif found.metadata.table_uuid != self._table.metadata.table_uuid:
            raise OptionError("it was replaced by another table of its name")
        self._table = found
        return int(found.properties.get(self._key, -1))

    def add(self, files: Sequence[SegmentFile], entry: int) -> None:
        """Add files by one snapshot; the number of the entry is in a property of the table."""
        # Snapshots expire, and properties do not.
        with self._transaction() as transaction:
            transaction.set_properties({self._key: str(entry)})
            transaction.add_files(
                [self._uri(file.name) for file in files],
                snapshot_properties={"fanout.landing": self._files.landing, _ENTRY: str(entry)},
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
            described = {"fanout.landing": self._files.landing}
            with (
                self._transaction() as transaction,
                transaction.update_snapshot(described).overwrite() as overwrite,
            ):
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
        from pyiceberg.exceptions import CommitFailedException  # noqa: PLC0415 - it is optional

        def refresh() -> NoReturn:
            raise ConflictError

        table = self._table
        table.refresh = refresh
        table.metadata = table.metadata.model_copy(
            update={"properties": {**table.metadata.properties, **_STOPPED}}
        )
        try:
            with table.transaction() as transaction:
                yield transaction
        except CommitFailedException as error:
            raise ConflictError from error
        except (ValueError, TypeError) as error:
            raise OptionError(f"it takes no files of the landing: {text_of(error)}") from error

    def _load(self) -> Any:
        from pyiceberg.catalog import load_catalog  # noqa: PLC0415 - pyiceberg is optional
        from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - the same

        if self._catalog is None:
            options = self._files.storage_options
            found = {_S3[name]: value for name, value in options.items() if name in _S3}
            self._catalog = load_catalog(
                self._option.catalog, **{**found, **self._option.properties}
            )
        try:
            return self._catalog.load_table(self._option.table)
        except NoSuchTableError:
            return None

    def _create(self) -> Any:
        """Make the table; if another run is faster, it is that one."""
        namespace = self._option.table.rpartition(".")[0]
        self._catalog.create_namespace_if_not_exists(namespace)
        try:
            return self._catalog.create_table_if_not_exists(
                self._option.table, schema=self._columns, properties=self._properties()
            )
        except (ValueError, TypeError) as error:
            raise OptionError(f"it cannot be made: {text_of(error)}") from error

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
        if len(added):
            with table.update_schema() as update:
                update.union_by_name(added)
        return table

    def _uri(self, name: str) -> str:
        return f"{self._files.root}/{name}"
