"""Show the progress of a campaign on a terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from tests.provers.simulation.campaign.failures import RunFailure

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from rich.console import Console

    from tests.provers.simulation.campaign.worker import Result

__all__ = ("shown",)


def shown(results: Iterable[Result], total: int, console: Console) -> Generator[Result]:
    """Yield results, and show how many there have been and what they were.

    A failure is printed at once, below it the progress goes on.

    Args:
        results: The results.
        total: How many there will be.
        console: Where it is shown; nothing is, unless it is a terminal.
    """
    progress = Progress(
        TextColumn("seeds"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:,.0f}/s, {task.fields[failures]} failed"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )
    began = time.monotonic()
    failures = 0
    with progress:
        task = progress.add_task("", total=total, rate=0.0, failures=0)
        for done, result in enumerate(results, 1):
            if isinstance(result, RunFailure):
                failures += 1
                progress.console.print(
                    f"seed {result.seed}: {result.summary}",
                    style="red",
                    markup=False,
                    highlight=False,
                    soft_wrap=True,
                )
            rate = done / max(time.monotonic() - began, 0.001)
            progress.update(task, advance=1, rate=rate, failures=failures)
            yield result
