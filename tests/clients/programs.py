"""Programs in Java that print what they see, each in a process of its own."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

# A net for what takes seconds, in seconds.
DEADLINE = 120


class Program:
    """A running program, which ends when its standard input is closed.

    Args:
        name: its name.
        command: the command with its arguments.
        environment: its environment variables.
        logs: the directory for what it writes.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], logs: Path
    ) -> None:
        self._lines = logs / f"{name}.lines"
        self._log = logs / f"{name}.log"
        with self._lines.open("wb") as lines, self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 (our own programs)
                command, env=environment, stdin=subprocess.PIPE, stdout=lines, stderr=log
            )

    def lines(self) -> list[list[str]]:
        """Return the words of the lines that it has printed; a kill may have torn the last one."""
        whole, _, _ = self._lines.read_text(encoding="utf-8").rpartition("\n")
        return [line.split(" ") for line in whole.splitlines()]

    def log(self) -> str:
        """Return the end of what it has logged."""
        return self._log.read_text(encoding="utf-8")[-5_000:]

    def logged(self, text: str) -> list[str]:
        """Return all lines of its log that hold a text."""
        return [line for line in self._log.read_text(encoding="utf-8").splitlines() if text in line]

    def end(self) -> None:
        """Close its standard input, and wait until it has ended well."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(DEADLINE) == 0, self.log()

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        with self._process:  # it closes the pipe, too
            self._process.kill()


def wait_until(condition: Callable[[], bool], programs: Sequence[Program]) -> None:
    """Wait for a condition; if it never comes, show what the programs have logged."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "\n".join(program.log() for program in programs)
        time.sleep(0.2)
