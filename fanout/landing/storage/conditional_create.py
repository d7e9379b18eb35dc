"""Check whether a store refuses to create an object twice."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from fanout.errors import CheckpointError

if TYPE_CHECKING:
    from fanout.landing.storage.storage import Storage

_PROBES: Final = "probes"
_FIRST, _SECOND = b"first", b"other"
# By the clock of the store. A check takes seconds, so it is of a run that was killed.
_ABANDONED_MS: Final = 3_600_000


def check_conditional_create(storage: Storage) -> None:
    """Return if a store refuses to create an object twice; call it before a run writes.

    A probe is created twice, read, and deleted, so that each permission is tried that a run needs:
    that of deleting first, with an object that is not there, as otherwise a probe would stay. It
    cannot tell a store that looks for the name first, and then replaces what another writer has
    created meanwhile. Probes that a killed run left are deleted. A store that replaced the probe,
    or did not show it, is a CheckpointError.
    """
    probe = uuid.uuid4().hex
    name = f"{_PROBES}/{probe}"
    storage.delete(name)
    storage.create(name, _FIRST)
    refused = _is_refused(storage, name)
    found = storage.read(name, limit=len(_FIRST))
    _delete_abandoned(storage, probe)
    storage.delete(name)
    if not refused or found == _SECOND:
        raise CheckpointError(
            f"cannot use {storage.location}: the store ignores the condition of a put "
            "(If-None-Match) and replaced an object that it was to keep, so two runs could both "
            "write one entry; use a store with conditional writes, as AWS, Google and Azure have"
        )
    if found != _FIRST:
        raise CheckpointError(
            f"cannot use {storage.location}: the store does not show an object that was just "
            "created, so a run could miss the newest entry; use a store with strong consistency"
        )


def _is_refused(storage: Storage, name: str) -> bool:
    try:
        storage.create(name, _SECOND)
    except FileExistsError:
        return True
    return False


def _delete_abandoned(storage: Storage, probe: str) -> None:
    written_at = {info.name: info.written_at for info in storage.list(_PROBES)}
    now = written_at.get(probe, 0)
    for name, then in written_at.items():
        if then < now - _ABANDONED_MS:
            storage.delete(f"{_PROBES}/{name}")
