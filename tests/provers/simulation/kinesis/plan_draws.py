"""Draw a plan of Kinesis from its seed: the stream, the job, and the faults.

Faults are drawn one by one, of a random subset of the kinds, and sometimes together: a combination
strikes within minutes, which is rare by chance, and where defects hide.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, final

from tests.provers.simulation.kinesis.faults import (
    KINESIS_FAULTS,
    KinesisFault,
    KinesisFaultKind,
    KinesisFaultSite,
)
from tests.provers.simulation.kinesis.plan import KinesisPlan
from tests.provers.simulation.kinesis.service.stream_log import shard_id_of
from tests.provers.simulation.randomness import happens, stream_of
from tests.provers.simulation.service_clock import EPOCH_MILLIS

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

__all__ = ("draw_fatal_kind", "draw_faults", "draw_kinesis_plan")

# The shares of plans that poll, that give a consumer by its ARN, and in which a shard stays broken.
_POLLING = 0.2
_BY_ARN = 0.1
_BROKEN = 0.1


# What a reader goes on asking after; damage ends the stream instead.
_FOR_EVER: Final = (
    KinesisFaultKind.REFUSED,
    KinesisFaultKind.HANGS,
    KinesisFaultKind.UNREACHABLE,
    KinesisFaultKind.STALL,
    KinesisFaultKind.RESET,
    KinesisFaultKind.ENDED_EARLY,
    KinesisFaultKind.RAISED,
)
_MOST: Final = 150
_OF_A_SHARD: Final = {KinesisFaultSite.SUBSCRIBE, KinesisFaultSite.EVENT, KinesisFaultSite.SERVICE}
# Each makes half a dozen shards.
_MOST_STORMS: Final = 1
# One rate for all would let these strike seldom: there are few calls that they can strike.
_EXTRA: Final = {
    KinesisFaultKind.RENEWAL_FAILS: KinesisFaultKind.ROTATED,
    KinesisFaultKind.RENEWAL_HANGS: KinesisFaultKind.ROTATED,
}
# As long as a subscription of Kinesis may be silent, in seconds.
_SILENCE: Final = 35.0
# Less than the resolution of the clock of a loop, in seconds.
_IN_THE_SAME_TURN: Final = 5e-10


def draw_kinesis_plan(seed: int) -> KinesisPlan:
    """Draw a plan: small ones mostly, with some kinds of faults and not with others.

    Leaving kinds out finds more than a little of everything: swarm testing, by Groce, Zhang, Eide,
    Chen and Regehr, ISSTA 2012.

    Args:
        seed: Any number.
    """
    random, manner = stream_of(seed, "plan"), stream_of(seed, "manner")
    mode: Literal["efo", "polling"] = "polling" if happens(random, _POLLING) else "efo"
    if mode == "efo":
        shards = random.choices((1, 2, 4, 16), (50, 35, 14, 1))[0]
        seconds = random.choices((300.0, 900.0, 3600.0), (58, 40, 2))[0]
    else:  # a shard is polled every second at least, so there is more to do
        shards = random.choices((1, 2, 4), (60, 35, 5))[0]
        seconds = random.choices((20.0, 60.0, 300.0), (50, 47, 3))[0]
    plan = KinesisPlan(
        seed=seed,
        schedule=random.choices(("fifo", "shuffled", "priorities"), (20, 50, 30))[0],
        mode=mode,
        start=random.choices(("TRIM_HORIZON", "LATEST", "AT_TIMESTAMP"), (80, 10, 10))[0],
        shards=shards,
        records=random.choice((5, 15, 40)),
        reshards=random.choice((0, 0, 0, 0, 1, 1, 2, 5)),
        large=happens(random, 0.02),  # they take long
        seconds=seconds,
        heartbeat=random.choices((5.0, 15.0, 30.0), (10, 30, 60))[0],
        reading=manner.choice(("iterate", "drain", "mixed")),
        checkpoint_every=random.choice((1, 1, 3, 10)),
        broken=shard_id_of(random.randrange(shards)) if happens(random, _BROKEN) else None,
        consumer="arn" if happens(random, _BY_ARN) else "name",
        on_bad_aggregate=random.choice(("fail", "gap")),
        on_bad_frame=random.choice(("fail", "gap")),
        faults=(),
        acknowledging=manner.choice(("each", "twice", "some", "all")),
        storing=manner.choices(("positions", "drained", "delivered"), (60, 20, 20))[0],
        deregister=manner.choices(("never", "on_close"), (80, 20))[0],
        listing_every=manner.choice((10.0, 30.0, 60.0)),
        tight=happens(manner, 0.3),
        broken_by=manner.choice(
            [kind for kind in _FOR_EVER if KINESIS_FAULTS[kind].mode in {None, mode}]
        ),
    )
    fatal = draw_fatal_kind(random, mode)
    if fatal is not None and (field_of := KINESIS_FAULTS[fatal].fatal_with) is not None:
        options: dict[str, Any] = dict([field_of])
        plan = replace(plan, **options)
    faults = draw_faults(stream_of(seed, "faults"), plan, fatal)
    together = stream_of(seed, "together")
    if happens(together, 0.5):
        faults += draw_combination(together, plan)
    faults.sort(key=lambda fault: fault.at)
    return replace(plan, faults=tuple(faults))


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


def draw_combination(random: Random, plan: KinesisPlan) -> list[KinesisFault]:
    """Draw faults that strike one after the other within minutes.

    Args:
        random: Where chance comes from.
        plan: The plan that they become a part of.
    """
    shard = shard_id_of(random.randrange(plan.shards + plan.reshards))
    draw = _Draw(random, plan, random.uniform(0, plan.seconds), random.choice((None, shard)))
    if plan.tight and happens(random, 0.5):
        return _crowded(draw)
    (conjunction,) = random.choices([*_CONJUNCTIONS], [*_CONJUNCTIONS.values()])
    return conjunction(draw)


@final
@dataclass(frozen=True, slots=True)
class _Draw:
    """Draw the faults of one conjunction.

    Args:
        random: Where chance comes from.
        plan: The plan.
        at: When it begins.
        shard: Which shard it strikes; None for any.
    """

    random: Random
    plan: KinesisPlan
    at: float
    shard: str | None

    def of_stream(
        self,
        kind: KinesisFaultKind,
        within: float = 0.0,
        seconds: float = 0.0,
        lasts: float = 0.0,
        code: str = "",
    ) -> KinesisFault:
        """Let something happen to the shard, at most so many seconds later."""
        at = round(self.at + self.random.uniform(0, within), 3)
        return KinesisFault(
            kind=kind, at=at, shard=self.shard, seconds=seconds, lasts=lasts, code=code
        )

    def of_job(
        self, kind: KinesisFaultKind, low: float, high: float, within: float = 0.0
    ) -> KinesisFault:
        """Let something happen to the job that takes between so many seconds and so many."""
        at = round(self.at + self.random.uniform(0, within), 3)
        return KinesisFault(kind=kind, at=at, seconds=round(self.random.uniform(low, high), 3))


def _failing_unread(draw: _Draw) -> list[KinesisFault]:
    """A shard fails for good, while the job may be slow."""
    # The second event behind the one that the job has: the first is in the slot.
    damaged = draw.of_stream(KinesisFaultKind.DAMAGED, within=2 * draw.plan.heartbeat)
    slow = [draw.of_job(KinesisFaultKind.SLOW, 60, 600)] * draw.random.randrange(2)
    return [*slow, damaged, damaged, damaged]


def _gone_unread(draw: _Draw) -> list[KinesisFault]:
    """The stream is deleted while the job is slow."""
    gone = draw.of_stream(KinesisFaultKind.STREAM_GONE, within=2 * draw.plan.heartbeat)
    return [draw.of_job(KinesisFaultKind.SLOW, 60, 600), gone]


def _crowded(draw: _Draw) -> list[KinesisFault]:
    """A job is slow at its very first records, and may be closed while it is."""
    first = _Draw(draw.random, draw.plan, 0.0, None)
    close = [first.of_job(KinesisFaultKind.CLOSE, 0.1, 60, within=300)] * draw.random.randrange(2)
    return [first.of_job(KinesisFaultKind.SLOW, 120, 600), *close]


def _ended_by_halves(draw: _Draw) -> list[KinesisFault]:
    """The end of a shard comes without its children, twice."""
    closed = [shard for shard in draw.plan.log().shards.values() if shard.closed is not None]
    if not closed:
        return _crowded(draw)
    shard = draw.random.choice(closed)
    assert shard.closed is not None
    at = max(0.0, (shard.closed - EPOCH_MILLIS) / 1000)
    end = _Draw(draw.random, draw.plan, at, shard.shard_id).of_stream(KinesisFaultKind.HALF_AN_END)
    return [end, end]


def _closed_unread(draw: _Draw) -> list[KinesisFault]:
    """A stream is closed, or taken over, while the job is slow."""
    return [
        draw.of_job(KinesisFaultKind.SLOW, 120, 600),
        draw.of_stream(KinesisFaultKind.TAKEN_OVER, within=60),
        draw.of_job(KinesisFaultKind.CLOSE, 0.1, 60, within=300),
    ]


def _killed_at_work(draw: _Draw) -> list[KinesisFault]:
    """A process dies while it works with records, or stores positions."""
    crash = draw.of_job(KinesisFaultKind.CRASH, 0.1, 60, within=120)
    works = draw.random.choice((KinesisFaultKind.SLOW, KinesisFaultKind.STORE_SLOW))
    return [draw.of_job(works, 60, 120), crash]


def _expired_unread(draw: _Draw) -> list[KinesisFault]:
    """Records expire while their shard refuses subscriptions."""
    lasts = draw.random.uniform(60, 600)
    return [
        draw.of_stream(KinesisFaultKind.RESET),
        draw.of_stream(
            KinesisFaultKind.REFUSED, lasts=round(lasts, 3), code="InternalFailureException"
        ),
        draw.of_stream(KinesisFaultKind.TRIMMED, within=lasts),
    ]


def _refused_together(draw: _Draw) -> list[KinesisFault]:
    """All shards are subscribed to again at once, and refused for their credentials."""
    lasts = round(draw.random.uniform(2, 60), 3)
    at_all = _Draw(draw.random, draw.plan, draw.at, None)
    return [
        at_all.of_stream(KinesisFaultKind.TAKEN_OVER),
        at_all.of_stream(KinesisFaultKind.REFUSED, lasts=lasts, code="ExpiredTokenException"),
    ]


def _just_in_time(draw: _Draw) -> list[KinesisFault]:
    """A heartbeat is late, and comes at the very end of the silence that is allowed."""
    # A real loop looks at its sockets before its timers: so does this one, at the earlier timer.
    seconds = _SILENCE - draw.plan.heartbeat - _IN_THE_SAME_TURN
    return [draw.of_stream(KinesisFaultKind.STALL, within=300, seconds=seconds) for _ in range(3)]


# With how likely each is: what needs the most luck besides is tried the most.
_CONJUNCTIONS: Final[dict[Callable[[_Draw], list[KinesisFault]], int]] = {
    _failing_unread: 2,
    _gone_unread: 1,
    _closed_unread: 1,
    _crowded: 1,
    _ended_by_halves: 4,
    _killed_at_work: 1,
    _expired_unread: 1,
    _refused_together: 1,
    _just_in_time: 1,
}
