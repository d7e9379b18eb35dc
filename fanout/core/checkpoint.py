"""A snapshot of every split's position, and its JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias, final

import msgspec

from fanout.core.events import Split
from fanout.core.option_checks import wrong_type
from fanout.core.positions import WHOLE_RECORD, Cursor, Horizon, Timestamp
from fanout.core.stored_json import StoredFormat
from fanout.errors import PositionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.core.positions import Position

# A full snapshot takes about 150 bytes per split, and what its source keeps there; services stop at
# tens of thousands of splits.
MAX_JSON_BYTES = 16 * 1024 * 1024
# Characters. Enough for the producers of a shuffle, 30 for each of a thousand.
MAX_STATE: Final = 64 * 1024
LONGEST_READER: Final = 512 * 1024
"""A longer schema to read with is not stored, in characters."""
VERSION: Final = 1


@final
@dataclass(frozen=True, slots=True)
class SplitPosition:
    """Where one split of a checkpoint stands."""

    split: Split
    position: Position  # after the last record that counts
    ended: bool = False  # whether it was read to its end, so that its children may be read
    # When the last record before the position arrived at the service, in milliseconds since the
    # Unix epoch; None where that is not known.
    newest: int | None = None
    # Whether this stream began anew with a split of the same name, at a lower position.
    anew: bool = field(default=False, compare=False, repr=False)


@final
@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A full snapshot of every known split, ended and not-yet-started ones included.

    Args:
        source: The identity of the source that the positions belong to.
        splits: The state of each split by its id.
        shared: What a group's process has that delivered them (`SharedSplits`); None without a
            group, and in positions that were read back.
        reader: The schemas that a decoder of the source reads with, as text, so that the next run
            has the same columns; empty for none.
    """

    source: str
    splits: Mapping[str, SplitPosition] = field(default_factory=lambda: MappingProxyType({}))
    shared: object = field(default=None, compare=False, repr=False)
    reader: str = field(default="", repr=False)

    def to_json(self) -> str:
        """Write the checkpoint as JSON that `from_json` reads back.

        Raises:
            PositionError: If it would be larger than what can be read back.
        """
        splits = {
            id_: _SplitWire(state.split.parents, to_wire(state.position), state.ended, state.newest)
            for id_, state in self.splits.items()
        }
        text = msgspec.json.encode(_CheckpointWire(VERSION, self.source, splits, self.reader))
        if len(text) > MAX_JSON_BYTES:
            raise PositionError(
                f"the positions of {len(splits)} splits take {len(text)} bytes, more than "
                f"{MAX_JSON_BYTES}; read them with several sources"
            )
        return text.decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Checkpoint:
        """Read a checkpoint back, strictly.

        Raises:
            PositionError: If the text is too large, is not the JSON that `to_json` writes, or was
                written by another version of the format.
        """
        if not isinstance(text, str | bytes):
            raise PositionError("the positions ", wrong_type("text", text, "what to_json returned"))
        wire = _FORMAT.read(text, "the stored positions")
        return cls(
            wire.source,
            MappingProxyType(
                {
                    id_: SplitPosition(
                        Split(id_, state.parents),
                        from_wire(state.position),
                        state.ended,
                        state.newest,
                    )
                    for id_, state in wire.splits.items()
                }
            ),
            reader=wire.reader,
        )


Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
"""The id of a split, as JSON."""

# The identity of a source of several streams names each of them, with about 100 characters.
_Identity = Annotated[str, msgspec.Meta(min_length=1, max_length=64 * 1024)]

# Kinesis sequence numbers have 56 digits today; the service's model allows 128. -1 stands before
# the first offset of a Kafka partition.
_Sequence = Annotated[str, msgspec.Meta(pattern=r"^(?:-1|[0-9]{1,128})\Z")]
_State = Annotated[str, msgspec.Meta(max_length=MAX_STATE)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=WHOLE_RECORD)]
_Reader = Annotated[str, msgspec.Meta(max_length=LONGEST_READER)]


class _HorizonWire(msgspec.Struct, frozen=True, tag="horizon", forbid_unknown_fields=True):
    pass


class _TimestampWire(msgspec.Struct, frozen=True, tag="timestamp", forbid_unknown_fields=True):
    millis: _Count


class _CursorWire(
    msgspec.Struct, frozen=True, tag="cursor", omit_defaults=True, forbid_unknown_fields=True
):
    sequence: _Sequence
    sub: _Count = WHOLE_RECORD
    state: _State = ""


PositionWire: TypeAlias = _HorizonWire | _TimestampWire | _CursorWire
"""A position as JSON."""


class _SplitWire(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    parents: tuple[Name, ...]
    position: PositionWire
    ended: bool
    newest: _Count | None = None


class _CheckpointWire(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    version: Literal[1]
    source: _Identity
    splits: dict[Name, _SplitWire]
    reader: _Reader = ""


_FORMAT: Final = StoredFormat(
    wire=_CheckpointWire, max_size=MAX_JSON_BYTES, error=PositionError, version=VERSION, plural=True
)


def to_wire(position: Position) -> PositionWire:
    """Turn a position into what its JSON holds."""
    match position:
        case Horizon():
            return _HorizonWire()
        case Timestamp(millis):
            return _TimestampWire(millis)
        case Cursor(sequence, sub, state=state):
            return _CursorWire(str(sequence), sub, state)


def from_wire(wire: PositionWire) -> Position:
    """Turn what the JSON of a position holds into the position."""
    match wire:
        case _HorizonWire():
            return Horizon()
        case _TimestampWire(millis=millis):
            return Timestamp(millis)
        case _CursorWire(sequence=sequence, sub=sub, state=state):
            return Cursor(int(sequence), sub, state=state)
