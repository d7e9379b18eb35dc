"""A store whose lists lag behind its files, as those of some object stores do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout.landing.storage.local_storage import LocalStorage

if TYPE_CHECKING:
    from pathlib import Path

    from fanout.landing.storage.storage import FileInfo, Storage


class LaggingLists:
    """Files of a directory, without the lock of a local checkpoint.

    Args:
        root: The directory.

    Attributes:
        lagging: Whether lists stay as they are now, while files come.
        hidden: Names that no list shows.
        lists: How often a directory was listed.
    """

    def __init__(self, root: Path) -> None:
        files: Storage = LocalStorage(root)
        self._files = files
        self._seen: dict[str, tuple[FileInfo, ...]] = {}
        self.lagging = False
        self.hidden: set[str] = set()
        self.lists = 0
        self.location = files.location
        self.create, self.read, self.size = files.create, files.read, files.size
        self.walk = files.walk
        self.delete, self.publish, self.scratch = files.delete, files.publish, files.scratch
        self.uri, self.sweep, self.close = files.uri, files.sweep, files.close

    def list(self, directory: str) -> tuple[FileInfo, ...]:
        """Return the files of a directory, or those of the last list before the lag."""
        self.lists += 1
        if not self.lagging:
            found = self._files.list(directory)
            self._seen[directory] = tuple(each for each in found if each.name not in self.hidden)
        return self._seen.get(directory, ())
