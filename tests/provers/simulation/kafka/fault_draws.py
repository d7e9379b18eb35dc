"""Draw what goes wrong with a simulated cluster, and with the job that reads it."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

from tests.provers.simulation.chance import happens
from tests.provers.simulation.kafka.faults import (
    KAFKA_FAULTS,
    KafkaFault,
    KafkaFaultKind,
    KafkaFaultSite,
)
from tests.provers.simulation.kinesis.faults import (
    KINESIS_FAULTS,
    KinesisFault,
    KinesisFaultKind,
    KinesisFaultSite,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from random import Random

__all__ = ("JOB_KINDS", "draw_cluster_faults", "draw_job_faults")

_MOST: Final = 60
_OF_A_PARTITION: Final = {KafkaFaultSite.LOG, KafkaFaultSite.LEADERS, KafkaFaultSite.ANSWER}
_OF_A_TOPIC: Final = {
    KafkaFaultKind.RECREATED,
    KafkaFaultKind.DELETED,
    KafkaFaultKind.PARTITIONS_ADDED,
}

# One process reads at a time: a second one beside it shares nothing with it but the store.
JOB_KINDS: Final = tuple(
    kind
    for kind, traits in KINESIS_FAULTS.items()
    if traits.site in {KinesisFaultSite.JOB, KinesisFaultSite.STORE}
    and kind is not KinesisFaultKind.DEPLOYED
)
"""What goes wrong with the job itself, or with where it keeps its positions."""


def draw_job_faults(random: Random, seconds: float) -> list[KinesisFault]:
    """Draw what goes wrong with the job, of a random subset of the kinds, at a random rate.

    Args:
        random: Where chance comes from.
        seconds: How long faults strike, in virtual seconds.
    """
    kinds = [kind for kind in JOB_KINDS if happens(random, 0.5)]
    if not kinds:
        return []
    count = _count(random, seconds)
    return sorted(
        (_job_fault(random, random.choice(kinds), seconds) for _ in range(count)), key=_at
    )


def draw_cluster_faults(
    random: Random,
    partitions: Sequence[str],
    seconds: float,
    *,
    lossy: bool,
    but: Collection[KafkaFaultKind] = (),
) -> list[KafkaFault]:
    """Draw what goes wrong with the cluster, of a random subset of the kinds, at a random rate.

    Args:
        random: Where chance comes from.
        partitions: The names of the partitions that it may be about.
        seconds: How long faults strike, in virtual seconds.
        lossy: Whether records may be lost.
        but: What may not be.
    """
    kinds = [
        kind
        for kind, traits in KAFKA_FAULTS.items()
        if happens(random, 0.4) and not traits.fatal and (lossy or not traits.lossy)
        if kind not in but
    ]
    if not kinds or happens(random, 0.02):  # without faults at all, too
        return []
    drawn = [
        draw_cluster_fault(random, random.choice(kinds), partitions, seconds)
        for _ in range(_count(random, seconds))
    ]
    seen: Counter[tuple[KafkaFaultKind, str | None]] = Counter()
    kept = []
    for fault in sorted(drawn, key=_at):
        whose = fault.kind, fault.partition if fault.kind is KafkaFaultKind.LAGGING_LEADER else None
        seen[whose] += 1
        if seen[whose] <= fault.traits.times:
            kept.append(fault)
    return kept


def draw_cluster_fault(
    random: Random, kind: KafkaFaultKind, partitions: Sequence[str], seconds: float
) -> KafkaFault:
    """Draw one fault of a kind."""
    traits = KAFKA_FAULTS[kind]
    low, high = traits.seconds or (0.0, 0.0)
    lasting = traits.lasting and happens(random, 0.2)  # an outage
    always = kind in _OF_A_TOPIC or kind is KafkaFaultKind.LAGGING_LEADER
    one = traits.site in _OF_A_PARTITION and (always or happens(random, 0.6))
    most = (0, 2) if traits.site is KafkaFaultSite.BROKER else traits.most
    return KafkaFault(
        kind=kind,
        at=round(random.uniform(0, seconds), 3),
        partition=random.choice(partitions) if one else None,
        seconds=round(math.exp(random.uniform(math.log(low), math.log(high))), 3) if low else 0.0,
        lasts=round(random.uniform(0.5, 60), 3) if lasting else 0.0,
        code=random.choice(traits.codes) if traits.codes else "",
        amount=random.randint(*most),
    )


def _job_fault(random: Random, kind: KinesisFaultKind, seconds: float) -> KinesisFault:
    low, high = KINESIS_FAULTS[kind].seconds or (0.0, 0.0)
    return KinesisFault(
        kind=kind,
        at=round(random.uniform(0, seconds), 3),
        seconds=round(math.exp(random.uniform(math.log(low), math.log(high))), 3) if low else 0.0,
    )


def _count(random: Random, seconds: float) -> int:
    rate: float = 10 ** random.uniform(-2, -0.3)
    return min(math.ceil(rate * seconds), _MOST)


def _at(fault: KinesisFault | KafkaFault) -> float:
    return fault.at
