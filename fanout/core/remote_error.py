"""An error of another process, as data that is sent and as the error again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec.structs import replace

import fanout.errors
from fanout.core.error_text import text_of
from fanout.errors import FanOutError, RemoteError, ServiceError

if TYPE_CHECKING:
    from collections.abc import Callable

# Some services put a page of HTML into their errors.
_MAX_TEXT: Final = 4000

_Text = Annotated[str, msgspec.Meta(max_length=10_000)]


class ForeignError(Exception):
    """An error of another process that is not of the library; its text begins with its name."""

    @property
    def name(self) -> str:
        """The name of its class there."""
        return str(self).partition(":")[0]


class ErrorWire(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An error as data."""

    kind: _Text  # the name of its class
    text: _Text
    cause: ErrorWire | None = None

    @classmethod
    def of(cls, error: BaseException, *, most: int = _MAX_TEXT) -> ErrorWire:
        """Return an error without its cause, which may show values, and so much of its text."""
        return cls(type(error).__name__, sendable(text_of(error))[:most])

    @classmethod
    def with_cause(cls, error: BaseException) -> ErrorWire:
        """Return an error with its cause."""
        cause = error.__cause__
        return replace(cls.of(error), cause=None if cause is None else cls.of(cause))

    def error(
        self, before: str = "", unknown: Callable[[str], FanOutError] = ServiceError
    ) -> FanOutError:
        """Return the error with its cause, and `before` in front of its message.

        `unknown` makes the error in place of one that is not of the library.
        """
        error = _known(self.kind, before + self.text)
        if error is None:
            error = unknown(f"{before}{self.kind}: {self.text}")
        if self.cause is not None:
            error.__cause__ = self.cause.as_cause()
        return error

    def as_cause(self) -> FanOutError | ForeignError:
        """Return the error, as a ForeignError where it is not of the library."""
        return _known(self.kind, self.text) or ForeignError(f"{self.kind}: {self.text}")

    def to_json(self) -> str:
        """Return it as JSON, for what passes texts alone."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> ErrorWire:
        """Return what `to_json` has written."""
        return msgspec.json.decode(text, type=cls)


def sendable(text: str) -> str:
    """Return a text that fits into a message, whatever service it comes from."""
    return text[:_MAX_TEXT].encode("utf-8", "replace").decode()


def _known(kind: str, text: str) -> FanOutError | None:
    """Return the error of the library that has a name; None where there is none."""
    found = getattr(fanout.errors, kind, None)
    if not (isinstance(found, type) and issubclass(found, FanOutError)):
        return None
    if found is RemoteError:
        code, _, message = text.partition(": ")
        return RemoteError(code, message)
    return found(text)
