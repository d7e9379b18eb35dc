"""Keep one server process and its directory, and leave neither when the caller is gone.

This runs in a process of its own, `python keeper.py COMMAND` with the command as JSON. It makes a
directory and tells its path as the first line; each line on stdin is then an order, and each is
answered with the state of the server. At `end`, or when stdin closes, which it also does when the
caller is killed, the server is killed and the directory removed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

PREFIX = "fanout-kafka-"
LOG_FILE = "server.log"


class _Server:
    def __init__(self, command: list[str], directory: Path) -> None:
        self._command = command
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False

    def obey(self, order: str) -> None:
        match order:
            case "start":
                self._start()
            case "kill":
                self.kill()
            case "terminate":
                self._signal(signal.SIGTERM)
                self._wait()
            case "pause":
                self._pause()
            case "resume":
                self._paused = False
                self._signal(signal.SIGCONT)
            case _:
                assert order == "state", order

    def state(self) -> dict[str, int | None]:
        """Say the process id of the server, None if it does not run."""
        running = self._process is not None and self._process.poll() is None
        return {"pid": self._process.pid if running and self._process else None}

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._wait()

    def _start(self) -> None:
        self._paused = False
        with (self._directory / LOG_FILE).open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the caller's own command
                self._command,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _pause(self) -> None:
        if self._process is None or self._process.poll() is not None or self._paused:
            return
        self._process.send_signal(signal.SIGSTOP)
        # Its threads run on until the last has stopped, and this says when that is.
        os.waitpid(self._process.pid, os.WUNTRACED)
        self._paused = True

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _wait(self) -> None:
        if self._process is not None:
            self._process.wait()


def main() -> None:
    """Serve the orders on stdin until it closes or SIGTERM comes."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    directory = Path(tempfile.mkdtemp(prefix=PREFIX))
    server = _Server(json.loads(sys.argv[1]), directory)
    try:
        _answer({"directory": str(directory)})
        for line in sys.stdin:
            order = line.strip()
            if order == "end":
                break
            server.obey(order)
            _answer(server.state())
    finally:
        server.kill()
        shutil.rmtree(directory)


def _answer(document: dict[str, str] | dict[str, int | None]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
