"""Find the processes that a test has started, by what they inherit."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ("running_with",)


def running_with(mark: str) -> dict[int, str]:
    """Return the command lines, by process id, of other processes with a text in their environment.

    Args:
        mark: The text, such as the value of a variable that only the processes of one test have.
    """
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(mark) in (process / "environ").read_bytes():
                found[int(process.name)] = os.fsdecode((process / "cmdline").read_bytes())
        except OSError:
            continue  # another user's, or it has just ended
    found.pop(os.getpid(), None)
    return found
