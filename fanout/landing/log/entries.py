"""Entries of the log: what is stored of a batch, and the numbered files that hold it."""

from __future__ import annotations

import hashlib
import logging
from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar, final

import msgspec

from fanout.core.checkpoint import MAX_JSON_BYTES, Checkpoint
from fanout.core.lifecycle_log import LogEvent, write
from fanout.core.stored_json import Before, StoredFormat
from fanout.errors import CheckpointError, PositionError
from fanout.landing.claims import create_owned
from fanout.landing.segments.segments import Count, SegmentFile  # noqa: TC001 - msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from fanout.landing.claims import Ownership
    from fanout.landing.storage.storage import Storage, StoredFiles

# Below the checkpoint location, beside Spark's own offsets/, commits/, sources/ and metadata.
DIRECTORY: Final = "fanout"

BATCHES: Final = "batches"

ORIGIN: Final = "origin.json"
# Characters of the source's own JSON, in which it names unconfirmed records.
MAX_UNCONFIRMED: Final = 1024 * 1024

# That JSON is stored in a string, in which each quote takes two bytes.
MAX_ENTRY_BYTES: Final = MAX_JSON_BYTES + 2 * MAX_UNCONFIRMED + 64 * 1024

VERSION: Final = 1
"""The version of the origin and of pending segments."""

ENTRY_VERSION: Final = 2
"""The version of entries; version 1, of the releases 0.1, is read."""

Millis = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

Unconfirmed = Annotated[str, msgspec.Meta(max_length=MAX_UNCONFIRMED)]


@final
class TakenSegments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The pending segments that batches have taken; see `landing.log.pending`."""

    last: Count  # the number of the last one that this batch, or one before it, has taken
    # Which records the service may deliver again although a batch has them.
    unconfirmed: Unconfirmed


@final
@dataclass(frozen=True, slots=True)
class BatchEntry:
    """The content of one batch id, which never changes."""

    batch_id: int  # Spark's, of the micro-batch
    query_id: str  # Spark's
    # Its records, in this order; none where only idle progress was made.
    segments: tuple[SegmentFile, ...]
    positions: Checkpoint  # every split's position after the batch
    # The stream's after its records, in milliseconds since the Unix epoch.
    watermark: int | None = None
    # The pending segments that it has taken; None where none was ever pending.
    taken: TakenSegments | None = None
    # A random text that no other entry has, so that a sink or a table knows the batch again; empty
    # where there is none, as in what earlier versions wrote.
    content: str = ""
    # The file of its bad records, below the location of such files; empty where it has none.
    bad: str = ""
    # The oldest entry of the landing that is never deleted before a later entry says so; None where
    # it is unknown, as in entries of earlier versions and in those of a query.
    first: int | None = None

    @property
    def rows(self) -> int:
        """The number of its records."""
        return sum(segment.rows for segment in self.segments)

    @property
    def size(self) -> int:
        """The bytes of its segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def checksum(self) -> int:
        """A number of 63 bits, by which a table knows the entry again.

        Another entry of the same number has another one, as after a backup was restored.
        """
        files = "".join(f" {one.name} {one.rows} {one.size}" for one in self.segments)
        text = f"{self.batch_id} {self.content}{files}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1


_Query = Annotated[str, msgspec.Meta(max_length=100)]
_BadFile = Annotated[str, msgspec.Meta(max_length=120)]
_Content = Annotated[str, msgspec.Meta(pattern=r"^(?:[0-9a-f]{32})?\Z")]
_Wire = TypeVar("_Wire", bound=msgspec.Struct)


def ledger_format(
    wire: type[_Wire],
    *,
    version: int = VERSION,
    before: Before[_Wire] | None = None,
) -> StoredFormat[_Wire]:
    """Return the format of a file of the ledger."""
    return StoredFormat(
        wire=wire,
        max_size=MAX_ENTRY_BYTES,
        error=CheckpointError,
        version=version,
        before=before,
        hint="restore this file alone from a backup, or start with a new checkpoint location",
    )


class _OriginWire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    positions: msgspec.Raw


