"""The entries of a landing: which segments each number has, and every split's position after it."""

from __future__ import annotations

import logging
from array import array
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from fanout.core.checkpoint import Checkpoint
from fanout.core.lifecycle_log import LogEvent, write
from fanout.errors import CheckpointError
from fanout.landing.claims import create_owned
from fanout.landing.log.entries import (
    BATCHES,
    MAX_ENTRY_BYTES,
    ORIGIN,
    BatchEntry,
    batch_ids,
    decode_entry,
    decode_origin,
    encode_entry,
    encode_origin,
    entry_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.landing.claims import Ownership
    from fanout.landing.storage.storage import Storage, StoredFiles

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

    def newest_first(self, numbers: range) -> Iterator[BatchEntry]:
        """Yield the entries that are there, newest first, reading more and more at once."""
        count = 1
        with ThreadPoolExecutor(_READ_AT_ONCE, "fanout-entries") as threads:
            while numbers:
                read = threads.map(self.look_up, reversed(numbers[-count:]))
                yield from (entry for entry in read if entry is not None)
                numbers, count = numbers[:-count], min(2 * count, _READ_AT_ONCE)

    def look_up(self, batch_id: int) -> BatchEntry | None:
        """Read one entry; None where there is none."""
        return read_entry(self._storage, batch_id)
