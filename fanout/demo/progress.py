"""Count the progress of a run of the demo, and show it: bars on a terminal, lines elsewhere."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from rich.console import Console

    from fanout.demo.plan import SparkProcess


@final
class RunProgress:
    """Count what the producer and the drivers report; a quiet console shows nothing of it."""

    def __init__(self, console: Console, records: int) -> None:
        self.sent = 0  # records that the service has accepted
        self.rows: dict[int, int] = {}  # of each batch; one that is written again is counted once
        self.splits: set[str] = set()  # that queries have read
        self.resubscriptions: Counter[str] = Counter()  # by the error that ended the one before
        self.restarts = 0  # drivers that were killed and replaced
        self.replayed: list[int] = []  # batches that a new driver has handled again
        self.processes_killed: Counter[SparkProcess] = Counter()
        self._console = console
        self.bars = Progress(
            TextColumn("{task.description:>5}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=not console.is_terminal or console.quiet,
            transient=True,
        )
        self._sent_bar = self.bars.add_task("sent", total=records, note="")
        self._read_bar = self.bars.add_task("read", total=records, note="")

    @property
    def read(self) -> int:
        """Records in batches that are written."""
        return sum(self.rows.values())

    def update(self) -> None:
        """Move the bars."""
        lag, again = max(0, self.sent - self.read), self.resubscriptions.total()
        note = f"lag {lag:,} records, {again} resubscriptions"
        self.bars.update(self._sent_bar, completed=self.sent)
        self.bars.update(self._read_bar, completed=self.read, note=note)

    def show(self, event: str) -> None:
        """Print a line about an event."""
        line = f"{self.sent:>9,} sent  {event}"
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)
