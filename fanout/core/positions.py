"""Where a reader stands in a split, and how that is written down.

A `Start` is what a user asks for; a `Position` is concrete and can be stored. `Latest` is a start
only: a connection resolves it once into a timestamp or a cursor, and that is what a checkpoint
holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias, final

import msgspec

from fanout.core.lineage import Split
from fanout.errors import OptionError, PositionError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = (
    "Checkpoint",
    "Cursor",
    "Horizon",
    "Latest",
    "Position",
    "Range",
    "SplitPosition",
    "Start",
    "Timestamp",
    "parse_start",
    "reaches",
)

# A full snapshot takes about 150 bytes per split; services stop at tens of thousands of splits.
MAX_JSON_BYTES = 16 * 1024 * 1024
VERSION: Final = 1
# Larger than any sub-sequence number: the cursor stands after the whole record.
WHOLE_RECORD = 2**63 - 1


@final
@dataclass(frozen=True, slots=True)
class Horizon:
    """Before the oldest record that the service still has."""


@final
@dataclass(frozen=True, slots=True)
class Latest:
    """After the newest record at the moment when the stream first opens; a start, no position."""


@final
@dataclass(frozen=True, slots=True)
class Timestamp:
    """Before the first record that arrived at or after a time.

    Args:
        millis: Milliseconds since the Unix epoch, as the services count.

    Raises:
        OptionError: If it is negative: no service has records from before 1970.
    """

    millis: int

    def __post_init__(self) -> None:
        if self.millis < 0:
            raise OptionError(f"the timestamp of {self.millis} ms lies before 1970")

    @classmethod
    def at(cls, moment: datetime) -> Timestamp:
        """Build a timestamp from an aware datetime.

        Raises:
            OptionError: If the datetime is naive: its zone would be a guess.
        """
        if moment.tzinfo is None:
            raise OptionError(
                f"{moment.isoformat()} has no time zone; pass an aware datetime, for example "
                f"datetime(..., tzinfo=timezone.utc)"
            )
        return cls((moment - _EPOCH) // _MILLISECOND)


@final
@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """After one record; cursors of one split are totally ordered.

    Args:
        sequence: The sequence number or offset of the last record that was read.
        sub: The last sub-record that was read of an aggregated record; the default stands after
            the whole record.
    """

    sequence: int
    sub: int = WHOLE_RECORD


Start: TypeAlias = Horizon | Latest | Timestamp
Position: TypeAlias = Horizon | Timestamp | Cursor

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = datetime.resolution * 1000
_START_NAMES: Mapping[str, Start] = {
    "earliest": Horizon(),
    "trim_horizon": Horizon(),
    "latest": Latest(),
}


def parse_start(start: object) -> Start:
    """Turn what a user wrote into a start.

    Args:
        start: A start; `"earliest"` or `"latest"`, also by the names that Kinesis users know
            (`"TRIM_HORIZON"`, `"LATEST"`); or an aware datetime.

    Raises:
        OptionError: If it is anything else. A bare number is refused: it could be seconds or
            milliseconds.
    """
    match start:
        case Horizon() | Latest() | Timestamp():
            return start
        case datetime():
            try:
                return Timestamp.at(start)
            except OptionError as error:
                raise OptionError(f"start: {error}") from error
        case str() if start.lower() in _START_NAMES:
            return _START_NAMES[start.lower()]
        case _:
            raise OptionError(
                f"start={start!r} is not understood; use 'TRIM_HORIZON' (or 'earliest'), 'LATEST' "
                f"(or 'latest'), or an aware datetime"
            )


def reaches(position: Position, other: Position) -> bool:
    """Tell whether `position` is at or after `other` in the same split.

    A reader moves from the horizon or a timestamp to cursors and never back, so the three kinds
    are ordered that way.
    """
    return _rank(position) >= _rank(other)


def _rank(position: Position) -> tuple[int, int, int]:
    match position:
        case Horizon():
            return (0, 0, 0)
        case Timestamp(millis):
            return (1, millis, 0)
        case Cursor(sequence, sub):
            return (2, sequence, sub)


@final
@dataclass(frozen=True, slots=True)
class Range:
    """The piece of a split that a batch covers.

    Args:
        after: Where the reader stood before the batch.
        until: Where it stands after it; records of the split beyond `until` are in later batches.
    """

    after: Position
    until: Position


@final
@dataclass(frozen=True, slots=True)
class SplitPosition:
    """Where one split of a checkpoint stands.

    Args:
        split: The split.
        position: The position after the last record that counts.
        ended: Whether the split was read to its end, so that its children may be read.
    """

    split: Split
    position: Position
    ended: bool = False


@final
@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A full snapshot of every known split, ended and not-yet-started ones included.

    Args:
        source: The identity of the source that the positions belong to.
        splits: The state of each split by its id.
    """

    source: str
    splits: Mapping[str, SplitPosition] = field(default_factory=lambda: MappingProxyType({}))

    def to_json(self) -> str:
        """Write the checkpoint as JSON that `from_json` reads back."""
        splits = {
            id_: _SplitWire(state.split.parents, _to_wire(state.position), state.ended)
            for id_, state in self.splits.items()
        }
        return msgspec.json.encode(_CheckpointWire(VERSION, self.source, splits)).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Checkpoint:
        """Read a checkpoint back, strictly.

        Raises:
            PositionError: If the text is too large, is not the JSON that `to_json` writes, or was
                written by another version of the format.
        """
        if len(text) > MAX_JSON_BYTES:
            raise PositionError(
                f"the stored positions take {len(text)} bytes, more than {MAX_JSON_BYTES}"
            )
        try:
            version = msgspec.json.decode(text, type=_VersionWire).version
            if version != VERSION:
                raise PositionError(
                    f"the stored positions have format version {version}, this library reads "
                    f"version {VERSION}; use the library version that wrote them"
                )
            wire = msgspec.json.decode(text, type=_CheckpointWire)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise PositionError(f"the stored positions are damaged: {error}") from error
        return cls(
            wire.source,
            MappingProxyType(
                {
                    id_: SplitPosition(
                        Split(id_, state.parents), _from_wire(state.position), state.ended
                    )
                    for id_, state in wire.splits.items()
                }
            ),
        )


