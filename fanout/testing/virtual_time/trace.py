"""Record a simulation: a hash of every task step, and lines for people."""

from __future__ import annotations

import hashlib
from typing import final


@final
class Trace:
    """Note each task step and each event of a run, so that two runs can be compared.

    Args:
        keep_lines: Whether to keep the events as text.
    """

    def __init__(self, *, keep_lines: bool = False) -> None:
        self.lines: list[str] = []
        self.steps = 0
        self._keep_lines = keep_lines
        self._closed = False
        self._hash = hashlib.blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        """The hash of everything noted so far."""
        return self._hash.hexdigest()

    def close(self) -> None:
        """Take no more notes."""
        self._closed = True

    def step(self, now: float, task: str) -> None:
        """Note that a task is about to run.

        Args:
            now: The virtual seconds.
            task: The task's name.
        """
        if self._closed:
            return
        self.steps += 1
        self._hash.update(f"{now!r} {task}\n".encode())

    def event(self, now: float, text: str) -> None:
        """Note that something happened.

        Args:
            now: The virtual seconds.
            text: What, in one line.
        """
        if self._closed:
            return
        self._hash.update(f"{now!r} {text}\n".encode())
        self.remark(now, text)

    def remark(self, now: float, text: str) -> None:
        """Note something for people alone: it counts for nothing where runs are compared.

        Args:
            now: The virtual seconds.
            text: What, in one line.
        """
        if self._keep_lines:
            self.lines.append(f"{now:12.3f}  {text}")
