"""Read stored JSON strictly: bounded in size, of one version, with nothing unknown in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.errors import FanOutError

MALFORMED_JSON: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
"""All that msgspec raises: for other text than JSON of the type, for text that is not UTF-8, and
for text that is nested deeper than the stack."""

_Wire = TypeVar("_Wire", bound=msgspec.Struct)


class _ObjectHeader(msgspec.Struct, frozen=True):
    version: int


class _ArrayHeader(msgspec.Struct, frozen=True, array_like=True):
    version: int


@final
@dataclass(frozen=True, slots=True)
class Before(Generic[_Wire]):
    """The version before the one that is written, which is read too."""

    version: int
    wire: type[Any]  # what its JSON holds
    upgrade: Callable[[Any], _Wire]  # turns that into what the JSON of the newer version holds


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFormat(Generic[_Wire]):
    """A format of JSON that runs store, and later runs read back."""

    # What the JSON holds; it forbids unknown fields and has the field `version`, the first one
    # where it is an array.
    wire: type[_Wire]
    max_size: int  # bytes, or characters of a string
    # Builds the error of JSON that cannot be read, from a sentence.
    error: Callable[[str], FanOutError]
    version: int = 1  # the one that this library writes and reads
    hint: str = ""  # what a user can do about damage, a clause without a full stop
    plural: bool = False  # whether what is stored is named in the plural
    before: Before[_Wire] | None = None

    def read(self, data: str | bytes, what: str) -> _Wire:
        """Read what a run has stored; `what` it is, and where, begins the error's sentence.

        JSON that is too large, of another version or damaged is an error of the type `error`.
        """
        if len(data) > self.max_size:
            takes = "take" if self.plural else "takes"
            raise self.error(f"{what} {takes} {len(data)} bytes, more than {self.max_size}")
        array = self.wire.__struct_config__.array_like
        try:
            header: type[_ObjectHeader | _ArrayHeader] = _ArrayHeader if array else _ObjectHeader
            version = msgspec.json.decode(data, type=header).version
            if version == self.version:
                return msgspec.json.decode(data, type=self.wire)
            if self.before is not None and version == self.before.version:
                return self.before.upgrade(msgspec.json.decode(data, type=self.before.wire))
        except MALFORMED_JSON as error:
            raise self.damaged(what, error) from error
        has, it = ("have", "them") if self.plural else ("has", "it")
        newer = " which is newer:" if version > self.version else ""
        raise self.error(
            f"{what} {has} format version {version},{newer} this library reads version "
            f"{self.version}; use the library version that wrote {it}"
        )

    def damaged(self, what: str, reason: object) -> FanOutError:
        """Build the error of JSON that is damaged; `what` it is begins the sentence."""
        are = "are" if self.plural else "is"
        hint = f"; {self.hint}" if self.hint else ""
        return self.error(f"{what} {are} damaged ({reason}){hint}")
