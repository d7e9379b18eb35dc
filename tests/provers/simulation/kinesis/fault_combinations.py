"""Faults that strike together: what is rare by chance, and where defects hide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from tests.provers.simulation.chance import happens
from tests.provers.simulation.kinesis.faults import KinesisFault, KinesisFaultKind
from tests.provers.simulation.service_clock import EPOCH_MILLIS, shard_id_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from tests.provers.simulation.kinesis.plan import KinesisPlan

__all__ = ("draw_combination",)

# As long as a subscription of Kinesis may be silent, in seconds.
_SILENCE: Final = 35.0
# Less than the resolution of the clock of a loop, in seconds.
_IN_THE_SAME_TURN: Final = 5e-10


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
    """Records expire while nobody can subscribe to their shard."""
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
