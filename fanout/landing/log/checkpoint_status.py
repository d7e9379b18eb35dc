"""What a checkpoint, a landing or a file of positions holds, read while a query may run."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final
from urllib.parse import unquote, urlsplit

from fanout.core.checkpoint import Checkpoint
from fanout.errors import CheckpointError, FanOutError, OptionError, PositionError
from fanout.landing.claims import read_owner
from fanout.landing.log.columns import stored_identity
from fanout.landing.log.entries import (
    BATCHES,
    DIRECTORY,
    MAX_ENTRY_BYTES,
    ORIGIN,
    BatchEntry,
    batch_ids,
    decode_entry,
    decode_origin,
    entry_name,
)
from fanout.landing.log.gaps import find_gap
from fanout.landing.log.pending import PENDING, decode_pending, pending_name
from fanout.landing.log.set_aside import newest_set_aside
from fanout.landing.storage.local_storage import LocalFiles

if TYPE_CHECKING:
    from fanout.landing.claims import Owner
    from fanout.landing.log.set_aside import SetAsideBatch
    from fanout.landing.storage.storage import StoredFiles

# A running query may write a newer entry, and delete what was the newest, before that is read.
_TRIES = 3


@final
@dataclass(frozen=True, slots=True)
class StoredBatch:
    """The newest batch of a checkpoint."""

    entry: BatchEntry
    # When its entry was written, just before the handler was called, in milliseconds since the Unix
    # epoch.
    written_at: int

    @property
    def rows(self) -> int:
        """Its records; 0 where only idle progress was made."""
        return self.entry.rows


@final
@dataclass(frozen=True, slots=True)
class PendingSummary:
    """The pending segments that no batch has taken yet."""

    segments: int = 0  # their number
    rows: int = 0  # their records
    # Every split's position after them; None where there are none.
    positions: Checkpoint | None = None


@final
@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """What a checkpoint or a landing holds."""

    location: str
    landing: bool  # whether it is a landing
    entries: int  # how many it has; the newest batches alone have one in a checkpoint
    # Every split's position after the newest batch, or where the first begins; None before the
    # first run has found out where to begin.
    positions: Checkpoint | None
    batch: StoredBatch | None  # the newest one; None before the first
    pending: PendingSummary  # which only a share group has
    owner: Owner | None  # the run that claimed it last
    set_aside: SetAsideBatch | None = None  # the newest batch that was set aside
    gap: range | None = None  # the entries that a landing has lost; None where it is whole


def read_status(files: StoredFiles) -> CheckpointStatus:
    """Read what a checkpoint or a landing holds. It blocks.

    `files` are the directory of fanout in a checkpoint location, or a landing; neither is an
    OptionError.
    """
    owner = read_owner(files)
    positions, batch = newest_positions(files)
    if owner is None and positions is None:
        # Spark reads a path without a scheme from its default file system, which may be another.
        local = "; this path is on the local disk; write hdfs://… if it is there"
        raise OptionError(
            f"there is no checkpoint of fanout at {files.location}, and no landing: name the "
            f"checkpoint_location of a query that has begun, or the location of a landing"
            f"{'' if urlsplit(files.location).scheme else local}"
        )
    landing = stored_identity(files) is not None
    numbers = batch_ids(info.name for info in files.list(BATCHES))
    newest = None if batch is None else batch.entry
    return CheckpointStatus(
        files.location,
        landing,
        len(numbers),
        positions,
        batch,
        _pending(files, batch),
        owner,
        newest_set_aside(files),
        find_gap(files, numbers, newest) if landing else None,
    )


def newest_positions(files: StoredFiles) -> tuple[Checkpoint | None, StoredBatch | None]:
    """Read the newest positions, and their batch: those of the origin before the first batch."""
    for _ in range(_TRIES):
        entries = {info.name: info.written_at for info in files.list(BATCHES)}
        ids = batch_ids(entries)
        data = files.read(entry_name(ids[-1]) if ids else ORIGIN, limit=MAX_ENTRY_BYTES)
        if data is not None and ids:
            entry = decode_entry(data, ids[-1], location=files.location)
            written_at = entries[entry_name(ids[-1]).rpartition("/")[2]]
            return entry.positions, StoredBatch(entry, written_at)
        if data is not None:
            return decode_origin(data, location=files.location), None
    return None, None


def _pending(files: StoredFiles, batch: StoredBatch | None) -> PendingSummary:
    taken = None if batch is None else batch.entry.taken
    last = 0 if taken is None else taken.last
    numbers = batch_ids(info.name for info in files.list(PENDING))
    found = []
    for number in (number for number in numbers if number > last):
        data = files.read(pending_name(number), limit=MAX_ENTRY_BYTES)
        # A batch of a running query has taken a segment that has gone meanwhile.
        if data is not None:
            found.append(decode_pending(data, number, location=files.location))
    kept = [pending for pending in found if pending is not None]
    return PendingSummary(
        len(kept),
        sum(pending.segment.rows for pending in kept),
        kept[-1].positions if kept else None,
    )


def read_positions(location: str) -> Checkpoint:
    """Read stored positions; nothing is claimed or changed, so a query may be running. It blocks.

    The location is a file that holds `stream.positions`, the checkpoint location of a Spark query,
    or a landing, as a path or a URI of the scheme `file`.

    Raises:
        OptionError: It is not on the local disk, nothing is there, or it may not be read.
        CheckpointError: What is there is damaged, or was written by a newer version.
    """
    try:
        return _positions_at(location)
    except FanOutError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise OptionError(f"cannot read stored positions at {location!r}: {reason}") from error


def _positions_at(location: str) -> Checkpoint:
    path = local_path(location, "positions")
    if path.is_file():
        try:
            return Checkpoint.from_json(_read(path))
        except PositionError as error:
            raise CheckpointError(f"{path}: {error}") from error
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    positions, _ = newest_positions(stored_files(path))
    if positions is None:
        raise OptionError(
            f"there are no stored positions at {location}: name a file that holds "
            f"stream.positions, the checkpoint location of a query that has begun, or a landing"
        )
    return positions


def stored_files(path: Path) -> LocalFiles:
    """Return the files of a landing, or those of fanout in the checkpoint location of a query."""
    landing = os.path.isfile(path / ORIGIN)  # noqa: PTH113 - what may not be looked at is none
    return LocalFiles(path if landing else path / DIRECTORY)


def local_path(location: str, what: str) -> Path:
    """Return where a path or a URI of the scheme `file` is on the local disk.

    Any other location is an OptionError, which says with `what` what is wanted of it.
    """
    match urlsplit(location):
        case ("", _, _, _, _):
            return Path(location)
        case ("file", "" | "localhost", path, _, _):
            return Path(unquote(path))
        case (scheme, _, _, _, _):
            raise OptionError(
                f"{what} are read from the local disk alone, not from {scheme}: copy the "
                f"directory {DIRECTORY} of the checkpoint location here, and name what it is in"
            )


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(MAX_ENTRY_BYTES + 1)
    if len(data) > MAX_ENTRY_BYTES:
        raise CheckpointError(f"{path} takes more than {MAX_ENTRY_BYTES} bytes")
    return data
