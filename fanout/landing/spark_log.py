"""The log by which Spark's file source knows the files of a landing, and no others."""

from __future__ import annotations

import os
from itertools import takewhile
from typing import TYPE_CHECKING, Final, Literal, Self, final
from urllib.parse import quote, unquote

import msgspec

from fanout.core.stored_json import MALFORMED_JSON
from fanout.landing.claims import taken_error
from fanout.landing.log.entries import BATCHES, batch_ids
from fanout.landing.segments.segments import SEGMENTS
from fanout.landing.storage.object_location import is_object_location, parse_location
from fanout.landing.storage.storage import SPARK_LOG

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from fanout.landing.claims import Ownership
    from fanout.landing.log.entries import BatchEntry, EntryLog
    from fanout.landing.storage.storage import Storage

INTERVAL: Final = 10
"""Every so many files one repeats all lines; a reader derives it from the newest two of those."""

COMPACT: Final = ".compact"
"""How the names of those files end."""

_VERSION: Final = b"v1"
# What java.net.URI leaves in a path as it is, besides letters and digits.
_PLAIN: Final = "/-_.!~*'();:@&=+$,"
# Hadoop's default on local disks and S3. Spark splits files by settings of its own.
_BLOCK_SIZE: Final = 32 * 1024 * 1024


@final
class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Spark's SinkFileStatus; the order of its fields is Spark's."""

    path: str
    size: int
    isDir: bool  # noqa: N815 - Spark's name
    modificationTime: int  # noqa: N815 - the same
    blockReplication: int  # noqa: N815 - the same
    blockSize: int  # noqa: N815 - the same
    action: Literal["add"]


def table_uri(location: str) -> str | None:
    """Return the URI by which Spark's Hadoop knows a location; None where it cannot know it.

    Spark shows the files of a log only if their URIs begin with that of the directory that it was
    told to read. So there is one spelling: `file:///` and the absolute path, `s3a://`, `gs://`, or
    `abfss://container@account.dfs.core.windows.net/`. A location on Azure without its account has
    none.
    """
    if not is_object_location(location):
        return f"file://{_quoted(os.path.abspath(location))}"  # noqa: PTH100 - it keeps links
    place = parse_location(location)
    if place.service == "Azure":
        if not place.account:
            return None
        # The other scheme without TLS is another name for Hadoop.
        scheme = "abfs" if place.uri.startswith("abfs://") else "abfss"
        authority = place.uri.partition("://")[2].partition("/")[0].replace(".blob.", ".dfs.")
    else:
        scheme = "s3a" if place.service == "S3" else "gs"
        authority = place.bucket
    return f"{scheme}://{authority}/{_quoted(place.prefix)}".removesuffix("/")


def is_compact(number: int) -> bool:
    """Say whether the file of a number repeats all lines."""
    return (number + 1) % INTERVAL == 0


def next_compact(number: int) -> int:
    """Return the first number from this one on whose file repeats all lines."""
    return number + INTERVAL - 1 - number % INTERVAL


def log_file_name(number: int) -> str:
    """Return the name of a file of the log."""
    return f"{number}{COMPACT}" if is_compact(number) else str(number)


def log_file_number(name: str) -> int | None:
    """Return the number of a file of the log; None for a name that is not of one."""
    stem = name.removesuffix(COMPACT)
    return int(stem) if stem.isascii() and stem.isdecimal() else None


def files_to_read(newest: int) -> list[str]:
    """Return the names of the files that a reader reads, and insists on, by the newest one."""
    first = max(0, (newest + 1) // INTERVAL * INTERVAL - 1)
    return [log_file_name(number) for number in range(first, newest + 1)]


def encode_line(uri: str, size: int, written_at: int) -> bytes:
    """Encode what the log says of a file; the time is in milliseconds since the Unix epoch."""
    return msgspec.json.encode(_Line(uri, size, False, written_at, 1, _BLOCK_SIZE, "add"))  # noqa: FBT003


def encode_file(lines: Iterable[bytes]) -> bytes:
    """Encode a file of the log."""
    return b"\n".join([_VERSION, *lines])


def decode_file(data: bytes) -> list[tuple[str, int, bytes]] | None:
    """Return the URI, the time in milliseconds and the bytes of each line; None if damaged."""
    version, *lines = data.split(b"\n")
    try:
        found = [(msgspec.json.decode(line, type=_Line), line) for line in lines]
    except MALFORMED_JSON:
        return None
    if version != _VERSION or any(each.isDir for each, _ in found):
        return None
    return [(each.path, each.modificationTime, line) for each, line in found]


def _quoted(path: str) -> str:
    """Quote a path as Hadoop's `Path.toUri` does: what is not ASCII stays as it is."""
    return "".join(c if c > "\x7f" and c.isprintable() else quote(c, safe=_PLAIN) for c in path)


_DIRECTORY: Final = f"{SEGMENTS}/{SPARK_LOG}"
# A reader may be busy with a list of files that is a while old. Spark's sink keeps as many.
_KEPT: Final = 100
_UNLISTED_BYTES: Final = 1 << 30
# Files that are too old leave the log at once if they are one in so many of it.
_EXPIRED_SHARE: Final = 10


