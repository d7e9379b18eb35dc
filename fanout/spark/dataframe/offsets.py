"""The offsets of a query on a landing, as Spark's checkpoint keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, final

import msgspec

from fanout.errors import CheckpointError
from fanout.landing.log.landed_log import Place
from fanout.landing.segments.segments import Count  # noqa: TC001 - msgspec reads it

if TYPE_CHECKING:
    from collections.abc import Mapping

_VERSION: Final = 1


class _OffsetWire(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    version: Literal[1]
    landing: Annotated[str, msgspec.Meta(max_length=100)]
    entry: Count
    row: Count
    began: Count | None = None
    initial: bool = False


@final
@dataclass(frozen=True, slots=True)
class LandingOffset:
    """A place in a landing.

    Spark asks for the initial offset again when it replays the first batch, and the start of a
    query may be "latest". So the end of the first batch names the entry at which that began.

    Args:
        landing: The identity of the landing.
        place: Everything before it was read.
        began: At the end of the first batch: the entry at which it began.
        initial: Whether it is the initial offset.
    """

    landing: str
    place: Place
    began: int | None = None
    initial: bool = False

    @classmethod
    def parse(cls, offset: Mapping[str, Any], *, landing: str, location: str) -> Self:
        """Read an offset of Spark's checkpoint.

        Args:
            offset: The offset.
            landing: The identity of the landing that is read.
            location: Where it is, for messages.

        Raises:
            CheckpointError: It is none, or of another landing, or a newer version wrote it.
        """
        if (version := offset.get("version")) != _VERSION and isinstance(version, int):
            raise CheckpointError(
                f"the offset of the checkpoint has format version {version}, and this library "
                f"reads version {_VERSION}; use the library version that wrote it"
            )
        try:
            wire = msgspec.convert(offset, _OffsetWire)
        except msgspec.ValidationError as error:
            raise CheckpointError(
                f'the checkpoint has an offset that format("fanout") did not write ({error}); '
                f"use another checkpoint location"
            ) from error
        if wire.landing != landing:
            raise CheckpointError(
                f"the checkpoint belongs to another landing than {location}: read the landing of "
                f"before, or use another checkpoint location"
            )
        return cls(wire.landing, Place(wire.entry, wire.row), wire.began, wire.initial)

    def to_dict(self) -> dict[str, Any]:
        """Return it as Spark keeps it; two offsets of one place are the same text."""
        wire = _OffsetWire(
            _VERSION, self.landing, self.place.entry, self.place.row, self.began, self.initial
        )
        built: dict[str, Any] = msgspec.to_builtins(wire)
        return built

    def start_of_batch(self, end: LandingOffset) -> Place:
        """Return where the batch begins that Spark plans from this offset to another.

        Args:
            end: The other.
        """
        return Place(end.began) if self.initial and end.began is not None else self.place
