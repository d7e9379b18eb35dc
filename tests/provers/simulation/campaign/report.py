"""The report of a campaign: a table for people, one JSON object for machines."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgspec
from rich.table import Table
from rich.text import Text

from tests.provers.simulation.campaign.failures import FailureKind
from tests.provers.simulation.moments.moments import KinesisSometimes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from enum import StrEnum

    from tests.provers.simulation.campaign.shrink import Shrunk
    from tests.provers.simulation.campaign.totals import Totals

__all__ = ("report", "summary_table")

_GOOD: Final = ("✓", "green")
_BAD: Final = "bold red"

# Of seeds that a line names.
_NAMED: Final = 5

# Kinds that are always reported; the others only where they occurred.
_CLAIMS: Final = (
    FailureKind.LOST,
    FailureKind.DUPLICATED,
    FailureKind.OUT_OF_ORDER,
    FailureKind.ALTERED,
    FailureKind.LEAKED,
    FailureKind.STUCK,
)


def report(
    totals: Totals,
    smallest: Shrunk | None,
    *,
    first: int,
    seconds: float,
    moments: type[StrEnum] = KinesisSometimes,
) -> dict[str, Any]:
    """Return the totals as an object of JSON.

    Args:
        totals: What all seeds came to.
        smallest: A small plan that fails like the first that did.
        first: The first seed.
        seconds: The real seconds that they took.
        moments: The coincidences that may have been met.
    """
    return {
        "first": first,
        "seeds": totals.seeds,
        "seconds": round(seconds, 1),
        "seeds_per_second": round(totals.seeds / seconds, 1),
        "virtual_hours": round(totals.hours, 1),
        "steps": totals.steps,
        "records": totals.records,
        "replayed": totals.replayed,
        "restarts": totals.restarts,
        "calls": dict(sorted(totals.calls.items())),
        "faults": dict(sorted(totals.faults.items())),
        "moments": {moment.name: totals.moments.get(moment, 0) for moment in moments},
        "recovery_seconds_p99": totals.recovery(0.99),
        "recovery_seconds_max": totals.recovery(1),
        "slowest_close": totals.slowest_close,
        "failures": {str(kind): count for kind, count in totals.failures_by_kind.items()},
        "failed": [
            {
                "seed": failure.seed,
                "kind": str(failure.kind),
                "error": failure.summary,
                "replay": failure.command,
            }
            for failure in totals.failures
        ],
        "smallest_plan": None if smallest is None else msgspec.to_builtins(smallest.plan),
    }


def summary_table(
    totals: Totals, *, seconds: float, moments: type[StrEnum] = KinesisSometimes
) -> Table:
    """Show what went wrong, what was checked, and what became of each promise.

    Args:
        totals: What all seeds came to.
        seconds: The real seconds that they took.
        moments: The coincidences that may have been met.
    """
    table = Table(title="Simulated", title_justify="left")
    table.add_column("")
    table.add_column("times", justify="right")
    table.add_column("")
    for name, figure in _figures(totals, seconds, moments):
        table.add_row(name, figure, "")
    table.add_section()
    for kind, times in sorted(totals.faults.items()):
        table.add_row(f"fault: {kind}", f"{times:,}", "")
    table.add_section()
    for kind, count in totals.failures_by_kind.items():
        if count or kind in _CLAIMS:
            style = _BAD if count else ""
            seeds = [failure.seed for failure in totals.failures if failure.kind is kind]
            mark = Text(_seeds(seeds), style) if count else Text(*_GOOD)
            table.add_row(Text(kind, style), Text(f"{count:,}", style), mark)
    return table


def _figures(totals: Totals, seconds: float, moments: type[StrEnum]) -> Iterator[tuple[str, str]]:
    yield "seeds", f"{totals.seeds:,}"
    yield "seeds a second", f"{totals.seeds / seconds:,.1f}"
    yield "virtual hours", f"{totals.hours:,.1f}"
    yield "steps of tasks", f"{totals.steps:,}"
    yield "records checked", f"{totals.records:,}"
    yield "of those, again after a restart", f"{totals.replayed:,}"
    yield "restarts", f"{totals.restarts:,}"
    yield "calls to the service", f"{sum(totals.calls.values()):,}"
    yield "faults", f"{sum(totals.faults.values()):,}"
    met = sum(bool(totals.moments.get(moment)) for moment in moments)
    yield "coincidences met", f"{met} of {len(moments)}"
    yield "seconds to recover, p99", f"{totals.recovery(0.99):,}"
    yield "seconds to recover, most", f"{totals.recovery(1):,}"
    yield "seconds to close, most", f"{math.ceil(totals.slowest_close):,}"


def _seeds(seeds: list[int]) -> str:
    more = f" and {len(seeds) - _NAMED:,} more" if len(seeds) > _NAMED else ""
    return "✗ seed " + ", ".join(map(str, seeds[:_NAMED])) + more
