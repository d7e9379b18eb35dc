"""Retention: what of a landing is deleted, and what its named readers still need."""

from __future__ import annotations

import logging
import math
import re
import time
import uuid
from bisect import bisect_left
from collections import defaultdict, deque
from functools import cache
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias, final

import msgspec

from fanout.core.sentence import Option
from fanout.core.stored_json import StoredFormat
from fanout.errors import CheckpointError, OptionError
from fanout.landing.log.entries import BATCHES, batch_ids, entry_name
from fanout.landing.log.gaps import gap_error, whole
from fanout.landing.segments.segments import (
    SEGMENTS,
    Count,
    place_of,
    session_of,
)
from fanout.landing.storage.storage import READERS

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Iterator
    from datetime import timedelta

    from fanout.landing.claims import Ownership
    from fanout.landing.log.entries import EntryLog
    from fanout.landing.segments.segments import SegmentFile
    from fanout.landing.storage.storage import FileInfo, Storage, StoredFiles

_LOG: Final = logging.getLogger(__name__)

_READER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_MARK: Final = re.compile(rf"({_READER.pattern})-([0-9]{{12}})\.json")
_MAX_BYTES: Final = 4096
_MAX_RACES: Final = 100
# How often a reader shows that it is there while it is in one entry.
_SHOW_SECONDS: Final = 60.0
_VERSION: Final = 1


class _MarkWire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    token: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
    entry: Count


_FORMAT: Final = StoredFormat(
    wire=_MarkWire,
    max_size=_MAX_BYTES,
    error=CheckpointError,
    version=_VERSION,
    hint="delete it; the reader writes it again",
)


def check_reader(name: str) -> str:
    """Return the name of a reader, or raise OptionError."""
    if not _READER.fullmatch(name):
        raise OptionError(
            Option("reader", name),
            " must be 1 to 64 letters, digits, '_', '.' and '-', and begin with a letter or a "
            "digit",
        )
    return name


@final
class NamedReader:
    """Tell a landing which entries a reader still needs. Every call blocks.

    It is said in a file with a number, which is created exclusively. So of two queries with one
    name the one that started last goes on. The name has passed `check_reader`.
    """

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage = storage
        self._name = name
        self._token = uuid.uuid4().hex
        self._number = 0
        self._entry = -1
        self._shown = 0.0

    def claim(self, entry: int) -> None:
        """Take the name over from the query that had it before; `entry` is the first needed."""
        for _ in range(_MAX_RACES):
            newest = _newest_marks(self._storage).get(self._name)
            before = 0 if newest is None else _number(newest)
            if self._create(before + 1, entry):
                if newest is not None:
                    self._storage.delete(f"{READERS}/{newest.name}")
                return
        raise CheckpointError(
            f"cannot register the reader {self._name!r} at {self._storage.location}: too many "
            f"queries start with this name at once"
        )

    def commit(self, entry: int) -> None:
        """Say that entries before one are no longer needed.

        Another query that has taken the name over is a CheckpointError.
        """
        if entry == self._entry and time.monotonic() - self._shown < _SHOW_SECONDS:
            return
        number = self._number
        mine = self._storage.read(_mark_name(self._name, number), limit=_MAX_BYTES)
        if mine != self._content(self._entry) or not self._create(number + 1, entry):
            raise CheckpointError(
                f"another query took over the reader {self._name!r} of {self._storage.location}, "
                f"or its file was deleted; give each query a reader of its own, and start this "
                f"one again"
            )
        self._storage.delete(_mark_name(self._name, number))

    def _create(self, number: int, entry: int) -> bool:
        try:
            self._storage.create(_mark_name(self._name, number), self._content(entry))
        except FileExistsError:
            return False
        self._number, self._entry, self._shown = number, entry, time.monotonic()
        return True

    def _content(self, entry: int) -> bytes:
        return msgspec.json.encode(_MarkWire(_VERSION, self._token, entry))


def needed_by_readers(files: StoredFiles, since: int) -> int | None:
    """Return the first entry that a named reader needs; None if none needs any. It blocks.

    A reader counts that has committed since then, in milliseconds since the Unix epoch.
    """
    for _ in range(_MAX_RACES):
        counted = [mark for mark in _newest_marks(files).values() if mark.written_at >= since]
        entries = [_read_entry(files, mark) for mark in counted]
        found = [entry for entry in entries if entry is not None]
        if len(found) == len(entries):
            return min(found, default=None)
        # A reader has replaced its file after the list was made.
    return 0


def _read_entry(files: StoredFiles, mark: FileInfo) -> int | None:
    name = f"{READERS}/{mark.name}"
    data = files.read(name, limit=_MAX_BYTES)
    return None if data is None else _FORMAT.read(data, f"{name} in {files.location}").entry


