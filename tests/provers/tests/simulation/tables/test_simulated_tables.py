"""Seeds of a model of tables: the referee holds the rules; and bugs that they have to find."""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.exceptions import CommitFailedException

from fanout.errors import OptionError
from fanout.landing.lander import Landing
from fanout.landing.projections import table_projection
from fanout.landing.projections.delta import _Delta
from fanout.landing.projections.iceberg import _Iceberg
from fanout.landing.projections.table_projection import (
    ConflictError,
    NewestEntry,
    TableProjection,
)
from fanout.testing.virtual_time.loop import simulate
from tests.provers.simulation.tables.run import run_seed
from tests.support.model_bugs import check_found, instead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEEDS = 3_000
ENOUGH = 200  # seeds within which each bug is found


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Leave warnings of thousands of faults out, until the end of the test."""
    caplog.set_level(logging.CRITICAL, logger="fanout")


def test_some_seeds() -> None:
    for seed in range(50):
        simulate(partial(run_seed, seed))


@pytest.mark.prove
@pytest.mark.timeout(1_200)
def test_all_seeds() -> None:
    for seed in range(SEEDS):
        simulate(partial(run_seed, seed))


def _looks_once(newest: Any) -> Any:
    def cached(self: TableProjection) -> int:
        return newest(self) if self._complete < 0 else self._complete

    return cached


def _without_its_transaction(commit: Any) -> Any:
    return lambda self, actions, *_: commit(self, actions)


def _transaction_comes_later(commit: Any) -> Any:
    def twice(self: Any, actions: Any, *transactions: Any) -> None:
        commit(self, actions)
        if transactions:
            commit(self, [], *transactions)

    return twice


def _property_comes_later(_: Any) -> Any:
    def add(self: Any, files: Any, newest: NewestEntry) -> None:
        with self._transaction() as transaction:
            transaction.add_files([self._uri(file.name) for file in files], {})
        self._table = self._load()
        with self._transaction() as transaction:
            transaction.set_properties({f"fanout.{self._identity}.entry": str(newest.number)})

    return add


def _library_tries_again(_: Any) -> Any:
    @contextmanager
    def transaction(self: Any) -> Iterator[Any]:
        begun = self._table.transaction()
        try:
            yield begun
        except FileNotFoundError as error:
            raise OptionError("an engine has deleted a file") from error
        try:
            begun.commit_transaction()
        except CommitFailedException as error:
            raise ConflictError from error

    return transaction


def _conflict_is_success(add: Any) -> Any:
    def added(self: Any, files: Any, newest: NewestEntry) -> None:
        with suppress(ConflictError):
            add(self, files, newest)

    return added


def _failure_is_success(is_done: Any) -> Any:
    def done(self: TableProjection, step: Any, **pausing: bool) -> bool:
        if not is_done(self, step, **pausing):
            self._complete, self._failure = self._log.next_number - 1, ""
        return True

    return done


def _deletes_first(after: Any) -> Any:
    def eager(self: Landing, entry: Any) -> None:
        self._retention.expire(entry.batch_id)
        self._retention.delete()
        after(self, entry)

    return eager


def _deletes_while_behind(write: Any) -> Any:
    def told(self: TableProjection, *arguments: Any) -> bool:
        write(self, *arguments)
        return True

    return told


def _adds_a_part(add: Any) -> Any:
    def part(self: Any, files: Any, newest: NewestEntry) -> None:
        half = len(files) // 2
        if half:
            add(self, files[:half], NewestEntry(newest.number - 1))
            self._table = self._load()
        add(self, files[half:], newest)

    return part


def _counts_what_it_left_out(_: Any) -> Any:
    def commit(self: TableProjection) -> None:
        newest = self._newest()
        first = max(newest, self._complete, self._log.oldest() - 1) + 1
        numbers = range(first, self._log.next_number)
        entries = sorted(self._log.newest_first(numbers), key=lambda entry: entry.batch_id)
        files = [file for entry in entries for file in entry.segments]
        if files:
            last = NewestEntry(entries[-1].batch_id, entries[-1].checksum)
            self._table.add(files[: table_projection._FILES], last)
            self._added = last
        self._complete = numbers[-1] if numbers else newest

    return commit


def _does_not_know_it_again(newest: Any) -> Any:
    def anew(self: Any, *, make: bool = True) -> NewestEntry:
        self._table = None
        found: NewestEntry = newest(self, make=make)
        return found

    return anew


def _begins_after_the_table_was_made(newest: Any) -> Any:
    def late(self: TableProjection) -> int:
        found = int(newest(self))
        return found if found >= 0 else self._log.next_number - 2

    return late


def _stops_in_silence(warn: Any) -> Any:
    def quiet(self: TableProjection) -> None:
        warn(self)
        self._failure = ""

    return quiet


def _removes_some(remove: Any) -> Any:
    return lambda self, names: remove(self, sorted(names)[1:])


def _knows_no_restore(_: Any) -> Any:
    return lambda *_: False


def _knows_no_other_history(_: Any) -> Any:
    return lambda *_: ""


def _keeps_all(_: Any) -> Any:
    return lambda *_: None


BUGS: dict[str, Callable[[Any], object]] = {
    "the table is looked at once": instead(TableProjection, "_newest", _looks_once),
    "a commit of Delta has no transaction": instead(_Delta, "_commit", _without_its_transaction),
    "the transaction of Delta is a commit of its own": instead(
        _Delta, "_commit", _transaction_comes_later
    ),
    "the property of Iceberg is a commit of its own": instead(
        _Iceberg, "add", _property_comes_later
    ),
    "pyiceberg makes a commit again": instead(_Iceberg, "_transaction", _library_tries_again),
    "a conflict is taken for success": lambda patch: [
        instead(kind, "add", _conflict_is_success)(patch) for kind in (_Delta, _Iceberg)
    ],
    "a failure is taken for success": instead(TableProjection, "_is_done", _failure_is_success),
    "files are deleted before they leave": instead(Landing, "_after", _deletes_first),
    "files are deleted while a table is behind": instead(
        TableProjection, "write", _deletes_while_behind
    ),
    "an entry is added in two commits": lambda patch: [
        instead(kind, "add", _adds_a_part)(patch) for kind in (_Delta, _Iceberg)
    ],
    "what a commit had no room for counts": instead(
        TableProjection, "_commit", _counts_what_it_left_out
    ),
    "another table is taken for the old one": lambda patch: [
        instead(kind, "newest", _does_not_know_it_again)(patch) for kind in (_Delta, _Iceberg)
    ],
    "a new table gets no old entries": instead(
        TableProjection, "_newest", _begins_after_the_table_was_made
    ),
    "a table stops in silence": instead(TableProjection, "_warn", _stops_in_silence),
    "a file stays in the table": lambda patch: [
        instead(kind, "remove", _removes_some)(patch) for kind in (_Delta, _Iceberg)
    ],
    "a RESTORE is not seen": instead(_Delta, "_is_taken_back", _knows_no_restore),
    "a rollback is not seen": instead(_Iceberg, "_is_taken_back", _knows_no_restore),
    "another history is not seen": instead(NewestEntry, "fault", _knows_no_other_history),
    "no file leaves a table of Delta": instead(_Delta, "remove", _keeps_all),
    "no file leaves a table of Iceberg": instead(_Iceberg, "remove", _keeps_all),
}


@pytest.mark.prove
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[bug](monkeypatch)
    check_found(bug, run_seed, ENOUGH)
