"""The lock on a local checkpoint, and the POSIX lock that a process without a JVM takes."""

from __future__ import annotations

import fcntl
from typing import TYPE_CHECKING, Protocol, Self, final

from fanout.errors import CheckpointError

if TYPE_CHECKING:
    from io import FileIO
    from pathlib import Path


class Lock(Protocol):
    """An exclusive lock on a file, held until `release` or until the process that took it ends."""

    @property
    def held(self) -> bool:
        """Whether the lock is still held."""

    def release(self) -> None:
        """Free the lock."""


@final
class PosixLock:
    """An exclusive lock on a file, held by this process until `release` or its death.

    It is the record lock of POSIX that the JVM takes as well (`java.nio.channels.FileLock`), so
    that it keeps a JVM away and is kept away by one. It does not keep this process away.

    Args:
        file: The open file; the lock ends when it is closed.
    """

    def __init__(self, file: FileIO) -> None:
        self._file = file

    @classmethod
    def try_acquire(cls, path: Path) -> Self | None:
        """Take the lock, or return None if another process has it.

        Args:
            path: The lock file, made when it is missing; its directory exists.

        Raises:
            CheckpointError: The file cannot be opened, or its file system has no locks.
        """
        try:
            file = path.open("ab", buffering=0)
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BaseException:
                file.close()
                raise
        except (BlockingIOError, PermissionError) as error:
            if isinstance(error, PermissionError) and error.filename is not None:
                raise CheckpointError(f"cannot lock {path}: {error.strerror}") from error
            return None  # EAGAIN or EACCES: another process has the lock
        except OSError as error:
            raise CheckpointError(f"cannot lock {path}: {error.strerror}") from error
        return cls(file)

    @property
    def held(self) -> bool:
        """Whether this process still holds the lock."""
        return not self._file.closed

    def release(self) -> None:
        """Free the lock."""
        self._file.close()
