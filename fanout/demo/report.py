"""Report a run of the demo: as tables for people, as one JSON object for machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import msgspec
from rich.table import Table

from fanout.demo.options import ServiceName
from fanout.demo.plan import SparkProcess

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.demo.verification import Proof

_SPLITS = {
    ServiceName.KINESIS: "shards",
    ServiceName.KAFKA: "partitions",
    ServiceName.KAFKA_SHARE: "partitions",
}

_GOOD, _BAD = "[green]✓[/]", "[red]✗[/]"


@final
class Resharded(msgspec.Struct, frozen=True):
    """A change of the splits of a stream.

    Args:
        ended: The splits that were closed.
        born: The splits that were created; one that was closed again is in both.
    """

    ended: tuple[str, ...]
    born: tuple[str, ...]


@final
class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of one run.

    Args:
        source: The service that was read.
        seed: The seed of the run.
        proof: The result of the comparison of the output with the records sent.
        splits_seen: The number of splits that the queries have read, closed ones included.
        resubscriptions: Subscriptions that were opened again, by the error that ended the one
            before; None for a DataFrame, whose planner does not report them.
        faults: The number of injected faults, by kind.
        restarts: The number of Spark drivers that were killed and replaced.
        landers_killed: The number of landers that were killed; None without landers.
        processes_killed: The number of processes of Spark that were killed, by kind; None without
            a DataFrame.
        replayed: The batches that a new driver has handled again.
        second_reshard: The change of splits between the kill and the restart; None without a kill.
        seconds: The duration of the run.
    """

    source: ServiceName
    seed: int
    proof: Proof
    splits_seen: int
    resubscriptions: Mapping[str, int] | None
    faults: Mapping[str, int]
    restarts: int
    landers_killed: int | None
    processes_killed: Mapping[SparkProcess, int] | None
    replayed: tuple[int, ...]
    second_reshard: Resharded | None
    seconds: float

    def to_json(self) -> str:
        """Return the report as one flat JSON object on one line."""
        causes, processes = self.resubscriptions, self.processes_killed
        killed = (
            {}
            if processes is None
            else {f"{kind}s_killed": processes.get(kind, 0) for kind in SparkProcess}
        )
        return msgspec.json.encode(
            {
                "source": self.source,
                "seed": self.seed,
                **msgspec.structs.asdict(self.proof),
                "resubscriptions": None if causes is None else sum(causes.values()),
                "splits_seen": self.splits_seen,
                "faults": self.faults,
                "restarts": self.restarts,
                "landers_killed": self.landers_killed,
                **killed,
                "replayed": self.replayed,
                "second_reshard": self.second_reshard,
                "seconds": round(self.seconds, 1),
            }
        ).decode()


def faults_table(report: DemoReport) -> Table:
    """Make a table of the faults, and of the resubscriptions and restarts after them."""
    table = Table(title="Faults and recovery", title_justify="left")
    table.add_column("event")
    table.add_column("times", justify="right")
    for kind, times in sorted(report.faults.items()):
        table.add_row(f"injected: {kind}", str(times))
    for cause, times in sorted((report.resubscriptions or {}).items()):
        table.add_row(f"resubscribed after {cause}", str(times))
    table.add_row("Spark drivers killed and replaced", str(report.restarts))
    if report.landers_killed is not None:
        table.add_row("landers killed", str(report.landers_killed))
    if report.processes_killed is not None:
        for kind in SparkProcess:
            table.add_row(f"{kind}s killed", str(report.processes_killed.get(kind, 0)))
    table.add_row("batches replayed", str(len(report.replayed)))
    if (resharded := report.second_reshard) is not None:
        splits = _SPLITS[report.source]
        if resharded.ended:
            table.add_row(f"{splits} ended while it was down", str(len(resharded.ended)))
        table.add_row(f"{splits} created while it was down", str(len(resharded.born)))
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
        table.add_row("out of order: a share group promises no order", "-", "")
    for claim, count in (
        ("passed by the last watermark", proof.watermark_passed),
        (
            f"of {_SPLITS[report.source]} created while the driver was down",
            proof.second_generation,
        ),
    ):
        if count is not None:
            table.add_row(claim, f"{count:,}", _GOOD if count else _BAD)
    return table
