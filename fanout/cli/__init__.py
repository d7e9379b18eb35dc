"""The command line: one module for each command of `fanout`."""

from __future__ import annotations

import sys
from io import TextIOWrapper


def main() -> None:
    """Run the command line; without the extra `cli`, print how to install it and exit with 2."""
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
    try:
        end_like_ctrl_c()
        # The name of a file may have characters that the terminal's encoding lacks.
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        app()
    except KeyboardInterrupt:  # it came before the command had begun
        sys.exit(130)
