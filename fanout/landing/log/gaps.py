"""Gaps in the log of a landing: entries that are lost, which nothing of fanout deletes.

Entries are written one after the other, and retention deletes the oldest first. A list may lag
behind, so what it misses or shows is read by its name before it counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout.errors import CheckpointError
from fanout.landing.log.entries import entry_name, read_entry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fanout.landing.log.entries import BatchEntry, EntryLog
    from fanout.landing.storage.storage import Storage, StoredFiles


def find_gap(files: StoredFiles, numbers: Sequence[int], newest: BatchEntry | None) -> range | None:
    """Return the newest entries in a row that are lost; None where the log is whole. It blocks.

    `numbers` are those of a list, sorted, and `newest` is the last of them. It reads the oldest
    entry that has to be there, and others only where the list has a hole.
    """
    if not numbers:
        return None
    return _hole(files, numbers) or _lost_beginning(files, numbers, newest)


def is_lost(files: StoredFiles, number: int, numbers: Sequence[int]) -> bool:
    """Say whether an entry that is not there was lost, and not deleted by retention. It blocks.

    `numbers` are those of a list, sorted, with later ones. Retention deletes the oldest first, and
    not what the newest entry says has to be there.
    """
    if number > 0 and read_entry(files, number - 1) is not None:
        return True
    newest = read_entry(files, numbers[-1])
    return newest is not None and newest.first is not None and number >= newest.first


def check_whole(storage: Storage, log: EntryLog) -> None:
    """Raise a CheckpointError if entries of a landing are lost; see `find_gap`."""
    if gap := find_gap(storage, log.numbers, log.newest):
        raise gap_error(storage.location, gap)


def whole(log: EntryLog, numbers: range) -> Iterator[BatchEntry]:
    """Yield entries, newest first; one that is lost in between is a CheckpointError.

    The oldest of them may be deleted meanwhile.
    """
    expected = numbers.stop - 1
    for entry in log.newest_first(numbers):
        # What was read before is read again: only then it was there without the newer one.
        if entry.batch_id < expected and log.look_up(entry.batch_id) is not None:
            raise gap_error(log.location, range(entry.batch_id + 1, expected + 1))
        expected = entry.batch_id - 1
        yield entry


def gap_error(location: str, gap: range) -> CheckpointError:
    """Return the error of a landing that has lost entries."""
    return CheckpointError(describe_gap(location, gap))


def describe_gap(location: str, gap: range) -> str:
    """Say which entries a landing has lost, and what to do."""
    first, last = entry_name(gap[0]), entry_name(gap[-1])
    names, them = (f"{first} is", "it") if first == last else (f"{first} to {last} are", "them")
    return (
        f"{names} missing in {location}, although no retention has deleted {them}: restore {them} "
        f"and the files of segments that are missing from a backup; without a backup land to "
        f"another location, and keep what is here: files that no entry names may have records"
    )


def _hole(files: StoredFiles, numbers: Sequence[int]) -> range | None:
    if numbers[-1] - numbers[0] + 1 == len(numbers):
        return None
    for index in range(len(numbers) - 1, 0, -1):
        for number in range(numbers[index] - 1, numbers[index - 1], -1):
            if read_entry(files, number) is None:
                # What retention has deleted has nothing older, even if a list still shows that.
                older = (one for one in reversed(numbers[:index]) if read_entry(files, one))
                before = next(older, None)
                return None if before is None else range(before + 1, number + 1)
    return None


def _lost_beginning(
    files: StoredFiles, numbers: Sequence[int], newest: BatchEntry | None
) -> range | None:
    """Return the oldest entries if they are lost: each entry says which one has to be there."""
    while newest is not None and newest.first is not None:
        if numbers[0] == newest.first or read_entry(files, newest.first) is not None:
            return None
        # A run that goes on may have deleted it since it wrote that entry.
        later = _newest_after(files, newest)
        if later is None:
            there = (one for one in numbers if one > newest.first and read_entry(files, one))
            return range(newest.first, next(there, newest.batch_id))
        newest = later
    return None


def _newest_after(files: StoredFiles, entry: BatchEntry) -> BatchEntry | None:
    found = None
    while (later := read_entry(files, (found or entry).batch_id + 1)) is not None:
        found = later
    return found
