"""What a landing is: an identity that no other landing has, and the columns of its records."""

from __future__ import annotations

import base64
import binascii
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, final

import msgspec
import pyarrow as pa

from fanout.core.stored_json import StoredFormat
from fanout.errors import CheckpointError, OptionError
from fanout.landing.log.entries import MAX_ENTRY_BYTES, ORIGIN

if TYPE_CHECKING:
    from fanout.landing.storage.storage import Storage, StoredFiles

IDENTITY: Final = "landing.json"
_MAX_BYTES: Final = 1024 * 1024
_VERSION: Final = 1


@final
@dataclass(frozen=True, slots=True)
class LandingIdentity:
    """A landing, as readers know it again."""

    id: str  # a random text that was chosen when the landing was started
    schema: pa.Schema  # the columns of its records at the beginning; see `landing.log.columns`


class _IdentityWire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
    schema: str


_FORMAT: Final = StoredFormat(
    wire=_IdentityWire,
    max_size=_MAX_BYTES,
    error=CheckpointError,
    version=_VERSION,
    hint="restore this file alone from a backup",
)


def give_identity(storage: Storage, schema: pa.Schema) -> None:
    """Give a landing an identity, with the columns of its records, if it has none. It blocks."""
    if storage.read(IDENTITY, limit=_MAX_BYTES) is None:
        wire = _IdentityWire(_VERSION, uuid.uuid4().hex, encode_schema(schema))
        with suppress(FileExistsError):  # another run was faster, and its identity holds
            storage.create(IDENTITY, msgspec.json.encode(wire))


def read_identity(files: StoredFiles) -> LandingIdentity:
    """Return the identity of a landing. It blocks.

    Where there is no landing, that is an OptionError; one without an identity is a CheckpointError.
    """
    if (found := stored_identity(files)) is not None:
        return found
    if files.read(ORIGIN, limit=MAX_ENTRY_BYTES) is None:
        raise OptionError(
            f"there is no landing at {files.location}: start one with fanout.land, or with "
            f"`fanout land`"
        )
    raise CheckpointError(
        f"{files.location} has no {IDENTITY}: it was landed by an older version of fanout; start "
        f"fanout.land or `fanout land` of this version there, which adds the file"
    )


def stored_identity(files: StoredFiles) -> LandingIdentity | None:
    """Return the identity of a landing; None where there is none. It blocks."""
    data = files.read(IDENTITY, limit=_MAX_BYTES)
    if data is None:
        return None
    what = f"{IDENTITY} in {files.location}"
    wire = _FORMAT.read(data, what)
    return LandingIdentity(wire.id, decode_schema(wire.schema, _FORMAT, what))


def encode_schema(schema: pa.Schema) -> str:
    """Return columns as text."""
    return base64.b64encode(schema.remove_metadata().serialize()).decode()


def decode_schema(text: str, form: StoredFormat[Any], what: str) -> pa.Schema:
    """Return the columns that a text stands for; the form and the file `what` are for errors."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (pa.ArrowException, OSError, binascii.Error) as error:
        raise form.damaged(what, "its columns cannot be read") from error
