"""Options, arguments and printing that the commands share."""

from __future__ import annotations

import json
import re
import signal
import threading
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, TypeVar, cast

import typer

from fanout.core.sentence import Option
from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence

_T = TypeVar("_T")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

Stream = Annotated[str, typer.Argument(help="The stream's name or ARN.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Service: TypeAlias = Literal["kinesis", "kafka"]

_SOURCE: Final = re.compile(r"(kinesis|kafka)://(.+)", re.DOTALL)

SourceName = Annotated[
    str,
    typer.Argument(
        help="kinesis://STREAM, by name or ARN, or kafka://TOPIC; several streams or topics by "
        "commas."
    ),
]


def end_like_ctrl_c() -> None:
    """Let SIGTERM end the command as Ctrl-C does, so that no child process and no file is left."""
    # A shell starts background commands with Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


def run_coroutine(main: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine as `asyncio.run` does, but let Ctrl-C cancel it between two callbacks.

    asyncio cancels it in the middle of one, such as that of a connection, which then fails aloud.
    A second Ctrl-C ends what runs at once, the clean-up too.
    """
    import asyncio  # noqa: PLC0415 - for help

    interrupted = False

    async def interruptible() -> _T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupt(*_: object) -> None:
            nonlocal interrupted
            if interrupted or loop.is_closed():
                loop.set_exception_handler(lambda *_: None)  # whichever task it breaks off
                raise KeyboardInterrupt
            interrupted = True
            loop.call_soon_threadsafe(task.cancel)

        if is_main:
            signal.signal(signal.SIGINT, interrupt)
        return await main

    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    try:
        return asyncio.run(interruptible())
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)


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


def parse_source(
    source: str, *, kinesis: dict[str, object], kafka: dict[str, object]
) -> tuple[Service, str]:
    """Return the service of a source, and the name of the stream or of the topics.

    `kinesis` and `kafka` are the options that only one service has, as they were given: one of the
    other service is refused.
    """
    match = _SOURCE.fullmatch(source)
    if match is None:
        raise OptionError(Option("source", source), " must be kinesis://STREAM or kafka://TOPIC")
    service = cast("Service", match[1])
    others = kafka if service == "kinesis" else kinesis
    for name, value in others.items():
        if value is not None:
            raise OptionError(Option(name, value), f" cannot be used with {service}://")
    return service, match[2]


def aware_time(text: str) -> datetime | None:
    """Return a time that is written in ISO 8601 with its zone; None for any other text."""
    with suppress(ValueError):
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment
    return None
