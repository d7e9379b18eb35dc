"""What users see of an error: the error itself, and its text, which is never empty."""

from __future__ import annotations

import errno
import os


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
