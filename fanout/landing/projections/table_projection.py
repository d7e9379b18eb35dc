"""A table that names the files of a landing: it follows the entries, and may fall behind them."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, final

import pyarrow as pa

from fanout.core.error_text import text_of
from fanout.core.statistics import TableStatistics
from fanout.errors import CheckpointError, OptionError
from fanout.landing.log.columns import LandedColumns, read_identity
from fanout.landing.log.entries import BATCHES, batch_ids, read_entry
from fanout.landing.segments.segments import SegmentFile
from fanout.landing.storage.object_location import is_object_location
from fanout.landing.storage.opening import open_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from fanout.landing.claims import Ownership
    from fanout.landing.log.entries import BatchEntry, EntryLog
    from fanout.landing.storage.storage import ReadableFiles

_LOG: Final = logging.getLogger(__name__)
# The most entries in a commit, so that a table which is far behind comes nearer with each.
_ENTRIES: Final = 100
# The most files in a commit, unless an entry has more: their footers may be read.
_FILES: Final = 1_000
# How often a commit is tried at once, when other writers are faster.
_ATTEMPTS: Final = 5
# How long a table is left alone after a failure: a request to a service that is gone takes long.
_RETRY_SECONDS: Final = 60.0
# The most for a commit, in which the footers of many files may be read.
_COMMIT_SECONDS: Final = 300.0
# The most for a look at a table.
_LOOK_SECONDS: Final = 30.0
_MAX_REASON: Final = 300
_CALL: Final = "fanout-table"  # the name of a thread
# What tables say where they cannot go on.
TAKEN_BACK: Final = (
    "an engine has taken it back to before entry {}, which it had: take it forward again, and "
    "delete rows that you do not want; or drop it, and the next run makes it anew with all entries"
)
FORMER: Final = (
    "it has {}, of a landing that was at this location before: drop the table, and the next run "
    "makes it anew, or give another one"
)
_RESTORED: Final = "; then drop the table, and the next run makes it anew, or give another one"


_T = TypeVar("_T")


class ConflictError(Exception):
    """Another writer has changed the table since it was looked at; nothing was written."""


@final
@dataclass(frozen=True, slots=True)
class NamedFiles:
    """The files of a landing, for a table that is to name them."""

    storage: ReadableFiles
    storage_options: Mapping[str, str]  # as the user gave them for the landing
    columns: LandedColumns

    def identity(self) -> str:
        """Return the identity of the landing, which is read."""
        return read_identity(self.storage).id

    @property
    def root(self) -> str:
        """The URI of the landing, as the user spelled it; a path on the disk is absolute."""
        location = self.storage.location
        if is_object_location(location):
            return location
        return f"file://{os.path.abspath(location)}"  # noqa: PTH100 - it keeps links


@final
@dataclass(frozen=True, slots=True)
class NewestEntry:
    """The newest entry with files that a table has, as it stores it."""

    number: int = -1
    checksum: int | None = None  # its `BatchEntry.checksum`; None before the first, or of old

    def fault(self, there: BatchEntry | None, following: int) -> str:
        """Say why it is none of the landing, which has entries before `following`; empty if it is.

        `there` is that of its number in the landing, which may be deleted by now.
        """
        if self.number >= following:
            return (
                f"it has the entries up to {self.number}, and the landing those before "
                f"{following}: a newer run writes there, or an older state of the landing was "
                f"restored{_RESTORED}"
            )
        if there is None or self.checksum in {None, there.checksum}:
            return ""
        return (
            f"it is of another history: its entry {self.number} is not the one of the landing, of "
            f"which an older state was restored, or a copy goes on{_RESTORED}"
        )


class Projection(Protocol):
    """A log by which others read a landing, derived from its entries. Every call blocks.

    It has the files of all entries up to one of them, each once, and no file that no entry names.
    What a run that was killed has left out is added when the next run begins.
    """

    def write(self, entry: BatchEntry, expired: Collection[str], written_at: int, /) -> bool:
        """Add the files of an entry, and what is missing before them.

        Say whether `expired` files have left, and may be deleted. The time is in milliseconds since
        the Unix epoch. An error ends the landing.
        """


class Table(Protocol):
    """A table that names files of a landing. Every call blocks, and raises what its library does.

    What a table cannot go on after is an OptionError, such as columns that do not fit.
    """

    @property
    def name(self) -> str:
        """What the table is called in messages: without secrets."""

    def newest(self, *, make: bool = True) -> NewestEntry:
        """Look at the table as it is now; return the newest entry that it has.

        The first call makes the table, or the columns that it lacks, unless not to `make` them. One
        that names files of an earlier landing of this location, or that an engine has taken back,
        is an OptionError.
        """

    def add(self, files: Sequence[SegmentFile], newest: NewestEntry, /) -> None:
        """Commit files, and with them the entry up to which it has all.

        Where another run has committed entries since `newest`, that is a ConflictError.
        """

    def remove(self, names: Collection[str], /) -> None:
        """Commit that files have gone, those of them that it names."""


class TableOption(Protocol):
    """What a user gives for a table."""

    def open(self, files: NamedFiles, /) -> Table:
        """Return the table; nothing is asked of its service yet."""


@final
class TableProjection:
    """A table, derived from the entries of a landing. Every call blocks.

    It is no reason to end the landing. What fails is tried again at an entry that is written a
    minute later, and when the landing ends. A table that does not fit stops until the next run.
    Meanwhile no file is deleted, as the table may name it; nor are files that it does not let go.
    """

    def __init__(self, table: Table, log: EntryLog, ownership: Ownership) -> None:
        self._table = table
        self._log = log
        self._ownership = ownership
        self._added = NewestEntry()
        self._complete = -1  # up to which entry it has all
        self._failure = ""  # why it is behind, or keeps files
        self._warned = ""
        self._stopped = False
        self._failures = self._commits = 0
        self._commit_seconds = 0.0
        self._again_at = -math.inf

    def complete(self) -> bool:
        """Add entries that are missing by one commit, also shortly after a failure.

        Say whether more of them are missing, and can be added at once.
        """
        self._again_at = -math.inf
        return self._is_done(self._step) and self._is_behind()

    def write(self, entry: BatchEntry, expired: Collection[str], written_at: int) -> bool:
        """Add the files of an entry, and what is missing; say whether `expired` files have left."""
        del entry, written_at  # it reads the log
        done = self._is_done(self._advance)
        remove = partial(self._attempt, partial(self._remove, expired))
        return self._is_done(remove, pausing=False) if done and expired else done

    def statistics(self) -> TableStatistics:
        """Return what is known of the table."""
        behind = self._log.next_number - 1 - self._complete
        return TableStatistics(
            self._table.name,
            behind,
            self._failure,
            self._stopped,
            self._failures,
            self._commits,
            self._commit_seconds,
        )

    def _is_done(self, step: Callable[[], None], *, pausing: bool = True) -> bool:
        """Take a step, and say whether it succeeded; none in a pause after a failure."""
        if self._stopped or time.monotonic() < self._again_at:
            return False
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the libraries raise what they like
            self._stopped = isinstance(error, OptionError)
            self._again_at = time.monotonic() + _RETRY_SECONDS * pausing
            self._failure = _reason(error)
            self._failures += 1
            self._warn()
            return False
        self._failure = ""
        return True

    def _warn(self) -> None:
        """Log a failure, once."""
        if self._failure == self._warned:
            return
        self._warned = self._failure
        _LOG.warning(
            "%s has the entries up to %d of %s, and %s: %s; the landing goes on, and keeps files",
            self._table.name,
            self._complete,
            self._ownership.storage.location,
            "stops" if self._stopped else "is tried again",
            self._failure,
        )

    def _is_behind(self) -> bool:
        return self._complete < self._log.next_number - 1

    def _step(self) -> None:
        if self._is_behind():
            self._attempt(self._commit)

    def _advance(self) -> None:
        """Add what is missing, by several commits where that is much."""
        while self._is_behind():
            self._attempt(self._commit)

    def _attempt(self, commit: Callable[[], None]) -> None:
        """Commit, and again where other writers are faster."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return _in_time(commit, _COMMIT_SECONDS)
            except ConflictError:
                continue
        return _in_time(commit, _COMMIT_SECONDS)

    def _commit(self) -> None:
        """Look at the table, and add the entries that follow its newest one."""
        newest = self._newest()
        oldest = self._log.oldest() if self._complete < 0 else 0  # older ones were deleted
        self._complete = max(newest, self._complete)
        first = max(self._complete + 1, oldest)
        numbers = range(first, min(first + _ENTRIES, self._log.next_number))
        entries = sorted(self._log.newest_first(numbers), key=lambda entry: entry.batch_id)
        last, files = NewestEntry(numbers[-1] if numbers else -1), list[SegmentFile]()
        for entry in entries:
            if files and len(files) + len(entry.segments) > _FILES:
                break
            last = NewestEntry(entry.batch_id, entry.checksum)
            files += entry.segments
        if files:
            self._ownership.check()
            begun = time.monotonic()
            self._table.add(files, last)
            self._commit_seconds += time.monotonic() - begun
            self._commits += 1
            self._added = last
        self._complete = max(last.number, self._complete)

    def _remove(self, names: Collection[str]) -> None:
        self._newest()
        self._ownership.check()
        self._table.remove(names)

    def _newest(self) -> int:
        """Look at the table; refuse one that has lost entries of ours, or has those of others."""
        newest, number = self._table.newest(), self._added.number
        if newest.number < number:
            raise OptionError(
                f"it had the entries up to {number}, and has those up to {newest.number} now"
            )
        if newest != self._added:
            there = self._log.look_up(newest.number)
            if fault := newest.fault(there, self._log.next_number):
                raise OptionError(fault)
            self._added = newest
        return newest.number


