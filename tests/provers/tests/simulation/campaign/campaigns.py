"""A campaign in parts, for tests that share it."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from tests.provers.simulation.campaign.totals import Totals

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.provers.simulation.campaign.failures import RunFailure
    from tests.provers.simulation.campaign.worker import Result

__all__ = ("Campaign",)


class Campaign:
    """A campaign that is run piece by piece."""

    def __init__(self, results: Iterable[Result]) -> None:
        self.totals = Totals()
        self._results = iter(results)

    def run(self, seeds: int) -> tuple[RunFailure, ...]:
        """Run some more seeds, as far as there are any; return those that fail."""
        part = Totals()
        for result in islice(self._results, seeds):
            part += Totals.of(result)
        self.totals += part
        return part.failures
