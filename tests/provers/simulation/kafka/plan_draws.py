"""Draw a plan of Kafka from its seed: the cluster, the job, and the faults of both."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Literal

from tests.provers.simulation.kafka.faults import (
    KAFKA_FAULTS,
    KafkaFault,
    KafkaFaultKind,
    KafkaFaultSite,
)
from tests.provers.simulation.kafka.plan import KafkaPlan
from tests.provers.simulation.kinesis.faults import (
    KINESIS_FAULTS,
    KinesisFault,
    KinesisFaultKind,
    KinesisFaultSite,
)
from tests.provers.simulation.randomness import happens, stream_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from random import Random

__all__ = ("JOB_KINDS", "draw_cluster_faults", "draw_job_faults", "draw_kafka_plan")

# The share of plans in which a partition stays broken.
_BROKEN = 0.1
# The share in which the job reads a shuffle.
_SHUFFLED = 0.3
# The share of these in which a producer may be silent for too long.
_TIMED = 0.4
# The share in which the client has a quota.
_THROTTLED = 0.1
# The share in which brokers answer valid and unusual things, freeze, are in the rack of the client,
# or soon forget the offsets of a group.
_UNUSUAL = 0.08
_FROZEN = 0.08
_IN_RACK = 0.08
_FORGETFUL = 0.04
# Long enough for offsets to be forgotten.
_LONG = 240.0
_MOST: Final = 60
_OF_A_PARTITION: Final = {KafkaFaultSite.LOG, KafkaFaultSite.LEADERS, KafkaFaultSite.ANSWER}
# Drawn apart from the others, so that a seed keeps the plan that it has had.
_APART: Final = {
    KafkaFaultKind.FETCH_THROTTLED,
    KafkaFaultKind.FETCH_THROTTLED_PARTLY,
    KafkaFaultKind.FETCH_EMPTY,
    KafkaFaultKind.BROKER_FREEZES,
    KafkaFaultKind.OFFSETS_FORGOTTEN,
}
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
"""The faults of the job itself, or of the store of its positions."""


def draw_kafka_plan(seed: int) -> KafkaPlan:
    """Draw a plan: small ones mostly, with some kinds of faults and not with others.

    Args:
        seed: Any number.
    """
    random = stream_of(seed, "kafka plan")
    partitions = random.choices((1, 2, 3, 6), (40, 35, 20, 5))[0]
    another = happens(random, 0.3)
    names = [*(f"t-{number}" for number in range(partitions)), *(["u-0"] if another else [])]
    on_data_loss: Literal["fail", "earliest"] = random.choice(("fail", "earliest"))
    plan = KafkaPlan(
        seed=seed,
        schedule=random.choices(("fifo", "shuffled", "priorities"), (20, 50, 30))[0],
        brokers=random.choice((1, 2, 3)),
        partitions=partitions,
        another=another,
        batches=random.choice((3, 10, 25)),
        transactions=happens(random, 0.7),
        large=happens(random, 0.03),
        seconds=random.choices((20.0, 60.0, 300.0), (50, 40, 10))[0],
        selection=random.choice(("topics", "pattern", "partitions")),
        start=random.choices(("earliest", "latest", "timestamp"), (80, 10, 10))[0],
        isolation_level=random.choices(("read_committed", "read_uncommitted"), (85, 15))[0],
        on_data_loss=on_data_loss,
        group=happens(random, 0.5),
        max_wait=random.choices((0.5, 5.0, 20.0), (20, 40, 40))[0],
        fetch_bytes=random.choice((1 << 20, 1 << 20, 2000, 200)),
        listing_every=random.choice((5.0, 30.0, 60.0, None)),
        reading=random.choice(("iterate", "drain", "mixed")),
        checkpoint_every=random.choice((1, 1, 3, 10)),
        acknowledging=random.choice(("each", "twice", "some", "all")),
        storing=random.choices(("positions", "drained", "delivered"), (60, 20, 20))[0],
        tight=happens(random, 0.2),
        broken=random.choice(names) if happens(random, _BROKEN) else None,
        faults=(),
        cluster_faults=(),
    )
    plan = _with_shuffle(plan, stream_of(seed, "kafka shuffle"))
    plan = _with_rack(plan, stream_of(seed, "kafka rack"))
    faults = stream_of(seed, "kafka faults")
    lossy = on_data_loss == "earliest" or happens(faults, 0.1)
    # A shuffle has its number of partitions for ever.
    fixed = plan.listing_every is None or plan.producers
    unlisted = {KafkaFaultKind.PARTITIONS_ADDED} if fixed else set()
    cluster_faults = draw_cluster_faults(faults, names, plan.seconds, lossy=lossy, but=unlisted)
    if happens(faults, 0.03):
        fatal = [kind for kind in KafkaFaultKind if KAFKA_FAULTS[kind].fatal]
        kind = faults.choice(fatal)
        cluster_faults.append(draw_cluster_fault(faults, kind, names, plan.seconds))
    cluster_faults += _draw_throttles(stream_of(seed, "kafka quotas"), plan.seconds)
    cluster_faults += _draw_unusual(stream_of(seed, "kafka unusual"), plan)
    cluster_faults += _draw_deaths_of_replica(stream_of(seed, "kafka replica"), plan)
    forgetful = stream_of(seed, "kafka forgetful")
    if plan.group and happens(forgetful, 2 * _FORGETFUL):
        plan = replace(plan, seconds=max(plan.seconds, _LONG))
        kind = KafkaFaultKind.OFFSETS_FORGOTTEN
        cluster_faults.append(replace(draw_cluster_fault(forgetful, kind, (), 1.0), at=0.0))
    if plan.producers:
        cluster_faults = [replace(f, amount=_whole(f, partitions)) for f in cluster_faults]
    return replace(
        plan,
        faults=tuple(draw_job_faults(stream_of(seed, "kafka job faults"), plan.seconds)),
        cluster_faults=tuple(sorted(cluster_faults, key=attrgetter("at"))),
    )


def _with_shuffle(plan: KafkaPlan, random: Random) -> KafkaPlan:
    """Return a plan whose job reads a shuffle, or the plan as it is."""
    if not happens(random, _SHUFFLED):
        return plan
    return replace(
        plan,
        isolation_level="read_committed",
        producers=random.choice((1, 2, 2, 4)),
        generations=random.choice((1, 2, 4)),
        producer_timeout=random.choice((10.0, 30.0)) if happens(random, _TIMED) else None,
        on_silent_producer=random.choices(("leave_out", "fail"), (80, 20))[0],
    )


def _draw_throttles(random: Random, seconds: float) -> list[KafkaFault]:
    """Draw when a client exceeds its quota: in few plans, and there often."""
    if not happens(random, _THROTTLED):
        return []
    kind = KafkaFaultKind.FETCH_THROTTLED
    times = random.choice((1, 3, 10))
    return [draw_cluster_fault(random, kind, (), seconds) for _ in range(times)]


def _with_rack(plan: KafkaPlan, random: Random) -> KafkaPlan:
    """Return a plan whose client has a rack, and a broker there; or the plan as it is."""
    if not happens(random, _IN_RACK):
        return plan
    brokers = max(2, plan.brokers)
    return replace(plan, brokers=brokers, rack=random.randint(1, brokers))


def _draw_deaths_of_replica(random: Random, plan: KafkaPlan) -> list[KafkaFault]:
    """Draw when the broker in the client's rack dies."""
    if not plan.rack:
        return []
    kind = KafkaFaultKind.BROKER_DIES
    drawn = [draw_cluster_fault(random, kind, (), plan.seconds) for _ in range(2)]
    return [replace(fault, amount=plan.rack - 1) for fault in drawn]


