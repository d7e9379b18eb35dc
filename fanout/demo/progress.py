"""Count the progress of a run of the demo, and show it: bars on a terminal, lines elsewhere."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console

    from fanout.demo.plan import SparkProcess


@final
@dataclass(slots=True)
class RunProgress:
    """Count what the producer and the drivers report. One task at a time changes it.

    Args:
        sent: Records that the service has accepted.
        rows: Records in the output by batch id; a batch that is written again is counted once.
        splits: The splits that a query has reported.
        resubscriptions: By the error that ended the subscription before.
        restarts: The number of drivers that were killed and replaced.
        replayed: The batches that a new driver has handled again.
        landers_killed: The number of landers that were killed.
        processes_killed: The number of processes of Spark that were killed, by kind.
    """

    sent: int = 0
    rows: dict[int, int] = field(default_factory=dict)
    splits: set[str] = field(default_factory=set)
    resubscriptions: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    replayed: list[int] = field(default_factory=list)
    landers_killed: int = 0
    processes_killed: Counter[SparkProcess] = field(default_factory=Counter)

    @property
    def read(self) -> int:
        """Records in batches that are written."""
        return sum(self.rows.values())

    @property
    def lag(self) -> int:
        """Records that are sent and not yet written."""
        return max(0, self.sent - self.read)


@final
class ProgressDisplay:
    """Show the progress while the block runs.

    Args:
        console: The output; a quiet one shows nothing.
        records: The number of records in the run.
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

    def update(self, tally: RunProgress) -> None:
        """Move the bars."""
        note = f"lag {tally.lag:,} records, {tally.resubscriptions.total()} resubscriptions"
        self._progress.update(self._sent, completed=tally.sent)
        self._progress.update(self._read, completed=tally.read, note=note)

    def show_event(self, tally: RunProgress, event: str) -> None:
        """Print a line about an event."""
        self._console.print(
            f"{tally.sent:>9,} sent  {event}", highlight=False, markup=False, soft_wrap=True
        )
