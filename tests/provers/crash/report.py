"""The report of a campaign: tables for people, one JSON object for machines."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import TYPE_CHECKING, Any, final

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fanout.testing.trials.oracle import OutputVerdict
from tests.provers.crash.moments import CrashMoment, Pipeline, Sink, Strike, StrikeKind

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ("CrashReport", "RoundResult", "Struck", "moments_table", "round_line", "verdicts_table")

_GOOD, _BAD = "[green]✓[/]", "[red]✗[/]"


@final
class Struck(msgspec.Struct, frozen=True):
    """The result of a strike.

    Args:
        strike: The strike.
        reached: Whether the job came to its moment; if not, nothing was done.
    """

    strike: Strike
    reached: bool


@final
class RoundResult(msgspec.Struct, frozen=True, kw_only=True):
    """One round.

    Args:
        number: From 1.
        struck: What struck.
        failures: Why queries ended that were not killed.
        caught_up: Seconds from the last strike until the output had everything that was produced
            by then; None if it never had.
    """

    number: int
    struck: tuple[Struck, ...]
    failures: tuple[str, ...]
    caught_up: float | None


@final
class CrashReport(msgspec.Struct, frozen=True, kw_only=True):
    """One campaign.

    Args:
        sink: What the job wrote to.
        nodes: How many nodes of Kafka there were.
        seed: The seed of the plan.
        rounds: Its rounds.
        verdicts: What the comparison of output and input found.
        open_transactions: Partitions that a transaction still held up at the end.
        seconds: How long all of it took.
        kept: Where the checkpoints and the log of the job are; None if they were removed.
    """

    sink: Sink = Sink.KAFKA
    nodes: int = 1
    seed: int
    rounds: tuple[RoundResult, ...]
    verdicts: dict[Pipeline, OutputVerdict]
    open_transactions: int
    seconds: float
    kept: str | None = None

    @property
    def holds(self) -> bool:
        """Whether every output is exactly its input, and nothing was stuck or failed."""
        return (
            all(verdict.holds for verdict in self.verdicts.values())
            and all(each.caught_up is not None and not each.failures for each in self.rounds)
            and not self.open_transactions
        )

    @property
    def struck(self) -> tuple[Struck, ...]:
        """Every strike of every round."""
        return tuple(struck for each in self.rounds for struck in each.struck)

    def to_json(self) -> str:
        """Return the report as one JSON object on one line."""
        caught_up = [each.caught_up for each in self.rounds]
        document: dict[str, Any] = {
            "sink": self.sink,
            "nodes": self.nodes,
            "seed": self.seed,
            "rounds": len(self.rounds),
            "kills": sum(each.reached for each in self.struck),
            "not_reached": sum(not each.reached for each in self.struck),
            **_summed(self.verdicts.values()),
            "stuck": caught_up.count(None),
            "open_transactions": self.open_transactions,
            "failures": [why for each in self.rounds for why in each.failures],
            "slowest_catch_up": round(max((each or 0.0 for each in caught_up), default=0.0), 1),
            "pipelines": self.verdicts,
            "moments": _counted(self.struck),
            "seconds": round(self.seconds, 1),
        }
        return msgspec.json.encode(document).decode()


def round_line(result: RoundResult, rounds: int) -> Text:
    """Say in one line what struck in a round, and how it ended."""
    shown = [
        f"{each.strike.kind} {_when(each.strike.moment)}{'' if each.reached else ' (not reached)'}"
        for each in result.struck
    ]
    pipeline = result.struck[0].strike.pipeline
    if result.caught_up is None:
        end = Text("never caught up", "red")
    else:
        end = Text(f"caught up in {result.caught_up:.1f} s")
    line = Text(f"{result.number:>{len(str(rounds))}}/{rounds}  {pipeline:<7}  ")
    line.append(f"{', then '.join(shown):<52}  ").append(end)
    for why in result.failures:
        line.append(f"\n    the job failed: {why}", "red")
    return line


def moments_table(report: CrashReport) -> Table:
    """Show how often what was struck at which moment, in the order of a batch."""
    table = Table(title="What was struck when", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("moment", no_wrap=True)
    table.add_column("struck", no_wrap=True)
    for pipeline in report.verdicts:
        table.add_column(pipeline, justify="right")
    table.add_column("not reached", justify="right")
    reached = Counter(each.strike for each in report.struck if each.reached)
    missed = Counter(_what(each.strike) for each in report.struck if not each.reached)
    seen = {_what(each.strike) for each in report.struck}
    for moment, kind in product(CrashMoment, StrikeKind):
        if (moment, kind) in seen:
            times = [reached[Strike(moment, kind, pipeline)] for pipeline in report.verdicts]
            counts = [*times, missed[moment, kind]]
            table.add_row(moment, kind, *(str(count or "") for count in counts))
    return table


def verdicts_table(report: CrashReport) -> Table:
    """Show what came through in each pipeline, each count with a mark."""
    table = Table(title=f"What a reader of {report.sink} saw", title_justify="left")
    table.add_column("records")
    for pipeline in report.verdicts:
        table.add_column(pipeline, justify="right")
    table.add_column("")
    for name in OutputVerdict.__struct_fields__:
        counts = [getattr(verdict, name) for verdict in report.verdicts.values()]
        checked = name not in {"produced", "read", "repeated"}
        mark = (_BAD if any(counts) else _GOOD) if checked else ""
        table.add_row(name.replace("_", " "), *(f"{count:,}" for count in counts), mark)
    return table


def _when(moment: CrashMoment) -> str:
    return f"at {moment}" if moment is CrashMoment.RANDOM else str(moment)


def _what(strike: Strike) -> tuple[CrashMoment, StrikeKind]:
    return strike.moment, strike.kind


def _counted(struck: Iterable[Struck]) -> dict[str, Counter[str]]:
    counted: dict[str, Counter[str]] = {}
    for each in struck:
        row = counted.setdefault(each.strike.moment, Counter())
        row[each.strike.kind if each.reached else "not reached"] += 1
    return counted


def _summed(verdicts: Iterable[OutputVerdict]) -> Counter[str]:
    total: Counter[str] = Counter(dict.fromkeys(OutputVerdict.__struct_fields__, 0))
    for verdict in verdicts:
        total.update(msgspec.structs.asdict(verdict))
    return total
