"""The text of an error, which is never empty."""

from __future__ import annotations


def text_of(error: BaseException) -> str:
    """Return what an error says, with its type or its cause where that says nothing.

    Args:
        error: The error. `ConnectionResetError()`, for one, has no text, and botocore's
            HTTPClientError may end in a colon.
    """
    text, name, cause = str(error).strip(), type(error).__name__, error.__cause__
    if text.endswith(":"):
        return f"{text} {name if cause is None else text_of(cause)}"
    if text or cause is None:
        return text or name
    return f"{name} after {text_of(cause)}"
