"""A client of an object store in memory, put where `ObjectStorage` has obstore's.

The service loses requests and answers, or does late what it was asked to do. Its lists lag:
what was created or deleted lately may be missing from them, or still in them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, final

from obstore.exceptions import AlreadyExistsError, GenericError

from fanout.landing.log.entries import BATCHES
from fanout.landing.storage.object_location import ObjectLocation
from fanout.landing.storage.object_storage import ObjectStorage
from tests.provers.simulation.randomness import happens
from tests.provers.simulation.spark.disk_stand_ins import DiskPath
from tests.provers.simulation.spark.faults import LateList, LostAnswer, SlowOperation
from tests.provers.simulation.spark.process import current_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

__all__ = ("STORAGE_STAND_INS", "Bucket", "ObjectClient", "open_bucket")

T = TypeVar("T")

_SECONDS: Final = 0.02
_LATE: Final = 2.0
# Of the attempts of one request; the library makes three.
_LOST_IN_A_ROW: Final = 2
_MODIFIED: Final = datetime.fromtimestamp(0, UTC)
_SCRATCH: Final = "/scratch"


@final
@dataclass(eq=False)
class Bucket:
    """The objects of a bucket, by name, and what its lists show of them.

    Args:
        objects: What it holds.
        random: Which changes a list misses.
        lag: For how many seconds a list may miss a change.
        lost: The share of puts and deletions that get no answer.
    """

    objects: dict[str, bytes]
    random: Random
    lag: float = 0.0
    lost: float = 0.0
    _changes: dict[str, tuple[float, bytes | None]] = field(default_factory=dict)

    def put(self, name: str, data: bytes | None, now: float) -> None:
        """Put an object; None deletes it."""
        self._changes[name] = (now, self.objects.get(name))
        if data is None:
            self.objects.pop(name, None)
        else:
            self.objects[name] = data

    def listed(self, prefix: str, now: float) -> dict[str, bytes]:
        """Return what a list shows of the objects with a prefix."""
        shown = dict(self.objects)
        for name, (then, before) in self._changes.items():
            if then > now - self.lag and happens(self.random, 0.5):
                shown.pop(name, None)
                if before is not None:
                    shown[name] = before
        return {name: data for name, data in shown.items() if name.startswith(prefix)}


@final
class _Found:
    """An object that was read."""

    def __init__(self, data: bytes) -> None:
        self.meta = {"size": len(data)}
        self._data = data

    def __iter__(self) -> Iterator[bytes]:
        """Yield it in two chunks."""
        half = len(self._data) // 2
        return iter((self._data[:half], self._data[half:]))

    def bytes(self) -> bytes:
        """Return all of it."""
        return self._data


@final
class ObjectClient:
    """The part that `ObjectStorage` uses of a store of obstore.

    Reads and lists whose answer is lost are repeated here, as obstore repeats them.

    Args:
        bucket: What the service holds.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self._lost = 0

    def put(self, name: str, data: bytes, *, mode: str) -> None:
        """Put an object; in the mode `create` it must be new."""

        def put() -> None:
            if mode == "create" and name in self.bucket.objects:
                raise AlreadyExistsError(f"Object at location {name} already exists")
            self.bucket.put(name, data, _now())

        self._request("put", name, put, effect=True)

    def get(self, name: str) -> _Found:
        """Return an object."""
        return _Found(self._request("get", name, lambda: self._object(name)))

    def head(self, name: str) -> dict[str, int]:
        """Return an object's size."""
        return {"size": len(self._request("head", name, lambda: self._object(name)))}

    def delete(self, name: str) -> None:
        """Delete an object."""
        self._request("delete", name, lambda: self.bucket.put(name, None, _now()), effect=True)

    def list_with_delimiter(self, directory: str) -> dict[str, list[dict[str, Any]]]:
        """Return the objects of a directory."""
        found = self._list(directory)
        direct = (each for each in found if each["path"].rpartition("/")[0] == directory)
        return {"objects": list(direct)}

    def _list(self, directory: str) -> list[dict[str, Any]]:
        shown = self._request("list", directory, lambda: self._shown(f"{directory}/"))
        return [
            {"path": name, "size": len(data), "last_modified": _MODIFIED}
            for name, data in sorted(shown.items())
        ]

    def _shown(self, prefix: str) -> dict[str, bytes]:
        shown = self.bucket.listed(prefix, _now())
        there = {name for name in self.bucket.objects if name.startswith(prefix)}
        happened = current_process.get().happened
        if prefix == f"{BATCHES}/" and there != shown.keys() and LateList() not in happened:
            happened.append(LateList())
        return shown

    def _object(self, name: str) -> bytes:
        if name not in self.bucket.objects:
            raise FileNotFoundError(f"Object at location {name} not found")
        return self.bucket.objects[name]

    def _request(self, what: str, name: str, act: Callable[[], T], *, effect: bool = False) -> T:
        """Let a request travel, take effect, and its answer travel back."""
        process = current_process.get()
        try:
            fault = process.operation(f"object {what}", name, effect=effect)
        except OSError as error:
            raise GenericError(
                "Generic S3 error: Server returned non-2xx status code: 503 Service Unavailable"
            ) from error
        slow = fault.seconds if isinstance(fault, SlowOperation) else 0.0
        if effect and self._loses(fault):
            self._lose(fault, act, slow)
        elif isinstance(fault, LostAnswer):
            process.scheduler.sleep(_travel())
        return _sent(act, slow)

    def _loses(self, fault: LostAnswer | SlowOperation | None) -> bool:
        """Say whether the answer to a put or a deletion is lost, not too often in a row."""
        drawn = happens(self.bucket.random, self.bucket.lost)
        lost = (drawn or isinstance(fault, LostAnswer)) and self._lost < _LOST_IN_A_ROW
        self._lost = self._lost + 1 if lost else 0
        return lost

    def _lose(
        self, fault: LostAnswer | SlowOperation | None, act: Callable[[], T], slow: float
    ) -> None:
        """Do what was asked for, or do not, or do it late; and raise what obstore does."""
        how = "done" if fault is not None else self.bucket.random.choice(("done", "late", "never"))
        if how == "done":
            with suppress(AlreadyExistsError):  # this answer is lost as well
                _sent(act, slow)
        elif how == "late":
            _land_later(act, self.bucket.random.uniform(0.0, _LATE))
        raise GenericError("Generic S3 error: HTTP error: HttpError { kind: Request }")

    def list(self, directory: str) -> list[list[dict[str, Any]]]:
        """Return pages of the objects of a directory and of those in it."""
        return [self._list(directory)]


