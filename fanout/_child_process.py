"""Run a command and leave no child process behind."""

from __future__ import annotations

import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def run_command(
    command: Sequence[str | Path], *, cwd: Path | None = None, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return its exit code and output.

    Args:
        command: The executable and its arguments; no shell reads them.
        cwd: The directory that it runs in; None for that of this process.
        timeout: Seconds after which the command is killed; None for no limit.

    Raises:
        OSError: The executable does not start.
        subprocess.TimeoutExpired: The command took longer; it has ended.
        KeyboardInterrupt: On Ctrl-C; the command has ended.
    """
    begun: list[subprocess.Popen[str]] = []
    given_up = threading.Event()

    def begin() -> None:
        process = subprocess.Popen(  # noqa: S603 - the callers' own commands, without a shell
            command,
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )
        begun.append(process)
        if given_up.is_set():  # a signal came before this child was known
            with process:
                process.kill()

    with ThreadPoolExecutor(1) as starter:
        try:
            # Signals interrupt the main thread alone, so that each child that begins is known.
            starter.submit(begin).result()
            output, errors = begun[0].communicate(timeout=timeout)
        except BaseException:
            given_up.set()
            for process in begun:
                with process:
                    process.kill()
            raise
    return subprocess.CompletedProcess(command, begun[0].returncode, output, errors)