@final
class SparkLog:
    """Spark's log of a landing, derived from its entries. Every call blocks.

    An entry is in the log when `write` returns, and a run that starts adds what is missing. A run
    that was overtaken may write one more file of the log, as it needs to own the next entry before
    it writes a second one. That file is older than what the newer run begins with, or it has the
    same name, and the slower of the two is refused. `uri` is what Spark calls the directory of the
    landing.
    """

    def __init__(self, storage: Storage, ownership: Ownership, uri: str) -> None:
        self._storage = storage
        self._ownership = ownership
        self._root = f"{uri}/{SEGMENTS}/"
        self._lines: dict[str, bytes] = {}  # by the name of a file, in the order of entries
        self._numbers: list[int] = []  # the numbers of the files of the log
        self._time = 0

    @classmethod
    def open(
        cls, storage: Storage, ownership: Ownership, log: EntryLog, *, wanted: bool = True
    ) -> Self | None:
        """Return the log of a landing, with all entries; None where Spark cannot read the landing.

        Call it when this run has written an entry. A landing without a log gets one where it is
        `wanted`. A log that is there goes on, as Spark would not see the files that it lacks.
        """
        uri = table_uri(storage.location)
        if uri is None or not (wanted or storage.list(_DIRECTORY)):
            return None
        found = cls(storage, ownership, uri)
        while not found._complete(log):
            found = cls(storage, ownership, uri)
        return found

    def write(self, entry: BatchEntry, expired: Collection[str], written_at: int) -> bool:
        """Add the files of an entry; say whether `expired` files have left, and may be deleted.

        Files leave the log when a file of the log is written that repeats all lines: every tenth,
        or at once where they are many. The time is in milliseconds since the Unix epoch. Another
        run that writes is a CheckpointError.
        """
        lines = self._add(entry, written_at)
        gone = self._lines.keys() & expired
        number = self._numbers[-1] + 1
        kept = len(self._lines) - len(gone)
        if (lines and is_compact(number)) or (gone and kept <= len(gone) * (_EXPIRED_SHARE - 1)):
            for name in gone:
                del self._lines[name]
            gone = set()
            number, lines = next_compact(number), [*self._lines.values()]
        elif not lines:
            return not gone
        try:
            self._create(number, lines)
        except FileExistsError as error:
            name = f"{_DIRECTORY}/{log_file_name(number)}"
            raise taken_error(self._storage, self._ownership, name) from error
        return not gone

    def _complete(self, log: EntryLog) -> bool:
        """Read the log, add the entries that are not in it, and write all lines anew.

        So it does not matter in which state the log was, nor what a run that was overtaken is
        about to write. Return whether no other run was faster.
        """
        sizes = {file.name: file.size for file in self._storage.list(_DIRECTORY)}
        names = [*sizes]
        numbers = {name: number for name in names if (number := log_file_number(name)) is not None}
        self._numbers = sorted({*numbers.values()})
        self._read(sizes)
        self._add_missing(log)
        compacts = sorted(numbers[name] for name in numbers if name.endswith(COMPACT))
        number = next_compact(self._numbers[-1] + 1 if self._numbers else 0)
        # A newer run that takes over from here on meets the same numbers.
        self._ownership.check()
        try:
            # From two such files a reader derives the interval, whatever its settings are.
            if compacts[-1:] != [number - INTERVAL]:
                self._create(number, [*self._lines.values()])
                number += INTERVAL
            self._create(number, [*self._lines.values()])
        except FileExistsError:
            return False
        return True

    def _read(self, sizes: Mapping[str, int]) -> None:
        """Take over the lines of the log; none where it is damaged, or names another place.

        A file may have any size: a run that refused to read it could never go on.
        """
        for name in files_to_read(self._numbers[-1]) if self._numbers else ():
            data = self._storage.read(
                f"{_DIRECTORY}/{name}", limit=sizes.get(name, _UNLISTED_BYTES)
            )
            found = None if data is None else decode_file(data)
            if found is None or not all(uri.startswith(self._root) for uri, _, _ in found):
                self._lines.clear()
                return
            for uri, written_at, line in found:
                self._lines[f"{SEGMENTS}/{unquote(uri.removeprefix(self._root))}"] = line
                self._time = max(self._time, written_at)

    def _add_missing(self, log: EntryLog) -> None:
        """Add the entries after the newest line; and drop lines that are older than all entries."""
        numbers = range(log.oldest(), log.next_number)
        if self._lines:
            # A version without this log may have deleted files meanwhile.
            names = (name for number in numbers for name in _files(log.look_up(number)))
            first = next((name for name in names if name in self._lines), None)
            for name in [*takewhile(lambda name: name != first, self._lines)]:
                del self._lines[name]
        missing: list[BatchEntry] = []
        for entry in log.newest_first(numbers):
            if any(name in self._lines for name in _files(entry)):
                break
            missing.append(entry)
        if any(entry.segments for entry in missing):
            files = self._storage.list(BATCHES)
            times = {number: file.written_at for file in files for number in batch_ids([file.name])}
            for entry in reversed(missing):
                self._add(entry, times.get(entry.batch_id, 0))

    def _add(self, entry: BatchEntry, written_at: int) -> list[bytes]:
        # A stream reads files by their time, and may skip those that are older than others.
        self._time = max(self._time, written_at)
        lines = {
            file.name: encode_line(
                f"{self._root}{_quoted(file.name.removeprefix(f'{SEGMENTS}/'))}",
                file.size,
                self._time,
            )
            for file in entry.segments
        }
        self._lines |= lines
        return [*lines.values()]

    def _create(self, number: int, lines: list[bytes]) -> None:
        name = f"{_DIRECTORY}/{log_file_name(number)}"
        self._storage.create(name, encode_file(lines))
        self._numbers.append(number)
        if is_compact(number):
            while self._numbers[0] < number - _KEPT:
                self._storage.delete(f"{_DIRECTORY}/{log_file_name(self._numbers.pop(0))}")


def _files(entry: BatchEntry | None) -> list[str]:
    return [] if entry is None else [file.name for file in entry.segments]
