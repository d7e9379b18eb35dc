"""Read the stored positions of a stream or a query from the local disk, without Spark."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from fanout.core.checkpoint import Checkpoint
from fanout.errors import CheckpointError, FanOutError, OptionError, PositionError
from fanout.landing.log.checkpoint_status import newest_positions
from fanout.landing.log.entries import DIRECTORY, MAX_ENTRY_BYTES, ORIGIN
from fanout.landing.storage.local_storage import LocalFiles


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
