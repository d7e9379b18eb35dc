"""Follow a landing: read its entries as they come, in any process and from any number on."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Self, final

from fanout.core.cancellation import in_thread
from fanout.core.option_checks import check_mapping, check_seconds, location_text, whole
from fanout.errors import CheckpointError, OptionError
from fanout.landing.log.entries import BATCHES, MAX_ENTRY_BYTES, ORIGIN, batch_ids, read_entry
from fanout.landing.log.gaps import gap_error, is_lost
from fanout.landing.storage.opening import open_files

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from os import PathLike

    from fanout.core.checkpoint import Checkpoint
    from fanout.landing.log.entries import BatchEntry
    from fanout.landing.storage.storage import StoredFiles


@final
@dataclass(frozen=True, slots=True)
class LandedEntry:
    """One entry of a landing; it never changes.

    Args:
        number: Its number; it grows from one entry to the next.
        files: The paths or URIs of its Parquet files.
        rows: Its records.
        bytes: The bytes of its files.
        positions: Every split's position after its records.
        watermark: The stream's watermark after it, in milliseconds since the Unix epoch; None
            where there is none.
    """

    number: int
    files: tuple[str, ...]
    rows: int
    bytes: int
    positions: Checkpoint
    watermark: int | None

    @classmethod
    def of(cls, entry: BatchEntry, location: str) -> Self:
        """Describe an entry.

        Args:
            entry: The entry.
            location: Where its landing is.
        """
        return cls(
            entry.batch_id,
            tuple(f"{location}/{file.name}" for file in entry.segments),
            entry.rows,
            entry.size,
            entry.positions,
            entry.watermark,
        )


# How often a follower that waits looks whether its next entry was there, and has been deleted.
_EXPIRY_SECONDS: Final = 60.0


async def followed(
    location: str | PathLike[str],
    *,
    after: int | None = None,
    poll: float = 1.0,
    storage_options: Mapping[str, str] | None = None,
) -> AsyncGenerator[LandedEntry, None]:
    """Iterate the entries of a landing in order, and wait for those that come.

    Nothing is written, so any number of processes may follow one landing. Store the number of the
    last entry that was processed, and pass it as `after` to continue. Every record is in one
    entry, and in one only; a file that no entry names may be left by a run that was killed.

    Args:
        location: The landing, as for `fanout.land`.
        after: The number of the last entry that is known already; None begins with the oldest.
        poll: Seconds between two looks for a new entry.
        storage_options: As for `fanout.land`.

    Yields:
        The entries with records.

    Raises:
        OptionError: There is no landing at the location, or an option is malformed.
        CheckpointError: The next entry was deleted, because it is older than the landing keeps it,
            or it is lost; or the landing has not come as far as `after`; or the location cannot be
            read, or an entry is damaged or was written by a newer version.

    Cancellation: nothing is lost; follow again after the last entry.
    """
    place = location_text("location", location)
    check_mapping("storage_options", storage_options)
    if after is not None:
        whole("after", after, or_none=True)
    check_seconds("poll", poll)
    time = asyncio.get_running_loop().time
    files = await in_thread(partial(open_files, place, storage_options))
    number = await in_thread(partial(_first, files, after))
    looked = -math.inf  # what is lost already is told at once
    while True:
        entry = await in_thread(partial(read_entry, files, number))
        if entry is not None:
            number += 1
            if entry.segments:
                yield LandedEntry.of(entry, files.location)
            continue
        if time() - looked > _EXPIRY_SECONDS:
            looked = time()
            await in_thread(partial(_first, files, number - 1))
        await asyncio.sleep(poll)


def _first(files: StoredFiles, after: int | None) -> int:
    """Return the number of the entry to read first; the oldest if `after` is None."""
    numbers = batch_ids(file.name for file in files.list(BATCHES))
    if not numbers and files.read(ORIGIN, limit=MAX_ENTRY_BYTES) is None:
        raise OptionError(
            f"there is no landing at {files.location}: start one with fanout.land, or with "
            f"`fanout land`"
        )
    # A list may lag, and retention may delete what it shows.
    if after is None:
        there = (number for number in numbers if read_entry(files, number) is not None)
        return next(there, numbers[-1] + 1 if numbers else 0)
    if after >= 0 and (not numbers or numbers[-1] < after) and read_entry(files, after) is None:
        raise CheckpointError(
            f"the newest entry of {files.location} is {numbers[-1] if numbers else 'missing'}, and "
            f"after={after} was known before: the landing was begun again, or an older state was "
            f"restored; follow it from its oldest entry on, with after=None"
        )
    oldest = next((number for number in numbers if number > after), after + 1)
    if oldest > after + 1 and read_entry(files, after + 1) is None:
        if is_lost(files, after + 1, numbers):
            raise gap_error(files.location, range(after + 1, oldest))
        raise CheckpointError(
            f"the entries {after + 1} to {oldest - 1} of {files.location} were deleted, because "
            f"they are older than the landing keeps them; follow it from entry {oldest} on, with "
            f"after={oldest - 1}"
        )
    return after + 1
