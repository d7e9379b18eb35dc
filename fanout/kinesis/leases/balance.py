"""Decide which member is to have which lease. Each member decides for itself, and alike.

All members see the same table, so they come to the same plan, and each does only its own part:
it takes what it is to have. Nobody leads. Where two saw different things, a condition of the table
lets one of them have the lease, and the next look settles the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# How far members may be apart before a lease moves, as a part of the mean.
_TOLERANCE: Final = 0.2
# A shard counts as this many KB a second at least, so that idle shards are divided too.
_LEAST_RATE: Final = 10.0


def plan(
    rates: Mapping[str, float], owners: Mapping[str, str | None], members: Collection[str]
) -> Mapping[str, str]:
    """Return which member is to have each lease.

    What has a member stays, unless that leaves them out of balance: by KB a second, and by the
    number of leases where their rates are alike.

    Args:
        rates: KB a second of each lease that is to be read.
        owners: Who has it now, or is promised it; None for nobody who lives.
        members: The members that live, at least one.
    """
    weights = {id_: max(rate, _LEAST_RATE) for id_, rate in rates.items()}
    had: dict[str, set[str]] = {member: set() for member in sorted(members)}
    free = []
    for id_ in sorted(weights, key=lambda id_: (-weights[id_], id_)):
        owner = owners.get(id_)
        if owner in had:
            had[owner].add(id_)
        else:
            free.append(id_)
    loads = {member: sum(weights[id_] for id_ in ids) for member, ids in had.items()}
    for id_ in free:
        member = min(loads, key=lambda one: (loads[one], one))
        had[member].add(id_)
        loads[member] += weights[id_]
    _even_out(had, loads, weights)
    return {id_: member for member, ids in had.items() for id_ in ids}


def _even_out(
    had: Mapping[str, set[str]], loads: dict[str, float], weights: Mapping[str, float]
) -> None:
    """Move leases from the member with the most to the one with the least, while it helps."""
    # Rates vary, and the number of leases does not.
    varying = sum(loads.values()) - _LEAST_RATE * len(weights)
    tolerance = _TOLERANCE * varying / len(loads)
    for _ in weights:
        most = max(loads, key=lambda one: (loads[one], one))
        least = min(loads, key=lambda one: (loads[one], one))
        apart = loads[most] - loads[least]
        movable = [id_ for id_ in had[most] if weights[id_] < apart]
        if not movable or apart <= max(tolerance, _LEAST_RATE):
            return
        # The lease that brings the two nearest to each other.
        id_ = min(movable, key=lambda one: (abs(apart - 2 * weights[one]), one))
        had[most].remove(id_)
        had[least].add(id_)
        loads[most] -= weights[id_]
        loads[least] += weights[id_]