def _draw_unusual(random: Random, plan: KafkaPlan) -> list[KafkaFault]:
    """Draw answers that are valid and unusual, and brokers that freeze: in few plans."""
    kinds: list[KafkaFaultKind] = []
    if happens(random, _UNUSUAL):
        unusual = (KafkaFaultKind.FETCH_EMPTY, KafkaFaultKind.FETCH_THROTTLED_PARTLY)
        kinds += random.choices(unusual, k=3)
    if plan.brokers > 1 and happens(random, _FROZEN):
        kinds += [KafkaFaultKind.BROKER_FREEZES] * random.choice((1, 2))
    return [draw_cluster_fault(random, kind, (), plan.seconds) for kind in kinds]


def _whole(fault: KafkaFault, partitions: int) -> int:
    """Return the amount of a fault with which a topic has all of its partitions again."""
    return partitions if fault.kind is KafkaFaultKind.RECREATED else fault.amount


def draw_job_faults(random: Random, seconds: float) -> list[KinesisFault]:
    """Draw what goes wrong with the job, of a random subset of the kinds, at a random rate.

    Args:
        random: Where chance comes from.
        seconds: The virtual seconds in which faults strike.
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
        seconds: The virtual seconds in which faults strike.
        lossy: Whether records may be lost.
        but: What may not be.
    """
    kinds = [
        kind
        for kind, traits in KAFKA_FAULTS.items()
        if kind not in _APART
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
