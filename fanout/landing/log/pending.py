"""Pending segments: acquired records that are durable before a batch takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, final

import msgspec

from fanout.errors import CheckpointError
from fanout.landing.claims import create_owned
from fanout.landing.log.entries import (
    MAX_ENTRY_BYTES,
    VERSION,
    Millis,
    TakenSegments,
    Unconfirmed,
    batch_ids,
    decode_positions,
    ledger_format,
)
from fanout.landing.segments.segments import Count, SegmentFile, publish

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.core.checkpoint import Checkpoint
    from fanout.landing.claims import Ownership
    from fanout.landing.segments.segments import Filled
    from fanout.landing.storage.storage import Storage

PENDING: Final = "pending"


@final
@dataclass(frozen=True, slots=True)
class Pending:
    """A segment that is durable before a batch takes it, as its records came with locks."""

    number: int  # its place among all pending segments of the checkpoint, from 1
    segment: SegmentFile
    positions: Checkpoint  # every split's position after its records
    watermark: int | None  # the stream's after them; see `BatchEntry`
    unconfirmed: str  # which records the service may deliver again, its own included


class _KeptWire(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    segment: SegmentFile
    positions: msgspec.Raw
    unconfirmed: Unconfirmed = msgspec.field(name="doubts")
    watermark: Millis | None = None


class _PendingWire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    run: Count
    number: Count
    kept: _KeptWire | None


_FORMAT: Final = ledger_format(_PendingWire)


def pending_name(number: int) -> str:
    """Return the name of a pending segment's file below the checkpoint."""
    return f"{PENDING}/{number:012}.json"


def encode_pending(number: int, pending: Pending | None, *, run: int) -> bytes:
    """Encode a pending segment of a run; None for a run that takes the number alone."""
    if pending is None:
        return msgspec.json.encode(_PendingWire(VERSION, run, number, None))
    positions = msgspec.Raw(pending.positions.to_json().encode())
    kept = _KeptWire(pending.segment, positions, pending.unconfirmed, pending.watermark)
    return msgspec.json.encode(_PendingWire(VERSION, run, number, kept))


def decode_pending(data: bytes, number: int, *, location: str) -> Pending | None:
    """Decode a pending segment; None where a run has taken the number alone."""
    name = pending_name(number)
    wire = _FORMAT.read(data, f"{name} in {location}")
    if wire.number != number:
        raise _FORMAT.damaged(f"{name} in {location}", f"it is of number {wire.number}")
    if (kept := wire.kept) is None:
        return None
    positions = decode_positions(name, kept.positions, location)
    return Pending(number, kept.segment, positions, kept.watermark, kept.unconfirmed)


@final
class PendingSegments:
    """Name segments as pending, one number after the other, and remember them. Every call blocks.

    A number is used once in the life of a checkpoint. The newest entry holds the number up to which
    batches have taken segments. A file with such a number may stay for a while, and is ignored. An
    entry and the pending segments after it therefore hold every record once. The claim of this run
    is checked before every write: without it a write is a CheckpointError. So is a segment that is
    damaged, missing or written by a newer version.
    """

    def __init__(self, storage: Storage, ownership: Ownership, taken: TakenSegments | None) -> None:
        self._storage = storage
        self._ownership = ownership
        self._taken = TakenSegments(0, "") if taken is None else taken
        self._spooled = taken is not None
        self._numbers = self._stored()
        self._opening: int | None = None
        last = self._taken.last
        left = [number for number in self._numbers if number > last]
        self._newest = max(last, *self._numbers, 0)
        for expected, number in enumerate(left, last + 1):
            if number != expected:
                raise CheckpointError(
                    f"{pending_name(expected)} is missing in {storage.location}; restore this "
                    f"file alone from a backup, or start with a new checkpoint location"
                )
        read = (self._read(number) for number in left)
        self.left = tuple(pending for pending in read if pending is not None)

    @property
    def unconfirmed(self) -> str:
        """Which records the service may deliver again, as it was stored last; empty for none."""
        return self.left[-1].unconfirmed if self.left else self._taken.unconfirmed

    @property
    def positions(self) -> Checkpoint | None:
        """Every split's position after what earlier runs have left; None where they left none."""
        return self.left[-1].positions if self.left else None

    @property
    def segments(self) -> set[str]:
        """The names of the segments that earlier runs have left and no batch has taken yet."""
        last = self._taken.last
        return {pending.segment.name for pending in self.left if pending.number > last}

    def open(self) -> None:
        """Take a number, so that a run which does not know yet that it was overtaken cannot.

        Call it before `keep`.
        """
        self._opening = self._next(None)

    def keep(self, filled: Filled, unconfirmed: str) -> Pending:
        """Make records durable; when it returns, they can be acknowledged.

        `unconfirmed` says which records the service may deliver again, these included.
        """
        file = publish(self._storage, filled.segment)
        number = self._newest + 1
        pending = Pending(number, file, filled.positions, filled.segment.watermark, unconfirmed)
        self._next(pending)
        # A newer run that has not seen the file gets the records again, and has to accept them.
        self._ownership.check()
        return pending

    def taking(self, taken: Sequence[Pending] = ()) -> TakenSegments | None:
        """Return what the next entry holds; None where no segment was ever pending."""
        if not taken:
            return self._taken if self._spooled else None
        return TakenSegments(taken[-1].number, taken[-1].unconfirmed)

    def settle(self, taken: TakenSegments | None) -> None:
        """Delete the files that the newest entry has replaced by what it holds."""
        if taken is None:
            return
        self._taken, self._spooled = taken, True
        # The number of `open` keeps an older run out; it stays until a still newer run has one.
        past = [n for n in self._numbers if n <= taken.last and n != self._opening]
        for number in past:
            self._numbers.remove(number)
            self._storage.delete(pending_name(number))

    def _next(self, pending: Pending | None) -> int:
        """Write the file of the next number."""
        number = self._newest + 1
        data = encode_pending(number, pending, run=self._ownership.run)
        create_owned(self._storage, self._ownership, pending_name(number), data)
        self._newest = number
        self._numbers.append(number)
        return number

    def _stored(self) -> list[int]:
        return batch_ids(file.name for file in self._storage.list(PENDING))

    def _read(self, number: int) -> Pending | None:
        name = pending_name(number)
        data = self._storage.read(name, limit=MAX_ENTRY_BYTES)
        if data is None:
            raise CheckpointError(
                f"{name} has gone from {self._storage.location} while it was read: another run "
                f"writes to this checkpoint; start again when it has ended"
            )
        return decode_pending(data, number, location=self._storage.location)