def _sent(act: Callable[[], T], slow: float) -> T:
    """Let a request take effect after a while, unless its process has gone, and wait for that."""
    process = current_process.get()
    loop = process.scheduler.loop
    answer = loop.create_future()

    def land() -> None:
        if not process.jvm.alive:
            return
        try:
            result = act()
        except (AlreadyExistsError, FileNotFoundError) as error:
            if not answer.done():
                answer.set_exception(error)
        else:
            if not answer.done():
                answer.set_result(result)

    loop.call_later(_travel() + slow, land)
    try:
        process.scheduler.until(answer)
    except BaseException:
        answer.cancel()
        raise
    result: T = answer.result()
    process.scheduler.sleep(_travel())
    return result


def _land_later(act: Callable[[], object], seconds: float) -> None:
    """Let a request take effect when its client waits for it no longer."""
    process = current_process.get()

    def land() -> None:
        if process.jvm.alive:
            with suppress(AlreadyExistsError):
                act()

    process.scheduler.loop.call_later(seconds, land)


def _travel() -> float:
    return current_process.get().random.expovariate(1 / _SECONDS)


def _now() -> float:
    return current_process.get().scheduler.loop.time()


class _Scratch:
    """A directory on the simulated disk, with which it goes."""

    def __init__(self) -> None:
        self.path = DiskPath(_SCRATCH)
        self.path.mkdir(exist_ok=True)

    def close(self) -> None:
        """Do nothing."""


STORAGE_STAND_INS: Final[dict[str, Any]] = {"ScratchDirectory": _Scratch}


def open_bucket(bucket: Bucket) -> ObjectStorage:
    """Return the library's storage in front of a bucket, for the running process."""
    place = ObjectLocation("s3://bucket/checkpoint/fanout", "S3", "bucket", "checkpoint/fanout")
    client = cast("Any", ObjectClient(bucket))
    return ObjectStorage(place, client, client)
