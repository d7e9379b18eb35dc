"""Batches that were set aside because their handler had failed: what a checkpoint knows of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal, final

import msgspec

from fanout.landing.claims import create_owned
from fanout.landing.log.entries import MAX_ENTRY_BYTES, VERSION, batch_ids, ledger_format
from fanout.landing.segments.segments import Count  # noqa: TC001 - msgspec reads it

if TYPE_CHECKING:
    from fanout.landing.claims import Ownership
    from fanout.landing.storage.storage import Storage, StoredFiles

SET_ASIDE: Final = "set-aside"

# The newest ones can be looked up; all of them are counted.
_KEPT: Final = 10

_Text = Annotated[str, msgspec.Meta(max_length=1000)]


@final
class SetAsideBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A batch that is set aside, from before the user's function is called with it."""

    version: Literal[1]
    run: Count  # the number of the run that has decided it
    batch: Count  # Spark's id of the micro-batch
    rows: Count  # its records
    error: _Text  # the name of the type that the handler raised
    places: tuple[_Text, ...]  # what it covers of some splits, as text
    before: Count  # how many batches were set aside before it


_FORMAT: Final = ledger_format(SetAsideBatch)


@final
class SetAsideLog:
    """Remember the batches that are set aside, below the checkpoint. Every call blocks.

    A write without the claim of this run is a CheckpointError.
    """

    def __init__(self, storage: Storage, ownership: Ownership) -> None:
        self._storage = storage
        self._ownership = ownership

    def find(self, batch_id: int) -> SetAsideBatch | None:
        """Return what is known of a batch; None where it is not set aside."""
        return _read(self._storage, batch_id)

    def add(self, batch_id: int, *, rows: int, error: str, places: list[str]) -> SetAsideBatch:
        """Set a batch aside; a replay finds that."""
        batch = SetAsideBatch(
            VERSION,
            self._ownership.run,
            batch_id,
            rows,
            error[:1000],
            tuple(place[:1000] for place in places),
            count_set_aside(self._storage),
        )
        create_owned(self._storage, self._ownership, _name(batch_id), msgspec.json.encode(batch))
        for old in _ids(self._storage)[:-_KEPT]:
            self._storage.delete(_name(old))
        return batch

    def remove(self, batch_id: int) -> None:
        """Set a batch aside no longer: its handler is called with it again."""
        self._ownership.check()
        self._storage.delete(_name(batch_id))


def newest_set_aside(files: StoredFiles) -> SetAsideBatch | None:
    """Return the newest batch that was set aside; None where none was."""
    ids = _ids(files)
    return _read(files, ids[-1]) if ids else None


def count_set_aside(files: StoredFiles) -> int:
    """Return how many batches were ever set aside."""
    newest = newest_set_aside(files)
    return 0 if newest is None else newest.before + 1


def _read(files: StoredFiles, batch_id: int) -> SetAsideBatch | None:
    name = _name(batch_id)
    data = files.read(name, limit=MAX_ENTRY_BYTES)
    return None if data is None else _FORMAT.read(data, f"{name} in {files.location}")


def _ids(files: StoredFiles) -> list[int]:
    return batch_ids(info.name for info in files.list(SET_ASIDE))


def _name(batch_id: int) -> str:
    return f"{SET_ASIDE}/{batch_id:012}.json"
