"""Look at what a stream hands out, which shards it knows, and how it is closed."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, final

from fanout.core.cancellation import TaskScope
from fanout.core.events import End
from fanout.core.fan_out import FanOut
from fanout.core.lineage import Lineage
from fanout.core.opening import Supervisor
from fanout.core.positions import WHOLE_RECORD, Cursor
from fanout.core.statistics import SplitState
from tests.provers.simulation.moments.moments import KinesisSometimes
from tests.provers.simulation.moments.observers.calls import after, around, before, together
from tests.provers.simulation.moments.observers.connections import run_of

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from fanout.core.drain import Drained
    from fanout.core.events import Split
    from fanout.core.positions import Position
    from fanout.core.subscriber import Subscriber
    from fanout.core.subscribers import Subscribers
    from tests.provers.simulation.kinesis.service.stream_log import SourceLog
    from tests.provers.simulation.moments.observers.connections import ConnectionObservers

__all__ = ("StreamObservers", "is_inside")

# A job that leaves an end alone for so long is slow, and not only late.
_LONG: Final = 30.0


@final
class StreamObservers:
    """Look at the streams of one run.

    Args:
        moments: Counts what is met.
        log: What the stream holds.
        connections: What looks at the connections of the streams.
    """

    def __init__(
        self, moments: Counter[str], log: SourceLog, connections: ConnectionObservers
    ) -> None:
        self._moments = moments
        self._log = log
        self._connections = connections
        self._open: list[Subscribers] = []
        self._collecting: dict[Subscribers, None] = {}
        self._gave_back: dict[FanOut, None] = {}
        self._ended_at: dict[tuple[Subscribers, str], float] = {}

    def installed(self) -> AbstractContextManager[None]:
        """Look for as long as the block runs."""
        return together(
            after(Supervisor, "__init__", self._opens),
            before(Lineage, "_learn", self._learns),
            before(Supervisor, "_finish", self._finishes),
            before(TaskScope, "cancel", self._stops),
            around(FanOut, "_fill_until", self._collects),
            around(FanOut, "drain", self._drains),
            after(FanOut, "drain", self._has_drained),
            after(FanOut, "__anext__", self._has_read),
        )

    @property
    def subscribers(self) -> list[Subscriber]:
        """The subscribers of all streams that are open, without those that have come to the end."""
        return [
            subscriber
            for subscribers in self._open
            for subscriber in subscribers.by_split.values()
            if subscriber.state is not SplitState.ENDED
        ]

    def collects(self, subscribers: Subscribers) -> bool:
        """Say whether a drain of a stream has its first record, and goes on collecting."""
        return subscribers in self._collecting

    def hands_over(self, subscribers: Subscribers, end: End) -> None:
        """Record when the end of a shard is handed over."""
        self._ended_at[subscribers, end.split.id] = _now()

    def _opens(self, _: None, supervisor: Supervisor, *__: object, **___: object) -> None:
        self._open.append(supervisor._subscribers)
        unread = [state for state in supervisor._progress if not state.ended]
        inside = any(is_inside(state.delivered) for state in unread)
        among_children = any(
            state.split.parents and isinstance(state.delivered, Cursor) for state in unread
        )
        self._moments[KinesisSometimes.RESUMED_INSIDE_AGGREGATE] += inside
        self._moments[KinesisSometimes.RESTARTED_AMONG_CHILDREN] += among_children

    def _stops(self, tasks: TaskScope) -> None:
        """Look at a stream that is closed by its user, and has not failed."""
        subscribers = next((one for one in self._open if one._tasks is tasks), None)
        if subscribers is None or not subscribers._closed:
            return
        self._open.remove(subscribers)
        connection = subscribers._connection
        if subscribers.failure is not None or run_of(connection).dead:
            return
        states = {subscriber.state for subscriber in subscribers.by_split.values()}
        full = any(subscriber.slot.occupied for subscriber in subscribers.by_split.values())
        waiting = bool(subscribers.memory_limit._waiting)
        self._moments[KinesisSometimes.CLOSED_BACKING_OFF] += SplitState.BACKING_OFF in states
        self._moments[KinesisSometimes.CLOSED_SUBSCRIBING] += SplitState.SUBSCRIBING in states
        self._moments[KinesisSometimes.CLOSED_FULL] += full
        self._moments[KinesisSometimes.CLOSED_WAITING_FOR_MEMORY] += waiting
        self._moments[KinesisSometimes.CLOSED_LOOKING] += self._connections.looks(connection)

    def _learns(self, lineage: Lineage, listed: Sequence[Split]) -> None:
        known, finished = lineage._progress, lineage._finished
        early = any(
            split.id not in known and any(p in known and p not in finished for p in split.parents)
            for split in listed
        )
        self._moments[KinesisSometimes.CHILD_LISTED_EARLY] += early

    def _finishes(self, supervisor: Supervisor, end: End) -> None:
        self._connections.hurries(supervisor._connection)
        shard_id = end.split.id
        waited = _now() - self._ended_at.pop((supervisor._subscribers, shard_id))
        known = {state.split.id for state in supervisor._progress} | supervisor._lineage._listed
        parents = {p for child in end.children for p in child.parents} - {shard_id}
        others = [supervisor._subscribers.by_split.get(parent) for parent in sorted(parents)]
        self._moments[KinesisSometimes.END_WAITED] += waited >= _LONG
        self._moments[KinesisSometimes.EMPTY_SHARD_ENDED] += not self._log.shards[shard_id].records
        self._moments[KinesisSometimes.CHILD_KNOWN_FROM_END] += any(
            child.id not in known for child in end.children
        )
        self._moments[KinesisSometimes.BOTH_PARENTS_WAIT] += any(
            other is not None and isinstance(other.slot._event, End) for other in others
        )

    @contextmanager
    def _collects(self, stream: FanOut, *_: object) -> Iterator[None]:
        self._collecting[stream._subscribers] = None
        try:
            yield
        finally:
            del self._collecting[stream._subscribers]

    @contextmanager
    def _drains(self, stream: FanOut, **_: object) -> Iterator[None]:
        returned = len(stream._subscribers._returned)
        try:
            yield
        except BaseException:
            if len(stream._subscribers._returned) > returned:
                self._gave_back[stream] = None
            raise

    def _has_drained(self, drained: Drained, stream: FanOut, **_: object) -> None:
        self._has_read(drained, stream)
        inside = any(is_inside(batch.range.until) for batch in drained.batches)
        self._moments[KinesisSometimes.CUT_INSIDE_AGGREGATE] += inside

    def _has_read(self, _: object, stream: FanOut) -> None:
        if stream.failure is not None:
            self._moments[KinesisSometimes.HANDED_OUT_AFTER_FAILURE] += 1
        if stream in self._gave_back:
            del self._gave_back[stream]
            self._moments[KinesisSometimes.CANCELLED_DRAIN_GAVE_BACK] += 1


def is_inside(position: Position) -> bool:
    """Say whether a position is inside an aggregated record."""
    return isinstance(position, Cursor) and position.sub != WHOLE_RECORD


def _now() -> float:
    return asyncio.get_running_loop().time()
