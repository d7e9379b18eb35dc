"""Stand-ins for `os`, `Path` and `pyarrow.parquet`, on the simulated disk.

They have exactly what the library uses. What they do not have is an AttributeError, so that new
code cannot pass by the disk unseen.
"""

from __future__ import annotations

import errno
import io
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Self, final

import pyarrow.parquet as pq

from tests.provers.simulation.spark.disk import DiskFile, DiskFolder, sync
from tests.provers.simulation.spark.process import current_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from tests.provers.simulation.spark.disk import Node
    from tests.provers.simulation.spark.process import SimDriverProcess

__all__ = ("DiskOs", "DiskParquet", "DiskPath", "OpenFile")


def _begin(name: str, path: object, *, effect: bool = True) -> SimDriverProcess:
    process = current_process.get()
    process.slow_operation(name, str(path), effect=effect)
    return process


@final
class OpenFile:
    """A file that the running process has open, buffered as Python's own is.

    Args:
        path: Where it was when it was opened.
        file: The file.
    """

    def __init__(self, path: object, file: DiskFile) -> None:
        self._path = path
        self._file = file
        self._unwritten = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> Descriptor:
        """Return what `fsync` takes."""
        return Descriptor(self._path, self._file)

    def read(self, size: int = -1) -> bytes:
        """Read from the beginning."""
        _begin("read", self._path, effect=False)
        return self._file.data if size < 0 else self._file.data[:size]

    def write(self, data: bytes) -> int:
        """Write into the buffer."""
        self._unwritten += data
        return len(data)

    def flush(self) -> None:
        """Write the buffer to the file; a process that dies meanwhile has written the half."""
        data, self._unwritten = self._unwritten, b""
        for part in (data[: len(data) // 2], data[len(data) // 2 :]):
            if part:
                _begin("write", self._path)
                self._file.data += part

    def close(self) -> None:
        """Flush; a descriptor that is left open does no harm here."""
        self.flush()


@final
@dataclass(frozen=True, slots=True)
class Descriptor:
    """Stands for the number of an open file or directory."""

    path: object
    node: Node


@final
@dataclass(frozen=True, slots=True)
class FileStatus:
    """The status of a file."""

    st_size: int
    st_mtime_ns: int = 0


@final
@dataclass(frozen=True, slots=True)
class FolderEntry:
    """An entry of a directory."""

    name: str
    node: Node

    def is_file(self) -> bool:
        """Whether it is a file."""
        return isinstance(self.node, DiskFile)

    def stat(self) -> FileStatus:
        """Return what is known of it."""
        return _status(self.node)


@final
class DiskPath(PurePosixPath):
    """A path on the disk of the running process."""

    def open(self, mode: str) -> OpenFile:
        """Open the file in one of the modes rb, wb and xb."""
        process = _begin(f"open {mode}", self, effect=mode != "rb")
        if mode == "rb":
            return OpenFile(self, process.disk.file(str(self)))
        return OpenFile(self, process.disk.create(str(self), exclusive=mode == "xb"))

    def read_bytes(self) -> bytes:
        """Return all of the file."""
        with self.open("rb") as file:
            return file.read()

    def stat(self) -> FileStatus:
        """Return what is known of the file."""
        return _status(_begin("stat", self, effect=False).disk.find(str(self)))

    def is_dir(self) -> bool:
        """Whether it is a directory."""
        process = _begin("stat", self, effect=False)
        try:
            return isinstance(process.disk.find(str(self)), DiskFolder)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def is_mount(self) -> bool:
        """Whether another file system begins here: the disk has one."""
        return self == self.parent

    def mkdir(self, *, exist_ok: bool = False) -> None:
        """Make the directory."""
        process = _begin("mkdir", self)
        try:
            process.disk.make_folder(str(self))
        except FileExistsError:
            if not (exist_ok and isinstance(process.disk.find(str(self)), DiskFolder)):
                raise

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Take the name away."""
        process = _begin("unlink", self)
        try:
            process.disk.unlink(str(self))
        except FileNotFoundError:
            if not missing_ok:
                raise


@final
class DiskOs:
    """The part that the library uses of `os`."""

    O_RDONLY = os.O_RDONLY
    W_OK = os.W_OK
    X_OK = os.X_OK

    @staticmethod
    def access(path: DiskPath, _: int) -> bool:
        """Whether the path may be used: it may, if it can be looked at."""
        try:
            return path.is_dir()
        except OSError:
            return False

    @staticmethod
    def open(path: DiskPath, flags: int) -> Descriptor:
        """Open a file or a directory to fsync it."""
        assert flags == os.O_RDONLY
        return Descriptor(path, _begin("open", path, effect=False).disk.find(str(path)))

    @staticmethod
    def close(_: Descriptor) -> None:
        """Close what was opened."""

    @staticmethod
    def fsync(descriptor: Descriptor) -> None:
        """Bring bytes or names to the disk for certain."""
        _begin("fsync", descriptor.path)
        sync(descriptor.node)

    @staticmethod
    def link(source: DiskPath, target: DiskPath) -> None:
        """Give a file a second name."""
        _begin("link", target).disk.link(str(source), str(target))

    @staticmethod
    @contextmanager
    def scandir(path: DiskPath) -> Iterator[Iterator[FolderEntry]]:
        """Yield what is in a directory."""
        entries = _begin("list", path, effect=False).disk.folder(str(path)).entries
        yield iter([FolderEntry(name, node) for name, node in entries.items()])

    @staticmethod
    def walk(
        path: DiskPath, *, onerror: Callable[[OSError], object]
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield each directory with what is in it, and go on after an error that was reported."""
        try:
            process = _begin("list", path, effect=False)
            found = list(process.disk.walk(str(path)))
        except OSError as error:
            onerror(error)
        else:
            yield from found


@final
class DiskParquet:
    """The used part of `pyarrow.parquet`: a real writer, whose bytes go to the disk."""

    class ParquetWriter:
        """Write with the real one into memory, and what it has written to the disk."""

        def __init__(self, path: DiskPath, schema: pa.Schema, **options: Any) -> None:
            self._file = path.open("wb")
            self._buffer = io.BytesIO()
            self._writer = pq.ParquetWriter(self._buffer, schema, **options)
            self._moved = 0

        def write_table(self, table: pa.Table, row_group_size: int) -> None:
            """Write row groups."""
            self._writer.write_table(table, row_group_size=row_group_size)
            self._move()

        def close(self) -> None:
            """Write the end of the file."""
            self._writer.close()
            self._move()

        def _move(self) -> None:
            data = self._buffer.getvalue()
            self._file.write(data[self._moved :])
            self._moved = len(data)
            self._file.flush()


def _status(node: Node) -> FileStatus:
    match node:
        case DiskFile():
            return FileStatus(len(node.data))
        case DiskFolder():
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
