"""Segments that are named before a batch takes them, because their records were lent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, final

import msgspec

from fanout.entries import (  # noqa: TC001 - msgspec reads the annotations
    Count,
    Doubts,
    Millis,
    SegmentFile,
)
from fanout.entry_json import VERSION, damaged, decode, decode_positions

if TYPE_CHECKING:
    from fanout.core.checkpoint import Checkpoint

__all__ = ("PENDING", "Pending", "decode_pending", "encode_pending", "pending_name")

PENDING: Final = "pending"


@final
@dataclass(frozen=True, slots=True)
class Pending:
    """A segment that is named before a batch takes it, because its records were lent.

    Args:
        number: Its place among all pending segments of the checkpoint, from 1.
        segment: Its records.
        positions: Every split's position after them.
        watermark: The stream's watermark after them; see `Entry`.
        doubts: Which records the service may deliver again, its own included.
    """

    number: int
    segment: SegmentFile
    positions: Checkpoint
    watermark: int | None
    doubts: str


class _KeptWire(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    segment: SegmentFile
    positions: msgspec.Raw
    doubts: Doubts
    watermark: Millis | None = None


class _PendingWire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    run: Count
    number: Count
    kept: _KeptWire | None


def pending_name(number: int) -> str:
    """Return the name of a pending segment's file below the checkpoint."""
    return f"{PENDING}/{number:012}.json"


def encode_pending(number: int, pending: Pending | None, *, run: int) -> bytes:
    """Write a pending segment down.

    Args:
        number: The number that it takes.
        pending: The segment; None where a run takes the number alone, so that no other can.
        run: The number of the run that made it.
    """
    if pending is None:
        return msgspec.json.encode(_PendingWire(VERSION, run, number, None))
    positions = msgspec.Raw(pending.positions.to_json().encode())
    kept = _KeptWire(pending.segment, positions, pending.doubts, pending.watermark)
    return msgspec.json.encode(_PendingWire(VERSION, run, number, kept))


def decode_pending(data: bytes, number: int, *, location: str) -> Pending | None:
    """Read a pending segment back; None where a run has taken the number alone.

    Args:
        data: The bytes of its file.
        number: The number that the file is named after.
        location: Where the checkpoint is, for messages.

    Raises:
        CheckpointError: If it is damaged, speaks of another number, or was written by a newer
            version.
    """
    name = pending_name(number)
    wire = decode(name, data, _PendingWire, location)
    if wire.number != number:
        raise damaged(name, f"it speaks of number {wire.number}", location)
    if (kept := wire.kept) is None:
        return None
    positions = decode_positions(name, kept.positions, location)
    return Pending(number, kept.segment, positions, kept.watermark, kept.doubts)
