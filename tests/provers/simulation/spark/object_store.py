"""An object store in memory, reached through a JVM that outlives its Python."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, TypeVar, cast, final

from fanout.errors import CheckpointError
from fanout.landing.storage.storage import FileInfo, check_name
from tests.provers.simulation.spark.disk_stand_ins import DiskPath
from tests.provers.simulation.spark.faults import LostAnswer, SlowOperation
from tests.provers.simulation.spark.process import current_process

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ("RemoteStorage",)

T = TypeVar("T")

_SECONDS = 0.02
_SCRATCH = "/scratch"


@final
class RemoteStorage:
    """A checkpoint in a store that creates exclusively; what it has acknowledged is durable.

    A request that has left the driver takes effect although the Python that made it was killed,
    as long as the JVM lives.

    Args:
        objects: What the store holds, by name; every driver has the same.
    """

    location = "store://bucket/checkpoint/fanout"

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects

    def create(self, name: str, data: bytes) -> None:
        """Create an object, as the only one who does."""
        self._request("create", name, lambda: self._put(name, data))

    def read(self, name: str, *, limit: int) -> bytes | None:
        """Return an object's bytes."""
        data = self._request("read", name, lambda: self.objects.get(name), effect=False)
        if data is not None and len(data) > limit:
            raise CheckpointError(f"{self.location}/{name} is larger than {limit} bytes: damaged")
        return data

    def list(self, directory: str) -> tuple[FileInfo, ...]:
        """Return the objects of a directory."""
        return self._request("list", directory, lambda: self._list(directory), effect=False)

    def walk(self, directory: str) -> tuple[str, ...]:
        """Return the objects of a directory and of those in it."""
        below = f"{directory}/"

        def found() -> tuple[str, ...]:
            return tuple(sorted(name for name in self.objects if name.startswith(below)))

        return self._request("list", directory, found, effect=False)

    def size(self, name: str) -> int | None:
        """Return an object's size."""
        data = self._request("size", name, lambda: self.objects.get(name), effect=False)
        return None if data is None else len(data)

    def delete(self, name: str) -> None:
        """Delete an object."""
        self._request("delete", name, lambda: self.objects.pop(name, None))

    def publish(self, local_file: Path, name: str) -> None:
        """Copy a file of `scratch()` to the store."""
        with local_file.open("rb") as file:
            data = file.read()
        self._request("publish", name, lambda: self._put(name, data))
        local_file.unlink()

    def scratch(self) -> Path:
        """Return a directory on the driver's own disk."""
        path = DiskPath(_SCRATCH)
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            raise CheckpointError(f"cannot make a directory: {error}") from error
        return cast("Path", path)

    def uri(self, name: str) -> str:
        """Return what the session's reader takes."""
        return f"{self.location}/{check_name(name)}"

    def sweep(self) -> None:
        """Do nothing: the store has no half-written objects."""

    def close(self) -> None:
        """Do nothing: the scratch directory goes with the disk."""

    def _request(self, what: str, name: str, act: Callable[[], T], *, effect: bool = True) -> T:
        """Let a request travel, take effect, and its answer travel back."""
        process = current_process.get()
        loop = process.scheduler.loop
        try:
            fault = process.operation(f"remote {what}", check_name(name), effect=effect)
        except OSError as error:
            raise CheckpointError(f"cannot {what} {self.location}/{name}: {error}") from error
        answer = loop.create_future()

        def land() -> None:
            if not process.jvm.alive:
                return
            try:
                result = act()
            except FileExistsError as error:
                if not answer.done():
                    answer.set_exception(error)
            else:
                if not answer.done():
                    answer.set_result(result)

        seconds = fault.seconds if isinstance(fault, SlowOperation) else 0.0
        loop.call_later(process.random.expovariate(1 / _SECONDS) + seconds, land)
        try:
            process.scheduler.until(answer)
        except BaseException:
            answer.cancel()
            raise
        result: T = answer.result()
        process.scheduler.sleep(process.random.expovariate(1 / _SECONDS))
        if isinstance(fault, LostAnswer):
            raise CheckpointError(f"cannot {what} {self.location}/{name}: the answer was lost")
        return result

    def _put(self, name: str, data: bytes) -> None:
        if name in self.objects:
            raise FileExistsError(errno.EEXIST, "the name is taken", name)
        self.objects[name] = data

    def _list(self, directory: str) -> tuple[FileInfo, ...]:
        found = [
            FileInfo(name.rpartition("/")[2], len(data))
            for name, data in self.objects.items()
            if name.rpartition("/")[0] == directory
        ]
        return tuple(sorted(found, key=lambda info: info.name))
