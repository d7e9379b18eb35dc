"""The text of an error, which is never empty."""

from __future__ import annotations


def text_of(error: BaseException) -> str:
    """Return what an error says, or its type and what its cause says where it says nothing.

    Args:
        error: The error. `ConnectionResetError()`, for one, has no text.
    """
    if text := str(error).strip():
        return text
    name, cause = type(error).__name__, error.__cause__
    return name if cause is None else f"{name} after {text_of(cause)}"