class _EntryWire(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    version: Literal[2]
    run: Count
    batch: Count
    query: _Query
    segments: tuple[SegmentFile, ...]
    positions: msgspec.Raw
    watermark: Millis | None = None
    taken: TakenSegments | None = None
    content: _Content = ""
    bad: _BadFile = ""
    first: Count | None = None


class _TakenWire1(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    taken: Count
    doubts: Unconfirmed
    more: tuple[SegmentFile, ...] = ()


class _EntryWire1(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    run: Count
    batch: Count
    query: _Query
    segment: SegmentFile | None
    positions: msgspec.Raw
    watermark: Millis | None = None
    lent: _TakenWire1 | None = None

    def upgrade(self) -> _EntryWire:
        first = () if self.segment is None else (self.segment,)
        more = () if self.lent is None else self.lent.more
        taken = None if self.lent is None else TakenSegments(self.lent.taken, self.lent.doubts)
        return _EntryWire(
            ENTRY_VERSION,
            self.run,
            self.batch,
            self.query,
            first + more,
            self.positions,
            self.watermark,
            taken,
        )


_ORIGIN_FORMAT: Final = ledger_format(_OriginWire)
_ENTRY_FORMAT: Final = ledger_format(
    _EntryWire,
    version=ENTRY_VERSION,
    before=Before(1, _EntryWire1, _EntryWire1.upgrade),
)


def entry_name(batch_id: int) -> str:
    """Return the name of a batch's file below the checkpoint."""
    return f"{BATCHES}/{batch_id:012}.json"


def batch_ids(names: Iterable[str]) -> list[int]:
    """Return the numbers of the batches, or pending segments, that files are named after."""
    stems = (name.removesuffix(".json") for name in names)
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def encode_entry(entry: BatchEntry, *, run: int) -> bytes:
    """Encode an entry, with the number of the run that made it."""
    wire = _EntryWire(
        ENTRY_VERSION,
        run,
        entry.batch_id,
        entry.query_id,
        entry.segments,
        msgspec.Raw(entry.positions.to_json().encode()),
        entry.watermark,
        entry.taken,
        entry.content,
        entry.bad,
        entry.first,
    )
    return msgspec.json.encode(wire)


def decode_entry(data: bytes, batch_id: int, *, location: str) -> BatchEntry:
    """Decode the entry of a batch. The location is for messages, as in all functions here.

    An entry that is damaged, of another batch or written by a newer version is a CheckpointError.
    """
    name = entry_name(batch_id)
    wire = _ENTRY_FORMAT.read(data, f"{name} in {location}")
    if wire.batch != batch_id:
        raise _ENTRY_FORMAT.damaged(f"{name} in {location}", f"it is of batch {wire.batch}")
    positions = decode_positions(name, wire.positions, location)
    return BatchEntry(
        wire.batch,
        wire.query,
        wire.segments,
        positions,
        wire.watermark,
        wire.taken,
        wire.content,
        wire.bad,
        wire.first,
    )


def encode_origin(positions: str) -> bytes:
    """Encode the positions, in JSON, that a start was resolved into."""
    return msgspec.json.encode(_OriginWire(VERSION, msgspec.Raw(positions.encode())))


def decode_origin(data: bytes, *, location: str) -> Checkpoint:
    """Decode the positions that a start was resolved into."""
    wire = _ORIGIN_FORMAT.read(data, f"{ORIGIN} in {location}")
    return decode_positions(ORIGIN, wire.positions, location)


def decode_positions(name: str, json: msgspec.Raw, location: str) -> Checkpoint:
    """Read the positions in a file with a name below the checkpoint."""
    try:
        return Checkpoint.from_json(bytes(json))
    except PositionError as error:
        raise CheckpointError(f"{name} in {location}: {error}") from error


_READ_AT_ONCE: Final = 16


def read_entry(files: StoredFiles, number: int) -> BatchEntry | None:
    """Read one entry; None where there is none. It blocks."""
    data = files.read(entry_name(number), limit=MAX_ENTRY_BYTES)
    return None if data is None else decode_entry(data, number, location=files.location)


class EntryLog:
    """Numbered entries, each created exclusively and in order. Every call blocks.

    The claim of this run is checked before every write: without it a write is a CheckpointError. So
    is an entry that is damaged or was written by a newer version.
    """

    def __init__(self, storage: Storage, ownership: Ownership) -> None:
        self._storage = storage
        self._ownership = ownership
        # There may be millions.
        self._listed = array("q", batch_ids(file.name for file in storage.list(BATCHES)))
        self._newest = self._find_newest()
        self.first = self._find_first()
        """The oldest entry that has to be there, for the next entry; None where it is unknown."""

    @property
    def location(self) -> str:
        """Where it is, for messages."""
        return self._storage.location

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of the entries that were there at the start, by a list that may lag."""
        return self._listed

    @property
    def newest(self) -> BatchEntry | None:
        """The entry of the highest number; None before the first."""
        return self._newest

    @property
    def next_number(self) -> int:
        """The number of the next entry."""
        return 0 if self._newest is None else self._newest.batch_id + 1

    def oldest(self) -> int:
        """Return the number of the oldest entry, also where the list of a store misses some."""
        number = self._listed[0] if self._listed else self.next_number
        while number > 0 and self.look_up(number - 1) is not None:
            number -= 1
        return number

    def is_lost(self, number: int) -> bool:
        """Say whether an entry that is not there was lost: retention deletes the oldest alone."""
        if self.first is not None:
            return number >= self.first
        return self.look_up(self.oldest()) is not None

    def origin(self) -> Checkpoint | None:
        """Return the positions that the first run resolved its start into; None before that."""
        data = self._storage.read(ORIGIN, limit=MAX_ENTRY_BYTES)
        return None if data is None else decode_origin(data, location=self._storage.location)

    def positions(self) -> Checkpoint | None:
        """Return where to continue: after the newest batch, or at the origin before the first."""
        return self.origin() if self._newest is None else self._newest.positions

    def write_origin(self, positions: str) -> Checkpoint:
        """Store the resolved start, before anything is subscribed."""
        create_owned(self._storage, self._ownership, ORIGIN, encode_origin(positions))
        return Checkpoint.from_json(positions)

    def write(self, entry: BatchEntry) -> None:
        """Store what a batch stands for; from now on it stands for nothing else."""
        data = encode_entry(entry, run=self._ownership.run)
        create_owned(self._storage, self._ownership, entry_name(entry.batch_id), data)
        self._newest = entry
        write(
            logging.DEBUG,
            LogEvent.ENTRY_WRITTEN,
            "entry %d of %s has %d records in %d files",
            entry.batch_id,
            self._storage.location,
            entry.rows,
            len(entry.segments),
            fields={
                "fanout.checkpoint": self._storage.location,
                "fanout.batch.id": entry.batch_id,
                "fanout.records": entry.rows,
                "fanout.bytes": entry.size,
            },
        )

    def _find_newest(self) -> BatchEntry | None:
        """Return the newest entry, also where the list of a store lags behind its files."""
        listed = self._listed[-1] if self._listed else None
        entry = None if listed is None else self.look_up(listed)
        number = 0 if listed is None else listed + 1
        while (later := self.look_up(number)) is not None:
            entry = later
            self._listed.append(number)
            number += 1
        if entry is None and listed is not None:
            raise CheckpointError(
                f"the list of {self._storage.location} shows {entry_name(listed)}, which was "
                f"deleted, and no newer entry: the list lags behind, or another run writes there; "
                f"start again in a minute"
            )
        return entry

    def _find_first(self) -> int | None:
        if self._newest is not None and self._newest.first is not None:
            return self._newest.first
        # A version that did not store it may have deleted the oldest.
        return None if self._listed and self._listed[0] > 0 else 0

    def newest_first(self, numbers: range) -> Iterator[BatchEntry]:
        """Yield the entries that are there, newest first, reading more and more at once."""
        count = 1
        with ThreadPoolExecutor(_READ_AT_ONCE, "fanout-entries") as threads:
            while numbers:
                read = threads.map(self.look_up, reversed(numbers[-count:]))
                yield from (entry for entry in read if entry is not None)
                numbers, count = numbers[:-count], min(2 * count, _READ_AT_ONCE)

    def bad_file(self, batch_id: int) -> str | None:
        """Return the file of bad records that an entry names; None where there is no entry."""
        entry = self.look_up(batch_id)
        return None if entry is None else entry.bad

    def look_up(self, batch_id: int) -> BatchEntry | None:
        """Read one entry; None where there is none."""
        return read_entry(self._storage, batch_id)
