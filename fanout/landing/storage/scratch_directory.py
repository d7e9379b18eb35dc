"""A directory on this machine for temporary files, which the next process removes after a kill."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from fanout.core.error_text import disk_reason
from fanout.errors import CheckpointError

_PREFIX: Final = "fanout-scratch-"


@final
class ScratchDirectory:
    """Hold a directory until it is closed; remove those of processes that have ended without.

    A lock on the directory shows that its process lives: it goes with the process, however that
    ends. It blocks. Without a parent it is among the system's temporary files.
    """

    def __init__(self, parent: str | None = None) -> None:
        try:
            root = Path(parent or tempfile.gettempdir())
        except OSError as error:
            raise CheckpointError(f"{disk_reason(error)}; set TMPDIR to one") from error
        try:
            for left in root.glob(f"{_PREFIX}*"):
                _remove_if_left(left)
            made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=root))
            self._lock = os.open(made, os.O_RDONLY)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            # Only now can another process find it, and it is locked.
            self.path = made.rename(root / made.name.removeprefix("."))
        except OSError as error:
            raise CheckpointError(
                f"cannot make a directory for temporary files in {root}: {disk_reason(error)}"
            ) from error

    def close(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_if_left(directory: Path) -> None:
    with suppress(OSError):  # another user's, or another process removes it
        lock = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(lock)
