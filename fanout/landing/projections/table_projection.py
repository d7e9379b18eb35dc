"""A table that names the files of a landing: it follows the entries, and may fall behind them."""

from __future__ import annotations

import logging
import math
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, final

import pyarrow as pa

from fanout.core.error_text import text_of
from fanout.core.statistics import TableStatistics
from fanout.errors import OptionError
from fanout.landing.log.columns import LandedColumns, read_identity
from fanout.landing.log.entries import BATCHES, batch_ids, read_entry
from fanout.landing.storage.object_location import is_object_location
from fanout.landing.storage.opening import open_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from fanout.landing.claims import Ownership
    from fanout.landing.log.entries import BatchEntry, EntryLog
    from fanout.landing.segments.segments import SegmentFile
    from fanout.landing.storage.storage import ReadableFiles

_LOG: Final = logging.getLogger(__name__)
# The most entries in a commit, so that a table which is far behind comes nearer with each.
_ENTRIES: Final = 100
# How often a commit is tried at once, when other writers are faster.
_ATTEMPTS: Final = 5
# How long a table is left alone after a failure: a request to a service that is gone takes long.
_RETRY_SECONDS: Final = 60.0
_MAX_REASON: Final = 300


class ConflictError(Exception):
    """Another writer has changed the table since it was looked at; nothing was written."""


@final
@dataclass(frozen=True, slots=True)
class NamedFiles:
    """The files of a landing, for a table that is to name them."""

    storage: ReadableFiles
    storage_options: Mapping[str, str]  # as the user gave them for the landing
    landing: str  # its identity
    columns: LandedColumns

    @property
    def root(self) -> str:
        """The URI of the landing, as the user spelled it; a path on the disk is absolute."""
        location = self.storage.location
        if is_object_location(location):
            return location
        return f"file://{os.path.abspath(location)}"  # noqa: PTH100 - it keeps links


class Table(Protocol):
    """A table that names files of a landing. Every call blocks, and raises what its library does.

    What a table cannot go on after is an OptionError, such as columns that do not fit.
    """

    @property
    def name(self) -> str:
        """What the table is called in messages: without secrets."""

    def stored(self) -> int | None:
        """Return the newest entry that the table has, as it is now; None if it has none."""

    def newest(self) -> int:
        """Look at the table as it is now; return the newest entry that it has, -1 before the first.

        A table that does not exist is made, in the first call.
        """

    def add(self, files: Sequence[SegmentFile], entry: int, /) -> None:
        """Commit files, and with them the number of the entry up to which it has all.

        Where another run has committed entries since `newest`, that is a ConflictError.
        """

    def remove(self, names: Collection[str], /) -> None:
        """Commit that files have gone, those of them that it names."""


