"""The checkpoint of a query that has ended, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.positions import Cursor
from fanout.kafka.partitions import Partition
from fanout.landing.claims import claim_stopped
from fanout.landing.log.entries import BatchEntry, encode_entry, encode_origin, entry_name
from fanout.landing.segments.segments import SegmentFile
from fanout.landing.storage.local_storage import LocalStorage

if TYPE_CHECKING:
    from pathlib import Path


def stored(location: Path, positions: Checkpoint, *, rows: int = 20) -> LocalStorage:
    """Write the checkpoint of a query that has ended after its batch 7."""
    storage = LocalStorage(location / "fanout")
    with claim_stopped(storage, "job"):
        storage.create("origin.json", encode_origin(positions.to_json()))
        segment = SegmentFile("segments/7.parquet", rows, 100)
        entry = BatchEntry(7, "query", (segment,), positions, 1_000)
        storage.create(entry_name(7), encode_entry(entry, run=1))
    return storage


def at(source: str, **offsets: int) -> Checkpoint:
    splits = {
        id_: SplitPosition(Partition.of(id_).split, Cursor(offset - 1), newest=0)
        for id_, offset in offsets.items()
    }
    return Checkpoint(source, splits)
