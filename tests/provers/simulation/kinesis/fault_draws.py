"""Draw what goes wrong in a plan."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

from tests.provers.simulation.chance import happens
from tests.provers.simulation.kinesis.faults import (
    KINESIS_FAULTS,
    KinesisFault,
    KinesisFaultKind,
    KinesisFaultSite,
)
from tests.provers.simulation.service_clock import shard_id_of

if TYPE_CHECKING:
    from random import Random

    from tests.provers.simulation.kinesis.plan import KinesisPlan

__all__ = ("draw_fatal_kind", "draw_faults")

_MOST: Final = 150
_OF_A_SHARD: Final = {KinesisFaultSite.SUBSCRIBE, KinesisFaultSite.EVENT, KinesisFaultSite.SERVICE}
# Each makes half a dozen shards.
_MOST_STORMS: Final = 1
# One rate for all would let these strike seldom: there are few calls that they can strike.
_EXTRA: Final = {
    KinesisFaultKind.RENEWAL_FAILS: KinesisFaultKind.ROTATED,
    KinesisFaultKind.RENEWAL_HANGS: KinesisFaultKind.ROTATED,
}


def draw_fatal_kind(random: Random, mode: str) -> KinesisFaultKind | None:
    """Draw of what a plan's stream has to fail: of nothing in nineteen plans of twenty.

    Args:
        random: Where chance comes from.
        mode: How the plan reads.
    """
    kinds = [
        kind
        for kind, traits in KINESIS_FAULTS.items()
        if (traits.fatal or traits.fatal_with) and traits.mode in {None, mode}
    ]
    kind = random.choice(kinds)
    return kind if happens(random, 0.05) else None


def draw_faults(
    random: Random, plan: KinesisPlan, fatal: KinesisFaultKind | None
) -> list[KinesisFault]:
    """Draw faults of a random subset of the kinds, at a random rate.

    Args:
        random: Where chance comes from.
        plan: What is known of the plan.
        fatal: Of what its stream has to fail; None for nothing.
    """
    kinds = _draw_kinds(random, plan)
    if not kinds or happens(random, 0.02):  # without faults at all, too
        return []
    rate = 10 ** (random.uniform(-2.8, -0.8) if plan.mode == "efo" else random.uniform(-2, -0.3))
    count = min(math.ceil(rate * plan.seconds), _MOST)
    faults = [_draw_fault(random, random.choice(kinds), plan) for _ in range(count)]
    if fatal is not None:
        faults.append(_draw_fault(random, fatal, plan))
    seen: Counter[KinesisFaultKind] = Counter()
    kept = []
    for fault in sorted(faults, key=lambda fault: fault.at):
        seen[fault.kind] += 1
        if fault.kind is not KinesisFaultKind.RESHARD_STORM or seen[fault.kind] <= _MOST_STORMS:
            kept.append(fault)
    return kept


def _draw_kinds(random: Random, plan: KinesisPlan) -> list[KinesisFaultKind]:
    kinds, fatal = [], plan.fatal_kinds
    for kind, traits in KINESIS_FAULTS.items():
        drawn = happens(random, 0.5)  # each kind in every other plan
        if drawn and kind not in fatal and traits.mode in {None, plan.mode}:
            kinds += [kind, *([_EXTRA[kind]] if kind in _EXTRA else [])]
    return kinds


def _draw_fault(random: Random, kind: KinesisFaultKind, plan: KinesisPlan) -> KinesisFault:
    traits = KINESIS_FAULTS[kind]
    low, high = traits.seconds or (0.0, 0.0)
    lasting = traits.lasting and happens(random, 0.1)  # an outage
    return KinesisFault(
        kind=kind,
        at=round(random.uniform(0, plan.seconds), 3),
        shard=shard_id_of(random.randrange(plan.shards + plan.reshards))
        if traits.site in _OF_A_SHARD and happens(random, 0.5)
        else None,
        seconds=round(math.exp(random.uniform(math.log(low), math.log(high))), 3) if low else 0.0,
        lasts=round(random.uniform(1, 300), 3) if lasting else 0.0,
        code=random.choice(traits.codes) if traits.codes else "",
    )
