"""Options and printing that the commands share."""

from __future__ import annotations

import json
import re
import signal
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

Stream = Annotated[str, typer.Argument(help="The stream's name or ARN.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]


def end_like_ctrl_c() -> None:
    """Let SIGTERM end the command as Ctrl-C does, so that no child process and no file is left."""
    # A shell starts background commands with Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


def print_json(answer: dict[str, Any]) -> None:
    """Print an object on one line."""
    typer.echo(json.dumps(answer, separators=(",", ":")))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows below the names of their columns; brackets in them are not markup."""
    from rich.console import Console  # noqa: PLC0415 - help needs no tables
    from rich.table import Column, Table  # noqa: PLC0415 - help needs no tables
    from rich.text import Text  # noqa: PLC0415 - help needs no tables

    # A long ARN is wrapped, not cut, so that it can be copied.
    table = Table(*(Column(column, overflow="fold") for column in columns))
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)


def age(text: str) -> timedelta:
    """Parse an age such as 90m, 12h, 7d or 2w; seconds are understood too."""
    match = re.fullmatch(r"([0-9]{1,6})([smhdw])", text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not an age such as 90m, 12h, 7d or 2w")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


@contextmanager
def calling_the_service() -> Iterator[None]:
    """Show on stderr that calls are being made, if it is a terminal."""
    from rich.console import Console  # noqa: PLC0415 - help needs no console

    with Console(stderr=True).status("Calling the service..."):
        yield
