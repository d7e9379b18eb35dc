"""Run contenders in turns, and show what each run has measured as soon as it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ("take_turns", "tell")

K = TypeVar("K")
T = TypeVar("T")


def take_turns(what: str, contenders: Mapping[K, Callable[[], T]], rounds: int) -> dict[K, list[T]]:
    """Run each contender once per round, in turn, so that a slow moment of the machine hits all.

    Standard error gets a line for each run, with what it has measured, so that a benchmark that is
    interrupted has told what it knew. On a terminal there is a bar below the lines.

    Args:
        what: What is measured, in front of each line.
        contenders: The contenders, by name.
        rounds: How often each is run.

    Returns:
        The results of each contender, by round.
    """
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
                progress.update(bar, description=f"{what}: {name}")
                result = contend()
                results[name].append(result)
                line = f"{what}, round {number} of {rounds}: {name}: {_told(result)}"
                tell(line, progress.console)
                progress.advance(bar)
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
