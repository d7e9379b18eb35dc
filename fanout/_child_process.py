"""Run a command and leave no child process behind."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def run_command(
    command: Sequence[str | Path], *, cwd: Path | None = None, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and return its exit code and output.

    `subprocess.run` kills its child on Ctrl-C and does not wait for it, so the child outlives the
    call for a moment.

    Args:
        command: The executable and its arguments; no shell reads them.
        cwd: The directory that it runs in; None for that of this process.
        timeout: Seconds after which the command is killed; None for no limit.

    Raises:
        OSError: The executable does not start.
        subprocess.TimeoutExpired: The command took longer; it has ended.
        KeyboardInterrupt: On Ctrl-C; the command has ended.
    """
    with subprocess.Popen(  # noqa: S603 - the callers' own commands, without a shell
        command,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
    return subprocess.CompletedProcess(command, process.returncode, output, errors)
