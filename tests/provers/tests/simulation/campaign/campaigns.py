"""Campaigns whose results are looked at in parts: each part is a test of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.provers.simulation.campaign.totals import Totals

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.provers.simulation.campaign.worker import Result

__all__ = ("Campaign", "parts_of", "selected")

_PART = 50


def parts_of(seeds: range) -> list[range]:
    """Cut seeds into parts of fifty."""
    return [seeds[first : first + _PART] for first in range(0, len(seeds), _PART)]


def selected(request: pytest.FixtureRequest, seeds: range) -> list[int]:
    """Return the seeds of the parts that are tested; all of them where a test is of no part.

    Args:
        request: The request of the fixture of a module, whose tests take a `part` or none.
        seeds: All seeds.
    """
    parts: list[range] = []
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.module is request.module:
            whole = "campaign" in item.fixturenames and not hasattr(item, "callspec")
            parts.append(seeds if whole else _part_of(item))
    tested = {seed for part in parts for seed in part}
    return [seed for seed in seeds if seed in tested]


def _part_of(item: pytest.Function) -> range:
    """Return the part that a test is of; an empty one where it is of no campaign."""
    part = item.callspec.params.get("part") if hasattr(item, "callspec") else None
    return part if isinstance(part, range) else range(0)


class Campaign:
    """A campaign that runs on only as far as is asked for, in any order of its parts.

    Args:
        results: What the seeds come to, as they end.
    """

    def __init__(self, results: Iterable[Result]) -> None:
        self._results = iter(results)
        self._by_seed: dict[int, Result] = {}

    def totals_of(self, seeds: range) -> Totals:
        """Run until all of some seeds have ended, and sum what they come to."""
        while not all(seed in self._by_seed for seed in seeds):
            result = next(self._results)
            self._by_seed[result.seed] = result
        totals = Totals()
        for seed in seeds:
            totals += Totals.of(self._by_seed[seed])
        return totals
