"""A Delta table of the files of a landing, in its own directory; deltalake commits to its log."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final
from urllib.parse import unquote

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction, RemoveAction

from fanout.errors import CheckpointError, OptionError
from fanout.landing.projections.delta_statistics import delta_statistics, has_statistics
from fanout.landing.projections.table_columns import check_names, table_schema
from fanout.landing.projections.table_projection import (
    FORMER,
    TAKEN_BACK,
    ConflictError,
    NewestEntry,
)
from fanout.landing.retention import Retention
from fanout.landing.segments.partitions import partition_values
from fanout.landing.segments.segments import SEGMENTS, run_of
from fanout.landing.storage.storage import DELTA_LOG

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from fanout.landing.projections.table_projection import NamedFiles
    from fanout.landing.segments.segments import SegmentFile

_READERS: Final = 16  # of footers
_MAX_COMMIT_BYTES: Final = 1 << 28
_DESCRIBED: Final = "delta.dataSkippingStatsColumns"
# A column in it, quoted or not; its parts follow.
_COLUMN: Final = r"(?:`((?:[^`]|``)+)`|([^,.`]+))(?:[^,`]|`[^`]*`)*"
# Until a request is given up, as those of the landing's own storage are.
_PATIENCE: Final = {"timeout": "30s", "connect_timeout": "5s", "retry_timeout": "12s"}
# What a table may have been altered to, so that its columns or its log are others than they seem.
_REFUSED: Final = {
    "delta.setTransactionRetentionDuration": "forgets which entries it has",
    "delta.columnMapping.mode": "knows its columns by other names than its files do",
}
# What columns may have, that writers of rows must follow.
_RULES: Final = ("delta.invariants", "delta.generationExpression", "delta.identity")


@final
@dataclass(frozen=True, slots=True)
class DeltaTable:
    """A Delta table of what is landed, in its directory `segments`, for `fanout.land`.

    A table that does not exist is made. The files stay where they are, and each entry that has some
    is one commit.

    Args:
        storage_options: Options of deltalake, where those of the landing do not fit.
    """

    storage_options: Mapping[str, str] | None = field(default=None, repr=False)

    def open(self, files: NamedFiles) -> _Delta:
        """Return the table of a landing; nothing is asked of its storage yet."""
        return _Delta(self, files)


@final
class _Delta:
    """The table; see `Table`."""

    def __init__(self, option: DeltaTable, files: NamedFiles) -> None:
        self.name = f"the Delta table {files.root}/{SEGMENTS}"
        given = files.storage_options if option.storage_options is None else option.storage_options
        self._options = {**_PATIENCE, **given}
        if given.get("endpoint", "").startswith("http://"):
            self._options.setdefault("allow_http", "true")
        self._files = files
        # Each is the name of a transaction, whose version says it.
        self._app = f"fanout-{files.identity()}"
        self._checksum = f"{self._app}-checksum"  # of the entry
        self._looked_at = f"{self._app}-version"  # of the table, after which the entry came
        self._partitions = [one.name for one in files.columns.partitions]
        self._table: Any = None

    @cached_property
    def _columns(self) -> pa.Schema:
        return table_schema(self._files.columns.schema, "Delta")

    @cached_property
    def _uri(self) -> str:
        """The table as deltalake names it: it decodes what looks encoded, and cuts off queries."""
        scheme, _, path = f"{self._files.root}/{SEGMENTS}".partition("://")
        on_disk = scheme == "file"
        if re.search("%[0-9A-Fa-f]{2}" if on_disk else "[#?]|%[0-9A-Fa-f]{2}", path):
            raise OptionError("the location has a #, a ?, or a % before two digits: take another")
        scheme = "s3" if scheme in {"s3a", "s3n"} else scheme
        return Path(path).as_uri() if on_disk else f"{scheme}://{path}"

    def newest(self, *, make: bool = True) -> NewestEntry:
        """Look at the table; make it in the first call, and bring its columns up to date."""
        found = self._load()
        if found is None and self._table is not None:
            raise OptionError("it was dropped")
        if found is None and make:
            found = deltalake.DeltaTable.create(
                self._uri,
                self._schema(),
                mode="ignore",  # another run may be faster
                partition_by=self._partitions,
                configuration=self._configuration(),
                storage_options=self._options,
            )
        if self._table is not None and found.metadata().id != self._table.metadata().id:
            raise OptionError("it was replaced by another table")
        newest = NewestEntry() if found is None else self._newest(found)
        if make:
            self._check(found)
        self._table = found
        return newest

    def _newest(self, table: Any) -> NewestEntry:
        """Return what a table has, unless its files are not those that it had with that."""
        number = table.transaction_version(self._app)
        if number is None:
            self._check_no_files(table)
            return NewestEntry()
        looked_at = table.transaction_version(self._looked_at)
        if looked_at is not None and self._is_taken_back(table, looked_at):
            raise OptionError(TAKEN_BACK.format(number))
        return NewestEntry(number, table.transaction_version(self._checksum))

    def _is_taken_back(self, table: Any, version: int) -> bool:
        """Say whether a RESTORE has taken a table back to before its newest entry of this landing.

        That entry was added after a version of the table. A RESTORE takes rows back, but not the
        transactions that name the entry, so the commits since that version are followed back. No
        RESTORE comes between a look at the table and the commit after it: it also sets the
        columns, so that this commit is a conflict.
        """
        target = table.version()  # of which the table has the state
        for number, commit in self._commits(range(version + 1, target + 1)):
            if self._app in commit:
                return bool(number > target)
            if commit.get("operation") == "RESTORE" and number <= target:
                to = str(commit.get("operationParameters", {}).get("version"))
                target = int(to) if to.isdecimal() else version  # there is none of one to a time
        return bool(target <= version)

    def _commits(self, versions: range) -> Iterator[tuple[int, Any]]:
        """Yield what commits say of themselves, newest first; the oldest ones may be deleted.

        deltalake would keep all other threads waiting while it asks a store for its history.
        """
        for version in reversed(versions):
            name = f"{SEGMENTS}/{DELTA_LOG}/{version:020}.json"
            log = self._files.storage.read(name, limit=_MAX_COMMIT_BYTES)
            if log is None:
                return
            actions = map(msgspec.json.decode, log.splitlines())
            yield version, next((one["commitInfo"] for one in actions if "commitInfo" in one), {})

    def _check_no_files(self, table: Any) -> None:
        """Check that a table without an entry of this landing has no file of another one."""
        for path in pa.table(table.get_add_actions()).column("path").to_pylist():
            if run_of(path.rpartition("/")[2]) is not None:
                raise OptionError(FORMER.format(path))

    def _load(self) -> Any:
        try:
            # A table that is brought up to date does not see that it was dropped, or replaced.
            return deltalake.DeltaTable(self._uri, storage_options=self._options)
        except TableNotFoundError:
            return None

    def add(self, files: Sequence[SegmentFile], newest: NewestEntry) -> None:
        """Add files by one commit; the number of the entry is that of its transaction."""
        now = Retention.now()
        with ThreadPoolExecutor(_READERS) as pool:
            actions = [*pool.map(lambda file: self._action(file, now), files)]
        known = [(self._app, newest.number), (self._looked_at, self._table.version())]
        if newest.checksum is not None:
            known.append((self._checksum, newest.checksum))
        transactions = [deltalake.Transaction(app, one, now) for app, one in known]
        self._commit(actions, transactions, {self._app: str(newest.number)})

    def remove(self, names: Collection[str]) -> None:
        """Remove files by one commit, those that the table names."""
        configuration = self._table.metadata().configuration
        for name in ("delta.enableDeletionVectors", "delta.appendOnly"):
            if configuration.get(name) == "true":
                raise CheckpointError(f"it has {name}, so that it does not let go of files")
        gone, now = {name.removeprefix(f"{SEGMENTS}/") for name in names}, Retention.now()
        rows = pa.table(self._table.get_add_actions()).to_pylist()
        removed = [
            RemoveAction(
                path,
                data_change=True,
                deletion_timestamp=now,
                size=row["size_bytes"],
                partition_values=self._values(path),
            )
            for row in rows
            if (path := unquote(row["path"])) in gone
        ]
        if removed:
            self._commit(removed)

    def _commit(
        self,
        actions: Sequence[Any],
        transactions: Sequence[Any] = (),
        described: dict[str, str] | None = None,
    ) -> None:
        known = deltalake.CommitProperties(described, app_transactions=[*transactions])
        try:
            self._table.create_write_transaction(
                [*actions],
                mode="append",
                schema=self._table.schema(),
                partition_by=self._partitions,
                commit_properties=known,
            )
        except CommitFailedError as error:
            raise ConflictError from error

    def _action(self, file: SegmentFile, now: int) -> Any:
        path = file.name.removeprefix(f"{SEGMENTS}/")
        try:
            with pq.ParquetFile(self._files.storage.open(file.name)) as parquet:
                statistics = delta_statistics(parquet.metadata, self._plain(), self._partitions)
                self._compare(file.name, parquet.schema_arrow)
        except FileNotFoundError as error:
            raise OptionError(
                f"an engine has deleted {file.name}, which the landing names"
            ) from error
        values = self._values(path)
        return AddAction(path, file.size, values, now, data_change=True, stats=statistics)

    def _values(self, path: str) -> dict[str, str | None]:
        """Return what the directories of a file say of its records, as Delta's log has it."""
        values = partition_values(path)
        if [*values] != self._partitions:
            names = " and ".join(self._partitions) or "nothing"
            raise OptionError(f"the file {path} is in no directory by {names}, as the table is")
        return values

    def _compare(self, name: str, columns: pa.Schema) -> None:
        """Check that a file has the types of the table: an older one may have others."""
        there = {one.name: one.type for one in self._table.schema().fields}
        for one in deltalake.Schema.from_arrow(table_schema(columns, "Delta")).fields:
            kind = there.get(one.name, one.type)
            if isinstance(kind, PrimitiveType) and one.type != kind:
                raise OptionError(f"its column {one.name} is {kind}, and {one.type} in {name}")

    def _check(self, table: Any) -> None:
        """Check that the table takes the files of the landing; add columns that it lacks."""
        metadata = table.metadata()
        for name, value in metadata.configuration.items():
            if name in _REFUSED and value != "none":
                raise OptionError(f"its property {name} is set, so that it {_REFUSED[name]}")
            if name.startswith("delta.constraints."):
                raise OptionError(f"it has the constraint {name}, which files would pass unchecked")
        if [*metadata.partition_columns] != self._partitions:
            raise OptionError(f"it must be partitioned by {self._partitions or 'nothing'}")
        self._check_rows(table)
        there = {one.name: one.type for one in table.schema().fields}
        check_names([one.name for one in self._schema().fields], there)
        added = []
        for one in self._schema().fields:
            if one.name not in there:
                added.append(one)
            elif one.type != there[one.name]:
                kinds = f"{there[one.name]}, and that of the landing {one.type}"
                raise OptionError(f"its column {one.name} is {kinds}")
        if added and self._table is not None:
            raise OptionError(f"its column {added[0].name} was dropped")
        if added:
            table.alter.add_columns(added)
        self._describe(table)

    def _check_rows(self, table: Any) -> None:
        """Check that the table asks no more of its rows than the landing keeps."""
        may_be_null = {one.name: one.nullable for one in self._files.columns.schema}
        for made in self._files.columns.partitions:
            may_be_null.setdefault(made.name, may_be_null.get(made.column, False))
        for one in table.schema().fields:
            if not one.nullable and may_be_null.get(one.name, True):
                raise OptionError(
                    f"its column {one.name} is NOT NULL, and the landing may have none"
                )
            if ruled := [name for name in one.metadata if name.startswith(_RULES)]:
                raise OptionError(
                    f"its column {one.name} has {ruled[0]}, which files do not follow"
                )

    def _describe(self, table: Any) -> None:
        """Let a table that was not made here say which columns have statistics."""
        described, wanted = table.metadata().configuration, self._configuration()
        if _DESCRIBED not in described:
            if not wanted.items() <= described.items():
                table.alter.set_table_properties(wanted)
            return
        for quoted, plain in re.findall(_COLUMN, described[_DESCRIBED]):
            column = quoted.replace("``", "`") or plain.strip()
            if column in self._columns.names and column not in self._described():
                raise OptionError(
                    f"its property {_DESCRIBED} names {column}, of which files have no statistics"
                )

    def _described(self) -> list[str]:
        described = [field.name for field in self._columns if has_statistics(field.type)]
        return [name for name in described if name not in self._partitions]

    def _configuration(self) -> dict[str, str]:
        """Say which columns have statistics: deltalake skips files that have none of a column."""
        names = self._described()
        if not names:
            return {"delta.dataSkippingNumIndexedCols": "0"}
        return {_DESCRIBED: ",".join(f"`{name.replace('`', '``')}`" for name in names)}

    def _plain(self) -> list[str]:
        """Return the columns of the table that have no parts, and are in its files."""
        fields = self._table.schema().fields
        plain = [one.name for one in fields if isinstance(one.type, PrimitiveType)]
        return [name for name in plain if name not in self._partitions]

    def _schema(self) -> Any:
        made = [
            pa.field(one.name, pa.date32() if one.transform == "day" else pa.string())
            for one in self._files.columns.partitions
            if one.transform != "identity"
        ]
        return deltalake.Schema.from_arrow(pa.schema([*self._columns, *made]))
