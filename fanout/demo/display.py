"""Show a run of the demo while it runs: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console

    from fanout.demo.tally import Tally

__all__ = ("Display",)


@final
class Display:
    """Show what happens while the block runs.

    Args:
        console: Where to show it; a quiet one shows nothing.
        records: How many records there will be.
    """

    def __init__(self, console: Console, records: int) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description:>5}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal or console.quiet,
            transient=True,
        )
        self._sent = self._progress.add_task("sent", total=records, note="")
        self._read = self._progress.add_task("read", total=records, note="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def update(self, tally: Tally) -> None:
        """Move the bars."""
        note = f"lag {tally.lag:,} records, {tally.resubscriptions.total()} resubscriptions"
        self._progress.update(self._sent, completed=tally.sent)
        self._progress.update(self._read, completed=tally.read, note=note)

    def tell(self, tally: Tally, event: str) -> None:
        """Print a line about something that happened."""
        self._console.print(
            f"{tally.sent:>9,} sent  {event}", highlight=False, markup=False, soft_wrap=True
        )
