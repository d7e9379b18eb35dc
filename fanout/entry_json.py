"""How JSON that a run has stored is read back: strictly, and with a version that is compared."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from fanout.core.checkpoint import Checkpoint
from fanout.core.malformed import MALFORMED_JSON
from fanout.errors import CheckpointError, PositionError

__all__ = ("VERSION", "damaged", "decode", "decode_positions")

VERSION: Final = 1

T = TypeVar("T")


class _VersionWire(msgspec.Struct, frozen=True):
    version: int


def decode(name: str, data: bytes, wire: type[T], location: str) -> T:
    """Read what a run has stored.

    Args:
        name: The name of its file below the checkpoint.
        data: Its bytes.
        wire: What it is.
        location: Where the checkpoint is, for messages.

    Raises:
        CheckpointError: If it is damaged, or was written by a newer version.
    """
    try:
        version = msgspec.json.decode(data, type=_VersionWire).version
        if version != VERSION:
            raise CheckpointError(
                f"{name} in {location} has format version {version}, this library reads version "
                f"{VERSION}; use the library version that wrote it"
            )
        return msgspec.json.decode(data, type=wire)
    except MALFORMED_JSON as error:
        raise damaged(name, error, location) from error


def decode_positions(name: str, json: msgspec.Raw, location: str) -> Checkpoint:
    """Read the positions in a file.

    Args:
        name: The name of the file below the checkpoint.
        json: The positions.
        location: Where the checkpoint is, for messages.

    Raises:
        CheckpointError: If they are damaged, or were written by a newer version.
    """
    try:
        return Checkpoint.from_json(bytes(json))
    except PositionError as error:
        raise CheckpointError(f"{name} in {location}: {error}") from error


def damaged(name: str, reason: object, location: str) -> CheckpointError:
    """Build the error of a damaged file."""
    return CheckpointError(
        f"{name} in {location} is damaged ({reason}); restore it from a backup, or start with a "
        f"new checkpoint location"
    )
