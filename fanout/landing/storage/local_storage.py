"""Files on the local disk: a checkpoint, and what is written before it is uploaded."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, final

from fanout.core.error_text import disk_reason
from fanout.errors import CheckpointError
from fanout.landing.storage.storage import (
    READERS,
    FileInfo,
    check_name,
    finished,
    is_temporary,
    readable_path,
    temporary_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRATCH: Final = "_scratch"
"""The directory of a location for files that are being written; each writer makes it."""


class LocalFiles:
    """The finished files below one local directory, which need not exist, for reading alone."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.location = str(root)

    def read(self, name: str, *, limit: int) -> bytes | None:
        """Return a file's bytes, at most `limit`, or None if there is no such file."""
        path = self._path(name)
        with _os_errors("read", path):
            try:
                with path.open("rb") as file:
                    data = file.read(limit + 1)
            except FileNotFoundError:
                return None
        if len(data) > limit:
            raise CheckpointError(f"{path} is larger than {limit} bytes: it is damaged")
        return data

    def list(self, directory: str) -> tuple[FileInfo, ...]:
        """Return the finished files of a directory itself, by name; none without it."""
        path = self._path(directory)
        with _os_errors("list", path):
            try:
                with os.scandir(path) as entries:
                    visible = (entry for entry in entries if entry.name[0] not in "_.")
                    found = [_info(entry) for entry in visible if entry.is_file()]
            except FileNotFoundError:
                return ()
        # A query may delete a file while its directory is listed.
        return tuple(sorted((info for info in found if info), key=lambda info: info.name))

    def open(self, name: str) -> Path:
        """Return the path of a file, for `pyarrow.parquet.ParquetFile`."""
        return self._path(name)

    def _path(self, name: str) -> Path:
        return self.root / check_name(name)


class LocalStorage(LocalFiles):
    """Files below one local directory, durable when a call returns.

    `create` and `publish` give the file its name by `link(2)`, which refuses a name that is taken
    and shows the whole file or none of it. File and directory are fsynced, so both survive a loss
    of power as far as the disk does what fsync promises. The root and other directories are made
    when they are missing. What the file system refuses is a CheckpointError.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._scratch = root / SCRATCH
        with _os_errors("use", root):
            _make_directory(root)
        if not os.access(root, os.W_OK | os.X_OK):
            raise CheckpointError(f"cannot use {root}: no permission to write")

    def create(self, name: str, data: bytes) -> None:
        """Create a file: exclusively, atomically and durably; a taken name is a FileExistsError."""
        final = self._path(name)
        with _os_errors("write", final):
            _make_directory(final.parent)
            temporary = final.with_name(temporary_name())
            try:
                with temporary.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                _link(temporary, final)
            finally:
                temporary.unlink(missing_ok=True)

    def walk(self, directory: str) -> tuple[str, ...]:
        """Return the names of all finished files of a directory and of those in it."""
        top = self._path(directory)
        with _os_errors("list", top):
            walked = os.walk(top, onerror=_raise_unless_missing)
            found = (Path(below, name) for below, _, names in walked for name in names)
            return finished(str(path.relative_to(self.root)) for path in found)

    def size(self, name: str) -> int | None:
        """Return a file's size in bytes, or None if there is no such file."""
        path = self._path(name)
        with _os_errors("read", path):
            try:
                return path.stat().st_size
            except FileNotFoundError:
                return None

    def delete(self, name: str) -> None:
        """Delete a file; one that does not exist is no error.

        The deletion is not fsynced: after a loss of power the file may be there again.
        """
        path = self._path(name)
        with _os_errors("delete", path):
            path.unlink(missing_ok=True)

    def publish(self, local_file: Path, name: str) -> None:
        """Give a finished file of `scratch()` its final name: exclusively, atomically and durably.

        The file is closed by its writer, and gone afterwards. A name that is taken is a
        FileExistsError.
        """
        final = self._path(name)
        with _os_errors("write", final):
            _make_directory(final.parent)
            _fsync(local_file)
            _link(local_file, final)
            local_file.unlink()

    def scratch(self) -> Path:
        """Return the directory in which a file is written before `publish`.

        It is on the same file system as the final name, so that publishing copies nothing.
        """
        with _os_errors("use", self._scratch):
            self._scratch.mkdir(exist_ok=True)
        return self._scratch

    def uri(self, name: str) -> str:
        """Return what `spark.read` takes for a file."""
        return readable_path(f"file://{self._path(name)}")

    def sweep(self) -> None:
        """Finish what a killed run left half done; for the owner, before it reads or writes.

        What was half written is removed. What has its name already may have been named just before
        the end, or before an fsync that failed: it is made durable, for it is going to be trusted.
        """
        with _os_errors("clean", self.root):
            for directory, _, names in os.walk(self.root, onerror=_raise):
                if Path(directory) == self.root / READERS:
                    continue  # what a reader is writing is not half written
                for name in names:
                    if Path(directory) == self._scratch or is_temporary(name):
                        Path(directory, name).unlink(missing_ok=True)
                _fsync(Path(directory))
            for named in (self.root, *self.root.parents):
                if named.is_mount():
                    break  # it was there before, and what is above it may refuse an fsync
                try:
                    _fsync(named.parent)
                except PermissionError:
                    break  # without permission to read it, no run has made anything in it

    def close(self) -> None:
        """Do nothing: everything is in the checkpoint."""


@contextmanager
def _os_errors(doing: str, path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        reason = disk_reason(error)
        if error.errno in {errno.EPERM, errno.EOPNOTSUPP, errno.EXDEV} and error.filename2:
            reason = f"{reason} (it must be on one file system that has hard links)"
        raise CheckpointError(f"cannot {doing} {path}: {reason}") from error


def _info(entry: os.DirEntry[str]) -> FileInfo | None:
    try:
        status = entry.stat()
    except FileNotFoundError:
        return None
    return FileInfo(entry.name, status.st_size, status.st_mtime_ns // 1_000_000)


def _raise(error: OSError) -> NoReturn:
    raise error


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _link(source: Path, final: Path) -> None:
    os.link(source, final)
    _fsync(final.parent)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_directory(path: Path) -> None:
    """Make a directory and its parents; each new name is durable in the directory above it."""
    if path.is_dir():
        return
    _make_directory(path.parent)
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "a file is in the way", str(path)) from None
    _fsync(path.parent)


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
