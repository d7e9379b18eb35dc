"""Models of a table: a log of versions as Delta's, and a catalog as Iceberg's, at their libraries.

A referee sees every version, and every file that is deleted.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import deltalake
import pyarrow as pa
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.transaction import AddAction
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, LongType, NestedField, StringType

from tests.support.manual_source import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from fanout.core.statistics import TableStatistics

SEGMENTS: Final = "segments"
CALLER: Final[ContextVar[Any]] = ContextVar("the run that calls")


class BrokenRuleError(BaseException):
    """A rule is broken: no error that the library may handle."""


def check(holds: object, message: str) -> None:
    """Check a rule."""
    if not holds:
        raise BrokenRuleError(message)


@dataclass(frozen=True)
class Version:
    """A table, as a reader sees it."""

    files: Mapping[str, frozenset[str]]  # by their names the landed files whose rows they have
    marks: Mapping[str, str] = field(default_factory=dict)  # transactions, or properties
    removed: frozenset[str] = frozenset()
    altered: bool = False
    commit: Mapping[str, Any] = field(default_factory=dict)  # what its commit says of itself
    parent: int | None = None  # the version that it came from


@dataclass(eq=False)
class ModelTable:
    """A table from when it was made until it is dropped."""

    id: str
    referee: Referee
    configuration: dict[str, str] = field(default_factory=dict)
    versions: list[Version] = field(default_factory=lambda: [Version({})])
    added: dict[str, int] = field(default_factory=dict)  # by names of landed files, in which
    dropped: bool = False
    lost: set[str] = field(default_factory=set)  # of those that were added, by being taken back
    foreign: bool = False  # the landing was restored to before an entry that it has
    current: int = 0  # the version that an engine has taken it to, or the newest one

    @property
    def newest(self) -> Version:
        return self.versions[-1]

    def commit(
        self,
        added: Mapping[str, frozenset[str]],
        removed: Collection[str] = (),
        marks: Mapping[str, str] | None = None,
        *,
        altered: bool = False,
        said: Mapping[str, Any] | None = None,
    ) -> None:
        before = self.newest
        files = {name: rows for name, rows in before.files.items() if name not in removed}
        version = Version(
            {**files, **added},
            {**before.marks, **(marks or {})},
            frozenset(removed),
            altered,
            said or {},
            self.current,
        )
        self.referee.check_commit(self, before, version)
        self.versions.append(version)
        self.current = len(self.versions) - 1

    def take_back(self, version: int) -> None:
        """Have the files of a version again, as engines do; what has been marked stays."""
        said = {"operation": "RESTORE", "operationParameters": {"version": str(version)}}
        files, removed = self.versions[version].files, frozenset(self.newest.files)
        restored = Version(
            files, self.newest.marks, removed, altered=True, commit=said, parent=version
        )
        self.versions.append(restored)
        self.current, had = version, set[int]()
        at: int | None = version
        while at is not None:
            had.add(at)
            at = self.versions[at].parent
        self.lost = {name for name, number in self.added.items() if number not in had}


@dataclass(eq=False)
class Referee:
    """Who knows the rules."""

    stored: Callable[[], Collection[str]]
    entries: dict[int, tuple[str, ...]] = field(default_factory=dict)  # the files of each
    causes: set[str] = field(default_factory=set)  # why a table may stop
    table: ModelTable | None = None

    def check_commit(self, table: ModelTable, before: Version, after: Version) -> None:
        landed = {name: number for number, names in self.entries.items() for name in names}
        rows = [row for rows in after.files.values() for row in rows]
        check(len(rows) == len(set(rows)), "rows are in the table twice")
        added = after.files.keys() - before.files.keys()
        if table.foreign:  # its names are of other files
            check(not added & landed.keys(), "entries were added to those of another history")
            return
        for name in added & landed.keys():
            check(name not in table.added, f"{name} was added again")
            assert name in self.stored(), f"{name} was added, and is deleted"
            table.added[name] = len(table.versions)
        orphans = {name for name in added - landed.keys() if name.startswith(f"{SEGMENTS}/")}
        check(not orphans, f"{orphans} are in no entry")
        for names in self.entries.values():
            in_version = {table.added.get(name) for name in names}
            check(len(in_version) < 2, f"a part of {names} was added")
            gone = after.removed & {*names}
            part = gone and gone != before.files.keys() & {*names}
            check(added or not part, f"a part of {names} was removed")

    def check_deleted(self, name: str) -> None:
        """Check that no table names a file of the landing that is deleted."""
        table = self.table
        unnamed = table is None or table.foreign or name not in table.newest.files
        check(unnamed, f"{name} is in the table")

    def check_told(self, told: TableStatistics, seen: ModelTable | None, newest: int) -> None:
        """Check what a run tells of the table that it has seen."""
        if told.stopped:
            check(told.failure, "it stopped, and does not say why")
            known = any(told.failure.startswith(cause) for cause in self.causes)
            check(known, f"it stopped without a cause: {told.failure}")
        if told.entries_behind or told.failure or seen is None or seen is not self.table:
            return
        missing = self.missing(seen, newest)
        check(not missing, f"it is not behind, and lacks {missing}")

    def missing(self, table: ModelTable, newest: int) -> list[str]:
        """Return the files up to an entry that are stored, and that a table never had."""
        numbers = [number for number in self.entries if number <= newest]
        names = [name for number in numbers for name in self.entries[number]]
        return [name for name in names if name in self.stored() and name not in table.added]


# What the libraries are called by.


class DeltaTable:
    """A `deltalake.DeltaTable`, as it was when it was loaded."""

    def __init__(self, uri: str, storage_options: Any = None) -> None:
        del uri, storage_options
        self._world = CALLER.get().world
        table = self._world.call(lambda: self._world.referee.table)
        if table is None:
            raise TableNotFoundError
        self.table: ModelTable = table
        self._number = len(table.versions) - 1

    @classmethod
    def create(cls, uri: str, *_: Any, configuration: dict[str, str], **__: Any) -> DeltaTable:
        world = CALLER.get().world
        world.call(lambda: world.make(configuration) if world.referee.table is None else None)
        return cls(uri)

    @property
    def _version(self) -> Version:
        return self.table.versions[self._number]

    def metadata(self) -> Any:
        return SimpleNamespace(
            id=self.table.id, configuration=self.table.configuration, partition_columns=[]
        )

    def version(self) -> int:
        return self._number

    def history(self, limit: int) -> list[dict[str, Any]]:
        versions = [*enumerate(self.table.versions[: self._number + 1])]
        said = [{"operation": "WRITE", **one.commit, "version": n} for n, one in versions]
        return said[::-1][:limit]

    def schema(self) -> Any:
        return deltalake.Schema.from_arrow(SCHEMA)

    def transaction_version(self, app: str) -> int | None:
        mark = self._version.marks.get(app)
        return None if mark is None else int(mark)

    def get_add_actions(self) -> pa.Table:
        paths = [name.removeprefix(f"{SEGMENTS}/") for name in self._version.files]
        return pa.table({"path": pa.array(paths, pa.string()), "size_bytes": [1] * len(paths)})

    @property
    def alter(self) -> Any:
        def set_table_properties(properties: dict[str, str]) -> None:
            def alter() -> None:
                self._check(None, ())
                self.table.commit({}, altered=True)
                self.table.configuration.update(properties)

            self._world.call(alter)

        return SimpleNamespace(set_table_properties=set_table_properties)

    def create_write_transaction(
        self, actions: list[Any], *, commit_properties: Any, **_: Any
    ) -> None:
        names = {f"{SEGMENTS}/{action.path}": action for action in actions}
        added = {n: frozenset([n]) for n, action in names.items() if isinstance(action, AddAction)}
        removed = names.keys() - added.keys()
        marks = {one.app_id: one.version for one in commit_properties.app_transactions}

        def commit() -> None:
            self._check(marks, removed)
            said = commit_properties.custom_metadata or {}
            stored = {app: str(entry) for app, entry in marks.items()}
            self.table.commit(added, removed, stored, said=said)

        self._world.call(commit)

    def _check(self, marks: Mapping[str, int] | None, removed: Collection[str]) -> None:
        """Look at the versions of others, as deltalake does before it commits after them."""
        if self.table.dropped:
            raise CommitFailedError("it was dropped")
        later = self.table.versions[self._number + 1 :]
        before = self._version.marks
        for version in later:
            met = [one for one in marks or () if version.marks.get(one) != before.get(one)]
            if met or version.altered or version.removed & set(removed):
                raise CommitFailedError("another writer was faster")


DELTALAKE: Final = SimpleNamespace(
    DeltaTable=DeltaTable,
    Schema=deltalake.Schema,
    Transaction=deltalake.Transaction,
    CommitProperties=deltalake.CommitProperties,
)
_FIELDS: Final = Schema(
    NestedField(1, "shard", StringType()),
    NestedField(2, "sequence", LongType()),
    NestedField(3, "data", BinaryType()),
)


@dataclass(frozen=True)
class _Metadata:
    table_uuid: str
    properties: Mapping[str, str]
    snapshots: tuple[Any, ...]
    current_snapshot_id: int

    def name_mapping(self) -> None:
        return None

    def model_copy(self, update: Mapping[str, Any]) -> _Metadata:
        return dataclasses.replace(self, **update)


class IcebergTable:
    """A `pyiceberg.table.Table`, as it was when it was loaded."""

    io = None

    def __init__(self, world: Any, table: ModelTable) -> None:
        self.world, self.table = world, table
        self._load()

    def _load(self) -> None:
        self.number = len(self.table.versions) - 1
        snapshots = [
            SimpleNamespace(
                snapshot_id=number,
                parent_snapshot_id=one.parent,
                sequence_number=number,
                summary=defaultdict(lambda: None, one.commit),
            )
            for number, one in enumerate(self.table.versions)
        ]
        self.metadata = _Metadata(
            self.table.id, {**self.table.newest.marks}, tuple(snapshots), self.table.current
        )

    def refresh(self) -> None:
        self.world.call(self._load)

    @property
    def properties(self) -> Mapping[str, str]:
        return self.metadata.properties

    def spec(self) -> Any:
        return SimpleNamespace(fields=())

    def schema(self) -> Schema:
        return _FIELDS

    def current_snapshot(self) -> Any:
        files = self.table.versions[self.number].files
        prefix = self.world.storage.location
        entries = [
            SimpleNamespace(data_file=SimpleNamespace(file_path=f"{prefix}/{name}"))
            for name in files
        ]
        manifest = SimpleNamespace(fetch_manifest_entry=lambda _, **__: entries)
        return SimpleNamespace(manifests=lambda _: [manifest])

    def transaction(self) -> _Transaction:
        return _Transaction(self)


class _Transaction:
    def __init__(self, table: IcebergTable) -> None:
        self._table = table
        self._added: dict[str, frozenset[str]] = {}
        self._removed: set[str] = set()
        self._marks: dict[str, str] = {}
        self._said: dict[str, str] = {}

    def set_properties(self, properties: Mapping[str, str]) -> None:
        self._marks.update(properties)

    def add_files(self, paths: list[str], snapshot_properties: dict[str, str], **_: Any) -> None:
        self._said = snapshot_properties
        for path in paths:
            name = self._name(path)
            self._table.world.storage.open(name)
            self._added[name] = frozenset([name])

    def update_snapshot(self, properties: Mapping[str, str]) -> Any:
        del properties

        @contextmanager
        def overwrite() -> Iterator[Any]:
            yield SimpleNamespace(
                delete_data_file=lambda file: self._removed.add(self._name(file.file_path))
            )

        return SimpleNamespace(overwrite=overwrite)

    def commit_transaction(self) -> None:
        """Commit, and again after a conflict, as pyiceberg does."""
        for attempt in range(int(self._table.properties.get("commit.retry.num-retries", 4)) + 1):
            if attempt:
                self._table.refresh()
            try:
                self._table.world.call(self._commit)
            except CommitFailedException as error:
                failure = error
            else:
                return
        raise failure

    def _commit(self) -> None:
        table, number = self._table.table, self._table.number
        newest = len(table.versions) - 1
        if table.dropped or any(
            before.files != table.newest.files for before in table.versions[number:newest]
        ):
            raise CommitFailedException("the table has another snapshot")
        table.commit(self._added, self._removed, self._marks, said=self._said)

    def _name(self, path: str) -> str:
        return path.removeprefix(f"{self._table.world.storage.location}/")


class Catalog:
    """A catalog of pyiceberg with one table."""

    def __init__(self, world: Any) -> None:
        self._world = world

    def load_table(self, name: str) -> IcebergTable:
        table = self._world.call(lambda: self._world.referee.table)
        if table is None:
            raise NoSuchTableError(name)
        return IcebergTable(self._world, table)

    def create_namespace_if_not_exists(self, _: str) -> None:
        pass

    def create_table_if_not_exists(self, name: str, **_: Any) -> IcebergTable:
        world = self._world
        world.call(lambda: world.make({}) if world.referee.table is None else None)
        return self.load_table(name)
