"""What retention does to a landing, without waiting for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fanout.landing.log.entries import BATCHES, batch_ids, encode_entry, entry_name, read_entry
from fanout.landing.storage.local_storage import LocalStorage

if TYPE_CHECKING:
    from pathlib import Path


def expire(landing: Path, first: int) -> None:
    """Delete the entries before one, as `keep` does: the newest entry says so before."""
    storage = LocalStorage(landing)
    newest = read_entry(storage, max(batch_ids(one.name for one in storage.list(BATCHES))))
    assert newest is not None
    file = landing / entry_name(newest.batch_id)
    file.write_bytes(encode_entry(replace(newest, first=first), run=1))
    for number in range(first):
        storage.delete(entry_name(number))
