"""The entries of a landing for a reader that plans batches: what is there, and how much to take."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, final

from fanout.errors import CheckpointError
from fanout.landing.log.columns import read_identity
from fanout.landing.log.entries import BATCHES, batch_ids, read_entry
from fanout.landing.log.gaps import gap_error, is_lost
from fanout.landing.storage.local_storage import LocalFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fanout.landing.segments.segments import SegmentFile
    from fanout.landing.storage.storage import StoredFiles

# How often it is looked for new entries in a bucket, where it costs money, as `followed` does:
# Spark asks a hundred times a second.
_POLL_SECONDS: Final = 1.0
# How often a reader that waits looks whether the landing is the same, and its last entry there.
_CHECK_SECONDS: Final = 60.0
_PARALLEL_READS: Final = 8


class Place(NamedTuple):
    """A place between two records of a landing."""

    entry: int  # the entry of the next record
    row: int = 0  # its number in the entry, from 0


@final
@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a batch takes; None for no limit."""

    records: int | None = None
    bytes: int | None = None  # of files


NO_LIMITS: Final = Limits()


@final
@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows of one file of an entry."""

    entry: int  # the number of the entry
    file: SegmentFile
    first: int  # the number of the first row in the file, from 0
    end: int  # the number of the row after the last


class _Entry(NamedTuple):
    """What a reader needs of an entry; its positions may be large."""

    segments: tuple[SegmentFile, ...]
    rows: int
    watermark: int | None


@final
class LandedLog:
    """The entries of a landing, read and never written. Every call blocks.

    Entries that were deleted are an error, unless `skip_lost`; then `on_skipped` is called with the
    numbers of the first and the last that were skipped. Where there is no landing, that is an
    OptionError.
    """

    def __init__(
        self, files: StoredFiles, *, skip_lost: bool, on_skipped: Callable[[int, int], None]
    ) -> None:
        self.identity = read_identity(files)
        self._files = files
        self._skip_lost = skip_lost
        self._on_skipped = on_skipped
        self._entries: dict[int, _Entry] = {}
        self._poll = 0.0 if isinstance(files, LocalFiles) else _POLL_SECONDS
        self._next = 0
        self._looked = self._checked = float("-inf")

    @property
    def location(self) -> str:
        """Where the landing is, for messages."""
        return self._files.location

    def end(self) -> int:
        """Return the number that the next entry will have."""
        now = time.monotonic()
        if now - self._looked >= self._poll:
            before, due = self._next, now - self._checked >= _CHECK_SECONDS
            if due:
                self._check_identity()
            while self._read(self._next) is not None:
                self._next += 1
            if due and (before == 0 or self._may_be_behind()):
                numbers = self._list()
                self._next = max(self._next, numbers[-1] + 1 if numbers else 0)
                while self._read(self._next) is not None:
                    self._next += 1
            if self._next > before and not due:
                self._check_identity()
            self._looked = now
            if due or self._next > before:
                self._checked = now
        return self._next

    def require(self, place: Place) -> None:
        """Check that the landing has come as far as a place in a checkpoint."""
        if place > Place(self.end()):
            raise CheckpointError(
                f"the checkpoint has read up to entry {place.entry} of {self.location}, and the "
                f"newest one there is {self.end() - 1}: entries were deleted, or an older state "
                f"was restored; use another checkpoint location"
            )

    def oldest(self) -> int:
        """Return the number of the oldest entry, or the next number if the log is empty."""
        return self._oldest_from(0)

    def watermark(self, number: int) -> int | None:
        """Return the watermark after an entry, in milliseconds since the Unix epoch, if known."""
        entry = self._read(number) if number >= 0 else None
        return None if entry is None else entry.watermark

    def limited(self, start: Place, end: int, limits: Limits) -> Place:
        """Return where a batch ends that takes no more than it may, and at least one record.

        It ends before the entry `end` at the latest.
        """
        records, size, taken = limits.records, limits.bytes, 0
        for rows in self.rows(start, Place(end)):
            available = rows.end - rows.first
            fits = available
            if records is not None:
                fits = min(fits, records)
            if size is not None:
                fits = min(fits, size * rows.file.rows // max(rows.file.size, 1))
            fits = max(fits, 0 if taken else 1)
            taken += fits
            if fits < available:
                return self._place(rows, rows.first + fits)
            records = None if records is None else records - fits
            size = None if size is None else size - fits * rows.file.size // rows.file.rows
        return max(start, Place(end))

    def rows(self, start: Place, end: Place) -> Iterator[FileRows]:
        """Return what is between two places, in order.

        Entries that were deleted, and are not to be skipped, are a CheckpointError.
        """
        for number, entry in self._between(start, end):
            row = 0
            first = start.row if number == start.entry else 0
            last = end.row if number == end.entry else entry.rows
            for file in entry.segments:
                begin, until = max(first - row, 0), min(last - row, file.rows)
                if begin < until:
                    yield FileRows(number, file, begin, until)
                row += file.rows

    def forget(self, number: int) -> None:
        """Keep no entry in memory that is older than the first that is still needed."""
        for old in [one for one in self._entries if one < number - 1]:
            del self._entries[old]

    def _between(self, start: Place, end: Place) -> Iterator[tuple[int, _Entry]]:
        number, stop = start.entry, end.entry + (end.row > 0)
        while number < stop:
            if number not in self._entries:
                self._fetch(range(number, min(number + _PARALLEL_READS, stop)))
            entry = self._read(number)
            if entry is None:
                number = self._skip(number, stop)
                continue
            yield number, entry
            number += 1

    def _fetch(self, numbers: range) -> None:
        if len(numbers) > 1:
            with ThreadPoolExecutor(_PARALLEL_READS, "fanout-entries") as threads:
                deque(threads.map(self._read, numbers), maxlen=0)

    def _skip(self, lost: int, stop: int) -> int:
        """Return the number of the entry to go on with after one that is not there."""
        oldest = self._oldest_from(lost + 1)
        if not self._skip_lost:
            if is_lost(self._files, lost, self._list()):
                raise gap_error(self.location, range(lost, oldest))
            raise CheckpointError(
                f"the entries {lost} to {oldest - 1} of {self.location} were deleted before this "
                f"query had read them: a landing keeps entries for `keep`, and longer for a named "
                f"reader that has committed within `keep_for_readers`; set failOnDataLoss to false "
                f"to go on without them, or read the source again into another landing"
            )
        self._on_skipped(lost, oldest - 1)
        return min(oldest, stop)

    def _place(self, rows: FileRows, row: int) -> Place:
        """Return the place before a row of a file."""
        entry = self._entries[rows.entry]
        for file in entry.segments:
            if file == rows.file:
                break
            row += file.rows
        return Place(rows.entry, row) if row < entry.rows else Place(rows.entry + 1)

    def _may_be_behind(self) -> bool:
        """Say whether the next entry may have been deleted or lost, and later ones be there.

        The oldest go first. So while the one before it is there, the next one was not written yet,
        or it is lost; to list all entries would be slow, and costs money in a bucket.
        """
        if self._next == 0 or read_entry(self._files, self._next - 1) is None:
            return True
        return read_entry(self._files, self._next + 1) is not None

    def _check_identity(self) -> None:
        """See that the landing is the one of before."""
        found = read_identity(self._files)
        if found.id != self.identity.id:
            raise CheckpointError(
                f"the landing {self.location} was replaced by another one while this query read "
                f"it; start the query with a new checkpoint location"
            )

    def _oldest_from(self, number: int) -> int:
        # A list may lag, and retention may delete what it shows.
        numbers = [one for one in self._list() if one >= number]
        there = (one for one in numbers if self._read(one) is not None)
        return next(there, max(self._next, number, numbers[-1] + 1 if numbers else 0))

    def _list(self) -> list[int]:
        return batch_ids(file.name for file in self._files.list(BATCHES))

    def _read(self, number: int) -> _Entry | None:
        entry = self._entries.get(number)
        if entry is None and (found := read_entry(self._files, number)) is not None:
            entry = self._entries[number] = _Entry(found.segments, found.rows, found.watermark)
        return entry
