"""Count the progress of a run of the demo and show it, and report what it has proved."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from fanout.demo.options import ServiceName
from fanout.demo.plan import SparkProcess

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from fanout.demo.options import DemoOptions
    from fanout.demo.plan import ActionResult
    from fanout.demo.verification import Proof

_GOOD, _BAD = "[green]✓[/]", "[red]✗[/]"


@final
class RunProgress:
    """Count what the producer and the drivers report; a quiet console shows nothing of it."""

    def __init__(self, console: Console, records: int) -> None:
        self.sent = 0  # records that the service has accepted
        self.rows: dict[int, int] = {}  # of each batch; one that is written again is counted once
        self.splits: set[str] = set()  # that queries have read
        self.resubscriptions: Counter[str] = Counter()  # by the error that ended the one before
        self.restarts = 0  # drivers that were killed and replaced
        self.left_out: dict[int, int] = {}  # that came again although a segment had them, by driver
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


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """The report of one run."""

    options: DemoOptions
    proof: Proof
    progress: RunProgress
    faults: Mapping[str, int]  # the number of injected faults, by kind
    second_reshard: ActionResult | None  # between the kill and the restart
    seconds: float

    @property
    def killed(self) -> dict[SparkProcess, int]:
        """The number of processes of Spark that were killed, of each kind that the run has."""
        kinds = [SparkProcess.LANDER] if self.options.landers else []
        kinds += [SparkProcess.PLANNER, SparkProcess.WORKER] if self.options.dataframe else []
        return {kind: self.progress.processes_killed[kind] for kind in kinds}

    @property
    def left_out(self) -> int | None:
        """The number of records that the queue delivered again and that were left out."""
        counted = self.options.source is ServiceName.KINESIS_QUEUE
        return sum(self.progress.left_out.values()) if counted else None

    def to_json(self) -> str:
        """Return the report as one flat JSON object on one line."""
        progress, resharded = self.progress, self.second_reshard
        causes = progress.resubscriptions
        return msgspec.json.encode(
            {
                "source": self.options.source,
                "seed": self.options.seed,
                "nodes": self.options.nodes,
                **msgspec.structs.asdict(self.proof),
                # The planner of a DataFrame does not report them.
                "resubscriptions": None if self.options.dataframe else causes.total(),
                "splits_seen": len(progress.splits),
                "left_out": self.left_out,
                "faults": self.faults,
                "restarts": progress.restarts,
                "landers_killed": None,
                **{f"{kind}s_killed": times for kind, times in self.killed.items()},
                "replayed": progress.replayed,
                "second_reshard": None
                if resharded is None
                else {"ended": resharded.ended, "born": resharded.born},
                "seconds": round(self.seconds, 1),
            }
        ).decode()


def faults_table(report: DemoReport) -> Table:
    """Make a table of the faults, and of the resubscriptions and restarts after them."""
    table = Table(title="Faults and recovery", title_justify="left")
    table.add_column("event")
    table.add_column("times", justify="right")
    progress = report.progress
    rows = [(f"injected: {kind}", times) for kind, times in sorted(report.faults.items())]
    rows += [
        (f"resubscribed after {cause}", times)
        for cause, times in sorted(progress.resubscriptions.items())
    ]
    rows.append(("Spark drivers killed and replaced", progress.restarts))
    rows += [(f"{kind}s killed", times) for kind, times in report.killed.items()]
    rows.append(("batches replayed", len(progress.replayed)))
    if (resharded := report.second_reshard) is not None:
        splits = _splits(report)
        if resharded.ended:
            rows.append((f"{splits} ended while it was down", len(resharded.ended)))
        rows.append((f"{splits} created while it was down", len(resharded.born)))
    for event, times in rows:
        table.add_row(event, str(times))
    return table


def proof_table(report: DemoReport) -> Table:
    """Make a table of the compared records, with a mark for each check."""
    proof = report.proof
    table = Table(title="Records", title_justify="left")
    table.add_column("compared by another process")
    table.add_column("records", justify="right")
    table.add_column("")
    table.add_row("sent", f"{proof.records_sent:,}", "")
    table.add_row(f"read in {proof.batches} batches", f"{proof.records_read:,}", "")
    for claim, count in (
        ("lost", proof.lost),
        ("duplicated", proof.duplicated),
        ("altered", proof.altered),
        ("out of order", proof.out_of_order),
        ("watermark violations", proof.watermark_violations),
    ):
        if count is not None:
            table.add_row(claim, f"{count:,}", _BAD if count else _GOOD)
    if proof.out_of_order is None:
        table.add_row(f"out of order: {report.options.source.lender} promises no order", "-", "")
    if report.left_out is not None:
        table.add_row("delivered again by the queue, and read", f"{proof.redelivered:,}", "")
        table.add_row("delivered again, and left out as known", f"{report.left_out:,}", "")
    for claim, count in (
        ("passed by the last watermark", proof.watermark_passed),
        (f"of {_splits(report)} created while the driver was down", proof.second_generation),
    ):
        if count is not None:
            table.add_row(claim, f"{count:,}", _GOOD if count else _BAD)
    return table


def _splits(report: DemoReport) -> str:
    return "shards" if report.options.source is ServiceName.KINESIS else "partitions"
