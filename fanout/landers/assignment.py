"""Which lander reads which split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now.

    Args:
        assigned: The splits that each lander is to read too.
        moved: The splits that their landers are to release.
    """

    assigned: Mapping[int, tuple[str, ...]]
    moved: tuple[str, ...] = ()


@final
class Assignment:
    """Spread splits over landers."""

    def plan(
        self,
        landers: Collection[int],
        owners: Mapping[str, int],
        waiting: Collection[str],
        bytes_per_second: Mapping[str, float],
        now: float,
    ) -> Plan:
        """Give each split that waits to the lander with the fewest.

        Args:
            landers: The landers that are there.
            owners: The lander of each split that has one.
            waiting: The splits that wait for a lander.
            bytes_per_second: How fast splits are read, as far as it is known.
            now: The loop's clock, in seconds.
        """
        del bytes_per_second, now
        counts = dict.fromkeys(sorted(landers), 0)
        for owner in owners.values():
            counts[owner] += 1
        assigned: dict[int, list[str]] = {}
        for split_id in waiting if counts else ():
            lander = min(counts, key=lambda one: counts[one])
            counts[lander] += 1
            assigned.setdefault(lander, []).append(split_id)
        return Plan({lander: tuple(split_ids) for lander, split_ids in assigned.items()})
