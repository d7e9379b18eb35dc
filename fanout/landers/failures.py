"""Errors of landers, as messages and back."""

from __future__ import annotations

from typing import Final

import fanout.errors
from fanout.core.error_text import text_of
from fanout.errors import FanOutError, RemoteError, SplitFailedError
from fanout.landers.messages import Failed

# Some services put a page of HTML into their errors.
_MAX_TEXT: Final = 4000


class LanderCause(Exception):  # noqa: N818 - it stands for errors of other names
    """An error that a lander met; its text begins with its name there."""

    @property
    def name(self) -> str:
        """The name of its class there."""
        return str(self).partition(":")[0]


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
    error = _restore(message.error, message.text)
    if error is None:
        error = SplitFailedError(f"a lander failed: {message.error}: {message.text}")
    if message.cause:
        error.__cause__ = restore_cause(message.cause, message.cause_text)
    return error


def restore_cause(name: str, text: str) -> Exception:
    """Return an error of the library as it is, and another one as a LanderCause.

    Args:
        name: The name of its class.
        text: Its message.
    """
    return _restore(name, text) or LanderCause(f"{name}: {text}")


def _restore(name: str, text: str) -> FanOutError | None:
    """Return the error of the library that has a name; None where there is none."""
    kind = getattr(fanout.errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, FanOutError)):
        return None
    if kind is RemoteError:
        code, _, message = text.partition(": ")
        return RemoteError(code, message)
    return kind(text)
