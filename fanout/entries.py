"""The files of a ledger: how a batch, and where everything began, are written down.

What was written by another version, or is damaged, is refused; nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar, final

import msgspec

from fanout.core.checkpoint import MAX_JSON_BYTES, Checkpoint
from fanout.core.malformed import MALFORMED_JSON
from fanout.errors import CheckpointError, PositionError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = (
    "BATCHES",
    "DIRECTORY",
    "MAX_ENTRY_BYTES",
    "ORIGIN",
    "Entry",
    "SegmentFile",
    "batch_ids",
    "decode_entry",
    "decode_origin",
    "encode_entry",
    "encode_origin",
    "entry_name",
)

# Below the checkpoint location, beside Spark's own offsets/, commits/, sources/ and metadata.
DIRECTORY: Final = "fanout"
BATCHES: Final = "batches"
ORIGIN: Final = "origin.json"
MAX_ENTRY_BYTES: Final = MAX_JSON_BYTES + 4096
_VERSION: Final = 1

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Millis = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
T = TypeVar("T")


@final
class SegmentFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A published segment, as the ledger remembers it.

    Args:
        name: Its name below the checkpoint.
        rows: Its records.
        size: Its bytes on disk.
    """

    name: Annotated[str, msgspec.Meta(pattern=r"^segments/[a-z0-9-]+\.parquet\Z", max_length=100)]
    rows: _Count
    size: _Count


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """What one batch id stands for, for ever.

    Args:
        batch_id: Spark's id of the micro-batch.
        query_id: Spark's id of the query.
        segment: Its records; None where only idle progress was made.
        positions: Every split's position after the batch.
        watermark: The stream's watermark after its records, in milliseconds since the Unix epoch;
            None where there is none.
    """

    batch_id: int
    query_id: str
    segment: SegmentFile | None
    positions: Checkpoint
    watermark: int | None = None


class _VersionWire(msgspec.Struct, frozen=True):
    version: int


class _OriginWire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    positions: msgspec.Raw


class _EntryWire(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    version: Literal[1]
    run: _Count
    batch: _Count
    query: Annotated[str, msgspec.Meta(max_length=100)]
    segment: SegmentFile | None
    positions: msgspec.Raw
    watermark: _Millis | None = None


def entry_name(batch_id: int) -> str:
    """Return the name of a batch's file below the checkpoint."""
    return f"{BATCHES}/{batch_id:012}.json"


def batch_ids(names: Iterable[str]) -> list[int]:
    """Return the ids of the batches whose files are in a directory, in order."""
    stems = (name.removesuffix(".json") for name in names)
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def encode_entry(entry: Entry, *, run: int) -> bytes:
    """Write an entry down.

    Args:
        entry: The entry.
        run: The number of the run that made it.
    """
    wire = _EntryWire(
        _VERSION,
        run,
        entry.batch_id,
        entry.query_id,
        entry.segment,
        msgspec.Raw(entry.positions.to_json().encode()),
        entry.watermark,
    )
    return msgspec.json.encode(wire)


def decode_entry(data: bytes, batch_id: int, *, location: str) -> Entry:
    """Read an entry back.

    Args:
        data: The bytes of its file.
        batch_id: The batch that the file is named after.
        location: Where the checkpoint is, for messages.

    Raises:
        CheckpointError: If it is damaged, speaks of another batch, or was written by a newer
            version.
    """
    name = entry_name(batch_id)
    wire = _decode(name, data, _EntryWire, location)
    if wire.batch != batch_id:
        raise CheckpointError(_damaged(name, f"it speaks of batch {wire.batch}", location))
    positions = _positions(name, wire.positions, location)
    return Entry(wire.batch, wire.query, wire.segment, positions, wire.watermark)


def encode_origin(positions: str) -> bytes:
    """Write down the positions, in JSON, that a start was resolved into."""
    return msgspec.json.encode(_OriginWire(_VERSION, msgspec.Raw(positions.encode())))


def decode_origin(data: bytes, *, location: str) -> Checkpoint:
    """Read back the positions that a start was resolved into.

    Args:
        data: The bytes of the file.
        location: Where the checkpoint is, for messages.

    Raises:
        CheckpointError: If they are damaged or were written by a newer version.
    """
    wire = _decode(ORIGIN, data, _OriginWire, location)
    return _positions(ORIGIN, wire.positions, location)


def _decode(name: str, data: bytes, wire: type[T], location: str) -> T:
    try:
        version = msgspec.json.decode(data, type=_VersionWire).version
        if version != _VERSION:
            raise CheckpointError(
                f"{name} in {location} has format version {version}, this library reads version "
                f"{_VERSION}; use the library version that wrote it"
            )
        return msgspec.json.decode(data, type=wire)
    except MALFORMED_JSON as error:
        raise CheckpointError(_damaged(name, error, location)) from error


def _positions(name: str, json: msgspec.Raw, location: str) -> Checkpoint:
    try:
        return Checkpoint.from_json(bytes(json))
    except PositionError as error:
        raise CheckpointError(f"{name} in {location}: {error}") from error


def _damaged(name: str, reason: object, location: str) -> str:
    return (
        f"{name} in {location} is damaged ({reason}); restore it from a backup, or start with a "
        f"new checkpoint location"
    )