class TableOption(Protocol):
    """What a user gives for a table."""

    def open(self, files: NamedFiles, /) -> Table:
        """Return the table; nothing is asked of a service yet. A missing library: SetupError."""


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
        self._added = -1  # the newest entry with files that it has
        self._complete = -1  # up to which entry it has all
        self._failure = ""  # why it is behind
        self._keeps = ""  # why files cannot leave it
        self._stopped = False
        self._again_at = -math.inf

    def complete(self) -> None:
        """Add all entries that are missing, also shortly after a failure."""
        self._again_at = -math.inf
        self._is_done(self._advance)

    def write(self, entry: BatchEntry, expired: Collection[str], written_at: int) -> bool:
        """Add the files of an entry, and what is missing; say whether `expired` files have left."""
        del entry, written_at  # it reads the log

        done = self._is_done(self._advance)
        return self._is_removed(expired) if done and expired else done

    def statistics(self) -> TableStatistics:
        """Return what is known of the table."""
        behind = self._log.next_number - 1 - self._complete
        return TableStatistics(
            self._table.name, behind, self._failure or self._keeps, self._stopped
        )

    def _is_done(self, step: Callable[[], None]) -> bool:
        """Take a step, unless it is too early after a failure; say whether it succeeded."""
        if self._stopped or time.monotonic() < self._again_at:
            return False
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the libraries raise what they like
            self._fail(error)
            return False
        self._failure = ""
        return True

    def _fail(self, error: Exception) -> None:
        self._stopped = isinstance(error, OptionError)
        self._again_at = time.monotonic() + _RETRY_SECONDS
        reason = _reason(error)
        if reason == self._failure:
            return
        self._failure = reason
        _LOG.warning(
            "%s has the entries up to %d of %s, and %s: %s; the landing goes on, and keeps files",
            self._table.name,
            self._complete,
            self._ownership.storage.location,
            "stops there" if self._stopped else "is tried again at an entry in a minute",
            reason,
        )

    def _is_removed(self, expired: Collection[str]) -> bool:
        """Remove files; say whether it succeeded. Otherwise entries are added as before."""
        try:
            self._attempt(lambda: self._remove(expired))
        except Exception as error:  # noqa: BLE001 - the libraries raise what they like
            if (reason := _reason(error)) != self._keeps:
                _LOG.warning("%s does not let go of files: %s", self._table.name, reason)
            self._keeps = reason
            return False
        self._keeps = ""
        return True

    def _advance(self) -> None:
        """Add what is missing, a hundred entries in a commit at most."""
        while self._complete < self._log.next_number - 1:
            self._attempt(self._commit)

    def _attempt(self, commit: Callable[[], None]) -> None:
        """Commit, and again where other writers are faster."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return commit()
            except ConflictError:
                continue
        return commit()

    def _commit(self) -> None:
        """Look at the table, and add the entries that follow its newest one."""
        newest = self._newest()
        first = max(newest, self._complete) + 1
        if self._complete < 0:
            first = max(first, self._log.oldest())  # older ones were deleted
        numbers = range(first, min(first + _ENTRIES, self._log.next_number))
        entries = sorted(self._log.newest_first(numbers), key=lambda entry: entry.batch_id)
        files = [file for entry in entries for file in entry.segments]
        if files:
            self._ownership.check()
            self._table.add(files, numbers[-1])
            self._added = numbers[-1]
        self._complete = max(newest, numbers[-1] if numbers else -1, self._complete)

    def _remove(self, names: Collection[str]) -> None:
        self._newest()
        self._ownership.check()
        self._table.remove(names)

    def _newest(self) -> int:
        """Look at the table; refuse one that has lost entries of ours."""
        newest = self._table.newest()
        if newest < self._added:
            raise OptionError(
                f"it had the entries up to {self._added}, and has those up to {newest} now: it was "
                f"replaced; start the landing again, which adds the rest"
            )
        if newest >= self._log.next_number:
            raise OptionError(
                f"it has the entries up to {newest}, and the landing has those before "
                f"{self._log.next_number} alone: a newer run writes there, or an older state of "
                f"the landing was restored; land to another location, with another table"
            )
        self._added = newest
        return newest


def read_table(location: str, option: TableOption) -> TableStatistics:
    """Return how far a table of a landing is, as it is now; nothing is written. It blocks."""
    files = open_files(location, None)
    table = option.open(
        NamedFiles(files, {}, read_identity(files).id, LandedColumns(pa.schema([])))
    )
    try:
        entry = table.stored()
    except Exception as error:  # noqa: BLE001 - the libraries raise what they like
        return TableStatistics(table.name, failure=_reason(error))
    numbers = batch_ids(file.name for file in files.list(BATCHES))
    later = (read_entry(files, number) for number in numbers if entry is None or number > entry)
    behind = sum(one is not None and bool(one.segments) for one in later)
    return TableStatistics(table.name, behind)


def _reason(error: Exception) -> str:
    """Return what an error says: some libraries add what was answered, or a backtrace."""
    return text_of(error).partition("\n")[0][:_MAX_REASON]
