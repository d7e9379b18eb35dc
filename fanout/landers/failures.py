"""Errors of landers, as messages and back."""

from __future__ import annotations

from typing import Final

import fanout.errors
from fanout.core.error_text import text_of
from fanout.errors import FanOutError, SplitFailedError
from fanout.landers.messages import Failed

# Some services put a page of HTML into their errors.
_MAX_TEXT: Final = 4000


class LanderCause(Exception):  # noqa: N818 - it stands for errors of other names
    """An error that a lander met; its text begins with its name there."""


def describe(error: Exception, *, landed: bool) -> Failed:
    """Return the message that tells of an error.

    Args:
        error: What ended the lander.
        landed: Whether all that was read before it has landed.
    """
    cause = error.__cause__
    return Failed(
        type(error).__name__,
        sendable(str(error)),
        "" if cause is None else type(cause).__name__,
        "" if cause is None else sendable(text_of(cause)),
        landed,
    )


def sendable(text: str) -> str:
    """Return a text that fits into a message, whatever service it comes from."""
    return text[:_MAX_TEXT].encode("utf-8", "replace").decode()


def restore(message: Failed) -> FanOutError:
    """Return the error that a message tells of, with its cause."""
    kind = _kind(message.error)
    if kind is None:
        error: FanOutError = SplitFailedError(f"a lander failed: {message.error}: {message.text}")
    else:
        error = kind(message.text)
    if message.cause:
        cause = _kind(message.cause)
        if cause is None:
            error.__cause__ = LanderCause(f"{message.cause}: {message.cause_text}")
        else:
            error.__cause__ = cause(message.cause_text)
    return error


def _kind(name: str) -> type[FanOutError] | None:
    """Return the error of the library that has a name, if a text alone makes it."""
    kind = getattr(fanout.errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, FanOutError)):
        return None
    made_otherwise = any(
        "__init__" in vars(one) for one in kind.__mro__ if one.__module__ == fanout.errors.__name__
    )
    return None if made_otherwise else kind