def _newest_marks(files: StoredFiles) -> dict[str, FileInfo]:
    """Return the newest file of each reader; its name sorts last."""
    return dict(_marks(files.list(READERS)))


def _marks(files: tuple[FileInfo, ...]) -> Iterator[tuple[str, FileInfo]]:
    for file in files:
        if match := _MARK.fullmatch(file.name):
            yield match[1], file


def _number(mark: FileInfo) -> int:
    match = _MARK.fullmatch(mark.name)
    assert match is not None, "it is a mark"
    return int(match[2])


def _mark_name(reader: str, number: int) -> str:
    return f"{READERS}/{reader}-{number:012}.json"


_Place: TypeAlias = tuple[int, int]
_NOWHERE: Final = (0, 0)
# An upload is given up after some minutes. So many later runs have hardly landed files by then.
_RUNS: Final = 5
# How often readers are asked whether they need what is too old; and so while it is deleted.
_READERS_MILLIS: Final = 60_000
_DELETING_SECONDS: Final = 1.0
# Without Spark's log, as with it, ten entries go at a time, or a tenth of all.
_EXPIRED_SHARE: Final = 10


@final
class Retention:
    """Delete the oldest entries of a landing, with their files. Every call blocks.

    Deleted is what was written longer ago than `keep`; None keeps all. The newest entry stays, as
    the next run continues after it. A named reader keeps what it needs so long after its last
    commit.
    """

    def __init__(
        self,
        storage: Storage,
        log: EntryLog,
        keep: timedelta | None,
        keep_for_readers: timedelta,
    ) -> None:
        self._storage = storage
        self._log = log
        self._keep = None if keep is None else _millis(keep)
        self._keep_for_readers = _millis(keep_for_readers)
        self._readers_seen = 0
        self._needed: int | None = None
        self._kept: deque[tuple[int, int]] = deque()
        self._expired: dict[int, tuple[SegmentFile, ...]] = {}
        if keep is not None:
            for file in storage.list(BATCHES):
                self._kept.extend((number, file.written_at) for number in batch_ids([file.name]))
            self._oldest = log.oldest()

    @staticmethod
    def now() -> int:
        """Return the time in milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def expire(self, number: int) -> set[str]:
        """Find what is too old, before an entry is written; return what `delete` will delete.

        The log knows then which entries stay, and the entry has that: a reader can tell from it
        what was lost. So call `delete` only when the entry is there.
        """
        if self._keep is None:
            return set()
        now = self.now()
        self._kept.append((number, now))
        while len(self._kept) > 1 and self._kept[0][1] < now - self._keep:
            if self._is_needed(self._kept[0][0], now):
                break
            # A list may have missed some: none may stay between others that are deleted.
            last, _ = self._kept.popleft()
            for old in range(self._oldest, last + 1):
                entry = self._log.look_up(old)
                self._expired[old] = () if entry is None else entry.segments
                # A list may show what was deleted, and then the next one may be gone as well.
                if entry is not None:
                    self._log.first = max(self._log.first or 0, old + 1)
            self._oldest = max(self._oldest, last + 1)
        return {file.name for files in self._expired.values() for file in files}

    def delete(self) -> None:
        """Delete what is too old, and what no named reader needs by now.

        No other reader may be told of it any more. A named reader may have come after `expire`, and
        needs what it found: that is kept until it does not.
        """
        asked = -math.inf
        for number, files in [*self._expired.items()]:
            if time.monotonic() - asked > _DELETING_SECONDS:
                asked = time.monotonic()
                self._ask_readers(self.now())
            if self._needed is not None and self._needed <= number:
                self._keep_expired()
                return
            # The entry goes first, so that the files of an entry are there. Files that a killed run
            # leaves without their entry are swept by the next one.
            self._storage.delete(entry_name(number))
            self._delete_files(files)
            del self._expired[number]

    @property
    def is_due(self) -> bool:
        """Whether so much is too old that it is worth to ask the readers and delete it."""
        return len(self._expired) * _EXPIRED_SHARE >= min(len(self._kept), _EXPIRED_SHARE**2)

    def _keep_expired(self) -> None:
        """Let what was going to be deleted wait until no reader needs it."""
        for number in sorted(self._expired, reverse=True):
            self._kept.appendleft((number, 0))
            self._oldest = number
        self._expired.clear()

    def _is_needed(self, number: int, now: int) -> bool:
        """Say whether a named reader needs an entry; the readers are asked once a minute."""
        if now - self._readers_seen >= _READERS_MILLIS:
            self._ask_readers(now)
        return self._needed is not None and self._needed <= number

    def _ask_readers(self, now: int) -> None:
        self._needed = needed_by_readers(self._storage, now - self._keep_for_readers)
        self._readers_seen = now

    def _delete_files(self, files: tuple[SegmentFile, ...]) -> None:
        for file in files:
            self._storage.delete(file.name)


def _millis(age: timedelta) -> int:
    return int(age.total_seconds() * 1000)


def check_no_files(storage: Storage) -> None:
    """Check that a landing without entries has no files: a first run takes a number before any."""
    if file := next(filter(_place, storage.walk(SEGMENTS)), None):
        raise CheckpointError(
            f"{storage.location} has the file {file}, and no entry in {BATCHES}: the entries were "
            f"deleted, or the list of the storage lags behind; start again in a minute, restore "
            f"all files of {BATCHES}, the newest too, or land to another location"
        )


def sweep_orphans(storage: Storage, log: EntryLog, ownership: Ownership) -> list[str]:
    """Delete the files that earlier runs left and no entry names. It blocks.

    Call it when this run has written an entry: only then no earlier run can name a file any more.
    It returns the files of landers of earlier runs, for `sweep_files_of_landers`.
    """
    earlier: defaultdict[_Place, list[str]] = defaultdict(list)
    of_landers: list[str] = []
    for name in storage.walk(SEGMENTS):
        place = _place(name)
        if place is None or place >= (ownership.run, 0):
            continue
        if _is_of_lander(name):
            of_landers.append(name)
        else:
            earlier[place].append(name)
    if earlier:
        for place in _unnamed(sorted(earlier), log):
            for name in earlier[place]:
                storage.delete(name)
    return of_landers


def sweep_files_of_landers(
    storage: Storage, log: EntryLog, files: Iterable[str], ending: threading.Event
) -> None:
    """Delete the files that landers of earlier runs left and no entry names. It blocks.

    Several landers write at a time, so their files are not named in the order of their numbers:
    each entry of their runs is read. A run looks after the last ones before it, as those have
    looked after others. `ending` is set when it is to end before it is done.
    """
    of_run: defaultdict[int, set[str]] = defaultdict(set)
    for name in files:
        of_run[_run(name)].add(name)
    runs = sorted(of_run)[-_RUNS:]
    unnamed = set[str]().union(*(of_run[run] for run in runs))
    numbers = range(log.oldest(), log.next_number) if runs else range(0)
    for entry in whole(log, numbers):
        if ending.is_set():
            return
        if any(_run(file.name) < runs[0] for file in entry.segments):
            break  # so are all entries before
        unnamed.difference_update(file.name for file in entry.segments)
    for name in sorted(unnamed):
        if ending.is_set():
            return
        storage.delete(name)


def _unnamed(places: list[_Place], log: EntryLog) -> list[_Place]:
    """Return the places of files that no entry names.

    The files of landers are left out. Others are named in the order of their places. So these are
    after the last that an entry names; before the first, where a run was killed while it deleted
    what was too old; or in between, as the last of a run that was overtaken and whose upload was
    completed late.
    """
    numbers = range(log.oldest(), log.next_number)

    @cache
    def named(number: int) -> _Place | None:
        entry = log.look_up(number)
        if entry is None and log.is_lost(number):
            raise gap_error(log.location, range(number, number + 1))
        files = () if entry is None else entry.segments
        own = [file.name for file in files if not _is_of_lander(file.name)]
        return max((place for name in own if (place := _place(name))), default=None)

    def named_until(number: int) -> _Place:
        until = range(number, numbers.start - 1, -1)
        return next((place for one in until if (place := named(one))), _NOWHERE)

    def is_named(place: _Place) -> bool:
        index = bisect_left(numbers, place, key=named_until)
        return index < len(numbers) and named(numbers[index]) == place

    first = next((place for number in numbers if (place := named(number))), _NOWHERE)
    last = named_until(numbers[-1])
    found = [place for place in places if not first <= place <= last]
    if log.first is None and (kept := [place for place in found if place < first]):
        found = [place for place in found if place > last]
        _LOG.warning(
            "%s has %d files that are older than those of the oldest entry, and it is unknown "
            "whether retention has deleted their entries; delete the files below segments up to "
            "run-%06d-%08d.parquet if it has",
            log.location,
            len(kept),
            *kept[-1],
        )
    last_of_run = {place[0]: place for place in places if first <= place <= last}
    late = [*last_of_run.values()][-_RUNS:]
    return found + [place for place in late if not is_named(place)]


def _place(name: str) -> _Place | None:
    return place_of(name.rpartition("/")[2])


def _run(name: str) -> int:
    place = _place(name)
    assert place is not None, "it is the name of a segment"
    return place[0]


def _is_of_lander(name: str) -> bool:
    """Say whether a lander wrote a file: several do at a time, so entries mix their numbers."""
    return session_of(name.rpartition("/")[2]) is not None