def _in_time(call: Callable[[], _T], seconds: float) -> _T:
    """Call in a thread that nothing waits for in the end: some clients wait without a limit."""
    ended: Future[_T] = Future()

    def run() -> None:
        try:
            ended.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is raised again
            ended.set_exception(_without_panic(error))

    threading.Thread(target=run, name=_CALL, daemon=True).start()
    if not wait([ended], seconds).done:
        raise OptionError(f"it does not answer for {seconds:.0f} s")
    return ended.result()


def is_called() -> bool:
    """Say whether a call of a table goes on, which nothing may wait for any more."""
    return any(thread.name == _CALL for thread in threading.enumerate())


def _without_panic(error: BaseException) -> BaseException:
    """Return an Exception for a panic of a library in Rust, which is none."""
    if type(error).__name__ != "PanicException":
        return error
    panic = CheckpointError(f"its library panicked: {error}")
    panic.__cause__ = error
    return panic


def read_table(location: str, option: TableOption) -> TableStatistics:
    """Return how far a table of a landing is, as it is now; nothing is written. It blocks."""
    files = open_files(location, None)
    table = option.open(NamedFiles(files, {}, LandedColumns(pa.schema([]))))
    try:
        newest = _in_time(partial(table.newest, make=False), _LOOK_SECONDS)
    except Exception as error:  # noqa: BLE001 - the libraries raise what they like
        return TableStatistics(table.name, failure=_reason(error))
    there = read_entry(files, newest.number)
    numbers = batch_ids(file.name for file in files.list(BATCHES))
    known = [*numbers, -1 if there is None else there.batch_id]  # a list may lag behind
    if fault := newest.fault(there, max(known) + 1):
        return TableStatistics(table.name, failure=fault)
    later = [number for number in numbers if number > newest.number]
    read = (read_entry(files, number) for number in later)
    lacks = any(one is not None and one.segments for one in read)
    return TableStatistics(table.name, len(later) if lacks else 0)


def _reason(error: Exception) -> str:
    """Return what an error says: some libraries add what was answered, or a backtrace."""
    return text_of(error).partition("\n")[0][:_MAX_REASON]
