"""How long a landing keeps its files: what is older is deleted, and orphans are swept."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, final

from fanout.landing.entries import BATCHES, SEGMENTS, batch_ids, entry_name
from fanout.landing.segments import place_of

if TYPE_CHECKING:
    from datetime import timedelta

    from fanout.landing.entry_log import EntryLog
    from fanout.landing.ownership import Ownership
    from fanout.landing.storage import Storage


@final
class Retention:
    """Delete the oldest entries of a landing, with their files. Every call blocks.

    The newest entry stays, as the next run continues after it.

    Args:
        storage: The landing.
        log: Its entries.
        keep: Delete what was written longer ago; None keeps all.
    """

    def __init__(self, storage: Storage, log: EntryLog, keep: timedelta | None) -> None:
        self._storage = storage
        self._log = log
        self._keep = None if keep is None else int(keep.total_seconds() * 1000)
        self._kept: deque[tuple[int, int]] = deque()
        if keep is not None:
            for file in storage.list(BATCHES):
                self._kept.extend((number, file.written_at) for number in batch_ids([file.name]))

    @staticmethod
    def now() -> int:
        """Return the time in milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def after(self, number: int) -> None:
        """Delete what is too old, after an entry was written.

        Args:
            number: The entry.

        Raises:
            CheckpointError: If the storage refused.
        """
        if self._keep is None:
            return
        now = self.now()
        self._kept.append((number, now))
        while len(self._kept) > 1 and self._kept[0][1] < now - self._keep:
            self._delete(self._kept.popleft()[0])

    def _delete(self, number: int) -> None:
        entry = self._log.look_up(number)
        # The entry goes last: a run that is killed in between leaves it to the next one.
        for file in () if entry is None else entry.segments:
            self._storage.delete(file.name)
        self._storage.delete(entry_name(number))


def sweep_orphans(storage: Storage, log: EntryLog, ownership: Ownership) -> None:
    """Delete the files that earlier runs wrote and named in no entry. It blocks.

    Call it when this run has written an entry: only then no earlier run can name a file any more.

    Args:
        storage: The landing.
        log: Its entries.
        ownership: The claim of this run.

    Raises:
        CheckpointError: If the storage refused.
    """
    # Files are named in the order of their numbers.
    last_named = _last_named(log)
    for name in storage.walk(SEGMENTS):
        place = place_of(name.rpartition("/")[2])
        if place is not None and last_named < place < (ownership.run, 0):
            storage.delete(name)


def _last_named(log: EntryLog) -> tuple[int, int]:
    # The oldest entries are deleted first, so that none is missing in between. The list of a store
    # may lag, and miss one.
    number = log.next_number - 1
    while number >= 0 and (entry := log.look_up(number)) is not None:
        names = [file.name for file in entry.segments]
        places = [place for name in names if (place := place_of(name.rpartition("/")[2]))]
        if places:
            return max(places)
        number -= 1
    return (0, 0)
