"""The command line: one module for each command of `fanout`."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper, UnsupportedOperation
from typing import TextIO


def main() -> None:
    """Run the command line; without the extra `cli`, print how to install it and exit with 2."""
    try:
        _run()
    except KeyboardInterrupt:  # it came before the command had begun
        sys.exit(130)
    except OSError as error:
        if error.filename is not None or sys.stdout is None or _takes_more(sys.stdout):
            raise
        # Python writes at its end what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.stderr.write(f"fanout: the output cannot be written: {error.strerror}\n")
        sys.exit(2)


def _run() -> None:
    try:
        from fanout.cli.app import app  # noqa: PLC0415 - its libraries may not be installed
        from fanout.cli.common import end_like_ctrl_c  # noqa: PLC0415 - the same
    except ModuleNotFoundError as error:
        if error.name not in {"rich", "typer"}:
            raise
        sys.stderr.write(
            f"fanout: the command line needs {error.name}, which is not installed: "
            f"pip install 'fanout-streams[cli]'\n"
        )
        sys.exit(2)
    end_like_ctrl_c()
    # The name of a file may have characters that the terminal's encoding lacks.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    app()


def _takes_more(output: TextIO) -> bool:
    """Say whether another line can be written, after an error whose file is not known."""
    try:
        os.write(output.fileno(), b"\n")
    except UnsupportedOperation:  # it is no file of the system
        return True
    except OSError:
        return False
    return True
