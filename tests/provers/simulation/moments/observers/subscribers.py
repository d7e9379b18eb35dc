"""Look at what each shard's subscriber waits for, gets and hands over."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from fanout.core.backoff import Retries
from fanout.core.events import Batch, End
from fanout.core.limits import MemoryLimit
from fanout.core.policy import Pace
from fanout.core.slot import Slot
from fanout.core.subscriber import Subscriber
from fanout.core.subscribers import Subscribers
from fanout.core.subscription import Subscription, Watchdog
from tests.provers.simulation.moments.moments import KinesisSometimes
from tests.provers.simulation.moments.observers.calls import after, around, before, timed, together
from tests.provers.simulation.moments.observers.streams import is_inside

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from fanout.core.events import Failure
    from fanout.core.policy import Retry
    from tests.provers.simulation.moments.observers.streams import StreamObservers

__all__ = ("SubscriberObservers",)

# One failure is no growth of waits yet.
_GROWN: Final = 2
# As long as a subscription of Kinesis may be silent, in seconds.
_SILENCE: Final = 35.0


@dataclass(slots=True, eq=False)
class _Seen:
    """The observations of one subscriber.

    Args:
        subscriber: The subscriber.
        granted: How many subscriptions it had been granted before the newest one.
        events: How many events the newest one has brought.
        idle: Whether the last of them was idle progress.
        slow: Whether nothing has come since it began to wait for a person.
    """

    subscriber: Subscriber
    granted: int = 0
    events: int = 0
    idle: bool = False
    slow: bool = False


@final
class SubscriberObservers:
    """Look at the subscribers of one run.

    Args:
        moments: Counts what is met.
        streams: What looks at their streams.
    """

    def __init__(self, moments: Counter[str], streams: StreamObservers) -> None:
        self._moments = moments
        self._streams = streams
        # By the subscriber, its retries, and its subscriptions.
        self._seen: dict[Subscriber | Retries | Subscription, _Seen] = {}

    def installed(self) -> AbstractContextManager[None]:
        """Look for as long as the block runs."""
        return together(
            before(Subscriber, "_subscription", self._subscribes),
            before(Subscriber, "_deliver", self._delivers),
            before(Subscriber, "_retry", self._retries),
            after(Subscription, "receive", self._receives),
            before(Slot, "fail", self._fails),
            before(Slot, "put", self._puts),
            before(Retries, "progressed", self._progresses),
            before(Retries, "wait", self._waits),
            around(Watchdog, "_strike", self._strikes),
            timed(MemoryLimit, "reserve", self._reserves),
        )

    def _subscribes(self, subscriber: Subscriber) -> None:
        seen = self._seen.setdefault(subscriber, _Seen(subscriber))
        self._seen[subscriber._retries] = seen
        seen.granted, seen.events = subscriber.subscriptions, 0
        if subscriber.subscriptions:
            inside = is_inside(subscriber.position)
            self._moments[KinesisSometimes.SUBSCRIBED_FULL] += subscriber.slot.occupied
            self._moments[KinesisSometimes.RESUBSCRIBED_INSIDE_AGGREGATE] += inside

    def _delivers(self, subscriber: Subscriber, subscription: Subscription) -> None:
        self._seen[subscription] = self._seen[subscriber]

    def _receives(self, event: Batch | End, subscription: Subscription) -> None:
        seen = self._seen[subscription]
        if isinstance(event, End) and not seen.events:
            again = seen.subscriber.subscriptions > 1
            first = (
                KinesisSometimes.END_AFTER_RESUBSCRIPTION if again else KinesisSometimes.END_FIRST
            )
            self._moments[first] += 1
        if subscription._watchdog._expiry is not None:
            self._moments[KinesisSometimes.ARRIVED_IN_LAST_TURN] += 1
        if seen.slow:
            self._moments[KinesisSometimes.PERSON_NOT_NEEDED] += 1
        for (_, verdict), times in seen.subscriber._retries._causes_here.items():
            self._moments[KinesisSometimes.LAST_ATTEMPT_SUCCEEDED] += verdict.limit == times + 1
        seen.events += 1
        seen.idle = isinstance(event, Batch) and not event.num_records
        seen.slow = False

    def _progresses(self, retries: Retries, *, moved: bool) -> None:
        if moved and retries.failures >= _GROWN:
            # The listing has retries of its own.
            seen = self._seen.get(retries)
            self._moments[KinesisSometimes.BACKOFF_RESET_BY_IDLE] += seen is not None and seen.idle

    def _retries(self, subscriber: Subscriber, _: Exception, verdict: Retry) -> None:
        seen = self._seen[subscriber]
        seen.slow |= verdict.pace is Pace.SLOW
        over_before = subscriber.subscriptions > seen.granted and not seen.events
        self._moments[KinesisSometimes.OVER_BEFORE_FIRST_EVENT] += over_before

    def _fails(self, slot: Slot, _: Failure) -> None:
        if slot.pill is not None:
            return
        subscribers = _subscribers_of(slot)
        beside = any(
            subscriber.slot.occupied and subscriber.slot is not slot
            for subscriber in subscribers.by_split.values()
        )
        self._moments[KinesisSometimes.PILL_BEHIND_EVENT] += slot.occupied
        self._moments[KinesisSometimes.PILL_WHILE_COLLECTING] += self._streams.collects(subscribers)
        self._moments[KinesisSometimes.FAILED_BESIDE_FULL_SLOT] += beside

    def _puts(self, slot: Slot, event: Batch | End, _: int = 0) -> None:
        if isinstance(event, End):
            self._streams.hands_over(_subscribers_of(slot), event)
        elif slot.occupied and not event.num_records:
            held = slot._event
            behind = isinstance(held, Batch) and held.num_records > 0
            self._moments[KinesisSometimes.IDLE_BEHIND_BATCH] += behind
        if event.gaps:
            self._moments[_gap_before(event)] += 1

    def _waits(self, retries: Retries, pace: Pace) -> None:
        jitter = retries._jitter
        longest = jitter._ceiling(retries.failures - 1) >= jitter._options.cap
        self._moments[KinesisSometimes.LONGEST_BACKOFF] += pace is Pace.JITTER and longest

    @contextmanager
    def _strikes(self, watchdog: Watchdog) -> Iterator[None]:
        ends = watchdog._ends
        yield
        anew = watchdog._seconds == _SILENCE and watchdog._ends != ends
        self._moments[KinesisSometimes.STRUCK_BLOCKED] += anew

    def _reserves(self, seconds: float) -> None:
        self._moments[KinesisSometimes.WAITED_FOR_MEMORY] += seconds > _SILENCE


def _gap_before(event: Batch | End) -> KinesisSometimes:
    match event:
        case End():
            return KinesisSometimes.GAP_BEFORE_END
        case Batch(num_records=0):
            return KinesisSometimes.GAP_ON_IDLE
        case Batch():
            return KinesisSometimes.GAP_WITH_RECORDS


def _subscribers_of(slot: Slot) -> Subscribers:
    # A slot notifies its stream when something is ready in it, so it knows it.
    subscribers = slot._on_ready.__self__  # type: ignore[attr-defined]
    assert isinstance(subscribers, Subscribers)
    return subscribers
