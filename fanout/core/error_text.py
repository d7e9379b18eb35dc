"""What errors say, and how often they came."""

from __future__ import annotations

import errno
import os
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Mapping


def text_of(error: BaseException) -> str:
    """Return what an error says, with its type or its cause where that says nothing.

    `ConnectionResetError()`, for one, has no text, and botocore's HTTPClientError may end in a
    colon.
    """
    text, name, cause = str(error).strip(), type(error).__name__, error.__cause__
    if text.endswith(":"):
        return f"{text} {name if cause is None else text_of(cause)}"
    if text or cause is None:
        return text or name
    return f"{name} after {text_of(cause)}"


def disk_reason(error: OSError) -> str:
    """Return why a disk refused, from Python's or Arrow's error; advise where it is full."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        reason = os.strerror(error.errno)
        return f"{reason}; free some and start again: what is stored is whole, and goes on"
    return error.strerror or text_of(error)


def first_error(error: BaseException) -> BaseException:
    """Return the first error of a group, as task groups raise it, or the error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


# The conventions of OpenTelemetry for `error.type` name what has no name of its own so.
OTHER: Final = "_OTHER"
_MAX_CAUSES: Final = 50
_MAX_LENGTH: Final = 100
_HTTP_STATUS: Final = re.compile("[1-5][0-9][0-9]")


@final
class Causes:
    """Count causes by name; a service that sends ever new names takes no more memory for them."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def count(self, name: str) -> None:
        """Count one cause; a name that is no identifier of a sensible length counts as `_OTHER`."""
        name = name_or_other(name)
        if name not in self._counts and len(self._counts) >= _MAX_CAUSES:
            name = OTHER
        self._counts[name] = self._counts.get(name, 0) + 1

    @property
    def counts(self) -> Mapping[str, int]:
        """The counts so far, by name; any thread may read them."""
        return MappingProxyType(self._counts.copy())


def name_or_other(name: str) -> str:
    """Return the name of a cause; `_OTHER` for what is no identifier of a sensible length.

    A service that puts a text in place of a code might put data of records there. An answer of HTTP
    without a code has that of its status.
    """
    is_name = len(name) <= _MAX_LENGTH and name.replace(".", "_").replace("#", "_").isidentifier()
    return name if is_name or _HTTP_STATUS.fullmatch(name) else OTHER
