"""Mistakes with an object store that would break a promise, each as a change to the library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from obstore.exceptions import BaseError

from fanout.errors import CheckpointError
from fanout.landing import claims
from fanout.landing.claims import MAX_RUN_BYTES, Ownership, newest_run, run_name
from fanout.landing.log.entries import EntryLog
from fanout.landing.storage import object_storage
from fanout.landing.storage.object_storage import ObjectStorage

if TYPE_CHECKING:
    from fanout.landing.claims import Holder
    from fanout.landing.log.entries import BatchEntry

__all__ = ("OBJECT_BUGS",)


def loss_by_list(self: Ownership) -> CheckpointError | None:
    mark = self.storage.read(run_name(self.run), limit=MAX_RUN_BYTES)
    if mark == self.mark and newest_run(self.storage) <= self.run:
        return None
    return CheckpointError("the checkpoint was taken over by a newer run")


def start_over_another(storage: Any, holder: Holder) -> tuple[int, bytes]:
    run, mark = newest_run(storage) + 1, msgspec.json.encode(holder)
    storage._store.put(run_name(run), mark, mode="overwrite")
    return run, mark


def newest_of_the_list(self: EntryLog) -> BatchEntry | None:
    return self.look_up(self._listed[-1]) if self._listed else None


def never_its_own(self: ObjectStorage, store: Any, name: str, *_: object) -> bool:
    try:
        store.head(name)
    except FileNotFoundError:
        return False
    raise FileExistsError(f"{self.location}/{name}")


def always_its_own(_: ObjectStorage, store: Any, name: str, *__: object) -> bool:
    try:
        store.head(name)
    except FileNotFoundError:
        return False
    return True


def put_unconditionally(_: ObjectStorage, store: Any, name: str, data: bytes) -> None:
    for _attempt in range(3):
        try:
            store.put(name, data, mode="overwrite")
        except BaseError:
            continue
        return
    raise CheckpointError(f"cannot write {name}")


OBJECT_BUGS: dict[str, tuple[Any, str, Any]] = {
    "the owner is checked by a list": (Ownership, "loss", loss_by_list),
    "a run takes the number after the newest of a list": (
        claims,
        "_start_run",
        start_over_another,
    ),
    "the newest entry of a list is taken for the newest": (
        EntryLog,
        "_find_newest",
        newest_of_the_list,
    ),
    "an own object is taken for another writer's": (ObjectStorage, "_holds", never_its_own),
    "another writer's object is taken for an own one": (ObjectStorage, "_holds", always_its_own),
    "a put without an answer is not repeated": (object_storage, "_ATTEMPTS", 1),
    "a put has no condition": (ObjectStorage, "_put", put_unconditionally),
}
