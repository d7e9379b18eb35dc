"""Named readers of a landing: which entries each of them still needs."""

from __future__ import annotations

import re
import time
import uuid
from typing import TYPE_CHECKING, Annotated, Final, Literal, final

import msgspec

from fanout.core.sentence import Option
from fanout.core.stored_json import StoredFormat
from fanout.errors import CheckpointError, OptionError
from fanout.landing.segments.segment_file import Count  # noqa: TC001 - msgspec reads it
from fanout.landing.storage.storage import READERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.landing.storage.storage import FileInfo, Storage, StoredFiles

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
