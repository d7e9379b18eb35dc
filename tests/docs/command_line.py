"""The page with the options of all commands, made from what typer knows."""

from __future__ import annotations

import typer.main
from typer.cli import get_docs_for_click

from fanout.cli.app import app

__all__ = ("command_line_page",)


def command_line_page() -> str:
    """Return the page in Markdown."""
    command = typer.main.get_command(app)
    return get_docs_for_click(
        obj=command, ctx=typer.Context(command), name="fanout", title="Options of commands"
    )
