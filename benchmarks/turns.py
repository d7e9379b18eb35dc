"""Run contenders in turns, and show what each run has measured as soon as it is over."""

from __future__ import annotations

import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ("OutOfTimeError", "TimeLimit", "check_time", "limited", "take_turns", "tell")

K = TypeVar("K")
T = TypeVar("T")


@final
class OutOfTimeError(Exception):
    """The time of all scenarios is over."""


@final
@dataclass(frozen=True, slots=True)
class TimeLimit:
    """Until when contenders are run, by the clock of `time.monotonic`.

    Args:
        extra: Until when this scenario runs more than one round.
        end: When the time of all scenarios is over.
    """

    extra: float
    end: float


_LIMIT: Final[ContextVar[TimeLimit | None]] = ContextVar("limit", default=None)


@contextmanager
def limited(limit: TimeLimit | None) -> Iterator[None]:
    """Limit the time of what takes turns in the block; None for no limit."""
    before = _LIMIT.set(limit)
    try:
        yield
    finally:
        _LIMIT.reset(before)


def check_time() -> None:
    """Return if there is time left.

    Raises:
        OutOfTimeError: If the time of all scenarios is over.
    """
    limit = _LIMIT.get()
    if limit is not None and time.monotonic() > limit.end:
        raise OutOfTimeError


def _last_round(started: float, number: int) -> bool:
    """Say whether the time leaves no other round; half of what is left is for what comes next."""
    limit = _LIMIT.get()
    if limit is None:
        return False
    now = time.monotonic()
    return now + (now - started) / number > started + (limit.extra - started) / 2


def take_turns(what: str, contenders: Mapping[K, Callable[[], T]], rounds: int) -> dict[K, list[T]]:
    """Run each contender once per round, in turn, so that a slow moment of the machine hits all.

    Standard error gets a line for each run, with what it has measured, so that a benchmark that is
    interrupted has told what it knew. On a terminal there is a bar below the lines.

    Args:
        what: What is measured, in front of each line.
        contenders: The contenders, by name.
        rounds: How often each is run.

    Returns:
        The results of each contender, by round. Where the time is limited there may be fewer
        rounds, and at least one.

    Raises:
        OutOfTimeError: If the time of all scenarios is over.
    """
    started = time.monotonic()
    results: dict[K, list[T]] = {name: [] for name in contenders}
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=rounds * len(contenders))
        for number in range(1, rounds + 1):
            for name, contend in contenders.items():
                check_time()
                progress.update(bar, description=f"{what}: {name}")
                result = contend()
                results[name].append(result)
                line = f"{what}, round {number} of {rounds}: {name}: {_told(result)}"
                tell(line, progress.console)
                progress.advance(bar)
            if number < rounds and _last_round(started, number):
                tell(f"{what}: its time is over after {number} of {rounds} rounds")
                break
    return results


def tell(line: str, console: Console | None = None) -> None:
    """Print a line to standard error.

    Args:
        line: The line.
        console: That of a bar that is shown meanwhile.
    """
    console = Console(stderr=True) if console is None else console
    console.print(line, soft_wrap=True, markup=False, highlight=False)


def _told(result: object) -> str:
    if isinstance(result, tuple):
        return "; ".join(map(_told, result))
    return f"{result:.3f} s" if isinstance(result, float) else str(result)
