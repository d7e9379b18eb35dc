"""The owner of a checkpoint: which run claimed it last, read without a claim."""

from __future__ import annotations

import fcntl
import os
import platform
import struct
import sys
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, final

import msgspec

from fanout.core.stored_json import MALFORMED_JSON
from fanout.errors import CheckpointError
from fanout.landing.storage.local_storage import LocalFiles

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.landing.storage.storage import StoredFiles

LOCK: Final = "owner.lock"
MAX_RUN_BYTES: Final = 4096
_RUNS: Final = "runs"

# `struct flock` of fcntl(2) in 64 bits: Linux begins with the type, macOS and BSD with the range.
_FLOCK: Final = "hhqqi4x" if sys.platform == "linux" else "qqihh8x"
_TYPE: Final = 0 if sys.platform == "linux" else 3


class Holder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The process of a run, for messages; the token differs between runs with the same number."""

    version: int
    token: str
    application: str
    host: str
    pid: int

    @classmethod
    def of(cls, application: str, pid: int) -> Self:
        """Describe a process of this machine."""
        return cls(1, uuid.uuid4().hex, application, platform.node(), pid)

    def __str__(self) -> str:
        # It is read back from a file: nothing in it may forge a line of a log.
        return f"application {self.application!r}, process {self.pid} on {self.host!r}"


@final
@dataclass(frozen=True, slots=True)
class Owner:
    """The run that claimed a checkpoint last."""

    run: int
    holder: Holder | None  # its process; None where the file of the run cannot be read
    since: int  # when it claimed the checkpoint, in milliseconds since the Unix epoch
    running: bool | None  # whether it still runs; None for a remote checkpoint, which has no lock


def read_owner(files: StoredFiles) -> Owner | None:
    """Return the run that claimed a checkpoint last; None if none has. Nothing is claimed."""
    runs = {int(info.name): info for info in files.list(_RUNS) if _is_number(info.name)}
    if not runs:
        return None
    run = max(runs)
    running = is_claimed(files) if isinstance(files, LocalFiles) else None
    return Owner(run, _read_holder(files, run), runs[run].written_at, running)


def is_claimed(files: LocalFiles) -> bool:
    """Say whether another process runs a query on a local checkpoint. The lock is not taken."""
    path = files.root / LOCK
    try:
        return _is_locked(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise CheckpointError(f"cannot look at the lock {path}: {error.strerror}") from error


def describe_holder(files: StoredFiles) -> str:
    """Describe the newest run, which holds the checkpoint."""
    holder = _read_holder(files, newest_run(files))
    return "another run" if holder is None else str(holder)


def newest_run(files: StoredFiles) -> int:
    """Return the number of the newest run; 0 before the first."""
    return max(run_numbers(files), default=0)


def run_numbers(files: StoredFiles) -> list[int]:
    """Return the numbers of the runs that are remembered."""
    return [int(info.name) for info in files.list(_RUNS) if _is_number(info.name)]


def run_name(run: int) -> str:
    """Return the name of a run's file below the checkpoint."""
    return f"{_RUNS}/{run}"


def _read_holder(files: StoredFiles, run: int) -> Holder | None:
    content = files.read(run_name(run), limit=MAX_RUN_BYTES)
    try:
        return msgspec.json.decode(content or b"", type=Holder)
    except MALFORMED_JSON:
        return None


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal()


def _is_locked(path: Path) -> bool:
    """Return whether another process holds a POSIX lock on a file, by F_GETLK, which takes none."""
    asked: list[int] = [0] * 5
    asked[_TYPE] = fcntl.F_WRLCK
    descriptor = os.open(path, os.O_RDONLY)
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(_FLOCK, *asked))
    finally:
        os.close(descriptor)
    return bool(struct.unpack(_FLOCK, answer)[_TYPE] != fcntl.F_UNLCK)