_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
# Kinesis sequence numbers have 56 digits today; the service's model allows 128.
_Sequence = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,128}\Z")]
_Count = Annotated[int, msgspec.Meta(ge=0, le=WHOLE_RECORD)]


class _HorizonWire(msgspec.Struct, frozen=True, tag="horizon", forbid_unknown_fields=True):
    pass


class _TimestampWire(msgspec.Struct, frozen=True, tag="timestamp", forbid_unknown_fields=True):
    millis: _Count


class _CursorWire(
    msgspec.Struct, frozen=True, tag="cursor", omit_defaults=True, forbid_unknown_fields=True
):
    sequence: _Sequence
    sub: _Count = WHOLE_RECORD


class _SplitWire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    parents: tuple[_Name, ...]
    position: _HorizonWire | _TimestampWire | _CursorWire
    ended: bool


class _VersionWire(msgspec.Struct, frozen=True):
    version: int


class _CheckpointWire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    source: _Name
    splits: dict[_Name, _SplitWire]


def _to_wire(position: Position) -> _HorizonWire | _TimestampWire | _CursorWire:
    match position:
        case Horizon():
            return _HorizonWire()
        case Timestamp(millis):
            return _TimestampWire(millis)
        case Cursor(sequence, sub):
            return _CursorWire(str(sequence), sub)


def _from_wire(wire: _HorizonWire | _TimestampWire | _CursorWire) -> Position:
    match wire:
        case _HorizonWire():
            return Horizon()
        case _TimestampWire(millis=millis):
            return Timestamp(millis)
        case _CursorWire(sequence=sequence, sub=sub):
            return Cursor(int(sequence), sub)
