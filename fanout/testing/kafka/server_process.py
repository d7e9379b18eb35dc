"""A server in a process of its own that ends when this one does, however that happens."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fanout.testing.kafka import keeper

if TYPE_CHECKING:
    from collections.abc import Sequence


class KeptServer:
    """Keep a directory, and run a server in it when told to, until `close`.

    Orders to the server go through the process that keeps it: see `keeper`. They may come from any
    thread; none waits for longer than the server takes to end.
    """

    def __init__(self, command: Sequence[str]) -> None:
        # A session of its own: Ctrl-C in a terminal reaches the caller, which then closes this.
        self._keeper = subprocess.Popen(  # noqa: S603 - our own interpreter and file
            [sys.executable, "-IS", keeper.__file__, json.dumps(command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._orders = threading.Lock()
        self.directory = Path(self._answer()["directory"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the server, remove the directory, and wait for both."""
        self._keeper.communicate("end\n")

    def start(self) -> None:
        """Start the server, which does not run."""
        self._order("start")

    def kill(self) -> None:
        """Kill the server by SIGKILL, and wait until it is gone."""
        self._order("kill")

    def terminate(self) -> None:
        """Ask the server by SIGTERM to end, and wait until it has."""
        self._order("terminate")

    def pause(self) -> None:
        """Stop the server by SIGSTOP."""
        self._order("pause")

    def resume(self) -> None:
        """Let the server go on by SIGCONT."""
        self._order("resume")

    @property
    def pid(self) -> int | None:
        """The process id of the server; None while it does not run."""
        return self._order("state")

    def log(self, lines: int) -> list[str]:
        """Return the last lines that the server wrote to stdout and stderr."""
        text = (self.directory / keeper.LOG_FILE).read_text(errors="replace")
        return text.splitlines()[-lines:]

    def _order(self, order: str) -> int | None:
        with self._orders:
            assert self._keeper.stdin is not None
            self._keeper.stdin.write(order + "\n")
            self._keeper.stdin.flush()
            pid: int | None = self._answer()["pid"]
        return pid

    def _answer(self) -> dict[str, Any]:
        assert self._keeper.stdout is not None
        answer: dict[str, Any] = json.loads(self._keeper.stdout.readline())
        return answer
