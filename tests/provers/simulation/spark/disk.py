"""A disk in memory that knows what would survive a loss of power.

The bytes of a file survive when the file was fsynced after they were written; a name survives when
its directory was fsynced after the name was given, taken or moved. Nothing else may be counted on,
and nothing else is: after a loss of power each of the other changes is there or not, as chance has
it, and the end of a file that was not fsynced may be cut off or full of zeros.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

__all__ = ("Disk", "DiskFile", "DiskFolder", "Node", "sync")


@final
@dataclass(slots=True, eq=False)
class DiskFile:
    """The bytes of a file, under however many names.

    Args:
        data: What every process sees.
        synced: What is on the disk for certain.
    """

    data: bytes = b""
    synced: bytes = b""

    def after_power_loss(self, random: Random) -> DiskFile:
        """Return what may be left: what was fsynced, and some of what was written since."""
        kept, written = self.synced, self.data
        if written != kept:
            begin = len(kept) if written.startswith(kept) else 0
            end = random.randint(begin, len(written))
            zeros = random.choice((0, random.randint(0, len(written) - end)))
            kept = random.choice((kept, written[:end] + bytes(zeros), written))
        return DiskFile(kept, kept)


@final
@dataclass(slots=True, eq=False)
class DiskFolder:
    """The names in a directory.

    Args:
        entries: What every process sees.
        synced: What is on the disk for certain.
        changes: Each name that was given or taken since the last fsync, in order.
    """

    entries: dict[str, Node] = field(default_factory=dict)
    synced: dict[str, Node] = field(default_factory=dict)
    changes: list[tuple[str, Node | None]] = field(default_factory=list)

    def put(self, name: str, node: Node | None) -> None:
        """Give a name to a node, or take it away."""
        self.changes.append((name, node))
        if node is None:
            del self.entries[name]
        else:
            self.entries[name] = node

    def after_power_loss(self, random: Random, files: dict[DiskFile, DiskFile]) -> DiskFolder:
        """Return what may be left: each unsynced name as it was at some moment since the fsync.

        Args:
            random: Where chance comes from.
            files: What is left of each file, which may have several names.
        """
        histories: dict[str, list[Node | None]] = {}
        for name, node in self.changes:
            histories.setdefault(name, [self.synced.get(name)]).append(node)
        chosen: dict[str, Node | None] = {**self.synced}
        chosen.update((name, random.choice(nodes)) for name, nodes in histories.items())
        left: dict[str, Node] = {}
        for name, node in chosen.items():
            match node:
                case DiskFolder():
                    left[name] = node.after_power_loss(random, files)
                case DiskFile():
                    if node not in files:
                        files[node] = node.after_power_loss(random)
                    left[name] = files[node]
                case None:
                    pass
        return DiskFolder(left, dict(left))


Node: TypeAlias = DiskFile | DiskFolder


@final
class Disk:
    """Files and directories by absolute path; every refusal is the OSError of a real disk."""

    def __init__(self) -> None:
        self.root = DiskFolder()

    def find(self, path: str) -> Node:
        """Return what a path names.

        Raises:
            FileNotFoundError: If there is nothing.
            NotADirectoryError: If a file is on the way.
        """
        node: Node = self.root
        for part in _parts(path):
            if isinstance(node, DiskFile):
                raise _refusal(errno.ENOTDIR, path)
            if part not in node.entries:
                raise _refusal(errno.ENOENT, path)
            node = node.entries[part]
        return node

    def folder(self, path: str) -> DiskFolder:
        """Return a directory.

        Raises:
            FileNotFoundError: If there is nothing.
            NotADirectoryError: If it is a file.
        """
        node = self.find(path)
        if isinstance(node, DiskFile):
            raise _refusal(errno.ENOTDIR, path)
        return node

    def file(self, path: str) -> DiskFile:
        """Return a file.

        Raises:
            FileNotFoundError: If there is nothing.
            IsADirectoryError: If it is a directory.
        """
        node = self.find(path)
        if isinstance(node, DiskFolder):
            raise _refusal(errno.EISDIR, path)
        return node

    def create(self, path: str, *, exclusive: bool) -> DiskFile:
        """Make an empty file, or empty the one that is there unless `exclusive` refuses it.

        Raises:
            FileExistsError: If it must be new and is not.
        """
        folder, name = self._place(path)
        if name not in folder.entries:
            folder.put(name, DiskFile())
        elif exclusive:
            raise _refusal(errno.EEXIST, path)
        file = self.file(path)
        file.data = b""
        return file

    def make_folder(self, path: str) -> None:
        """Make a directory.

        Raises:
            FileExistsError: If the name is taken.
        """
        folder, name = self._place(path)
        if name in folder.entries:
            raise _refusal(errno.EEXIST, path)
        folder.put(name, DiskFolder())

    def link(self, source: str, target: str) -> None:
        """Give a file a second name.

        Raises:
            FileExistsError: If the name is taken.
        """
        file = self.file(source)
        folder, name = self._place(target)
        if name in folder.entries:
            code = errno.EEXIST
            raise OSError(code, os.strerror(code), source, None, target)
        folder.put(name, file)

    def unlink(self, path: str) -> None:
        """Take a name away."""
        self.file(path)
        folder, name = self._place(path)
        folder.put(name, None)

    def walk(self, path: str) -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield each directory below a path with the names in it, as `os.walk` does."""
        entries = self.folder(path).entries
        folders = [name for name, node in entries.items() if isinstance(node, DiskFolder)]
        yield path, folders, [name for name in entries if name not in folders]
        for name in folders:
            yield from self.walk(f"{path}/{name}")

    def durable(self, path: str) -> Node | None:
        """Return what a path would name after the worst loss of power; None for nothing."""
        node: Node = self.root
        for part in _parts(path):
            if isinstance(node, DiskFile) or part not in node.synced:
                return None
            node = node.synced[part]
        return node

    def lose_power(self, random: Random) -> None:
        """Forget what was not fsynced, and by chance not all of it."""
        self.root = self.root.after_power_loss(random, {})

    def _place(self, path: str) -> tuple[DiskFolder, str]:
        above, _, name = path.rpartition("/")
        return self.folder(above), name


def sync(node: Node) -> None:
    """Bring a file's bytes, or a directory's names, to the disk for certain."""
    match node:
        case DiskFile():
            node.synced = node.data
        case DiskFolder():
            node.synced = dict(node.entries)
            node.changes.clear()


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _refusal(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
