"""State that all requests to one embedded Kinesis share: rules, planned faults, counts, clock."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Generic, TypeVar

from fanout.testing.faults import CallFault, Fault, PollFault, PutFault, RevokeKey, SubscribeFault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.testing.faults import StreamFault
    from fanout.testing.kinesis.rules import KinesisRules

_F = TypeVar("_F", bound=Fault)
_C = TypeVar("_C", bound=SubscribeFault | PollFault | CallFault | PutFault)


class ServerState:
    """The rules of one server, the faults planned for it, and counts of its calls; thread-safe."""

    def __init__(self, rules: KinesisRules) -> None:
        self.rules = rules
        self.faults = FaultPlan()
        # Set before live subscriptions are told to end: one that begins later sees it by itself.
        self.closing = False
        self._lock = threading.Lock()
        self._subscribe_calls: Counter[str] = Counter()
        self._poll_calls: Counter[str] = Counter()
        self._violations: Counter[str] = Counter()

    def count_subscribe(self, shard_id: str) -> None:
        """Count a subscribe call."""
        with self._lock:
            self._subscribe_calls[shard_id] += 1

    def count_poll(self, shard_id: str) -> None:
        """Count a GetRecords call."""
        with self._lock:
            self._poll_calls[shard_id] += 1

    def count_violation(self, violation: str) -> None:
        """Count a broken rule."""
        with self._lock:
            self._violations[violation] += 1

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the calls by shard id and the violations by kind, as in KinesisStatistics."""
        with self._lock:
            return {
                "subscribe_calls": dict(self._subscribe_calls),
                "poll_calls": dict(self._poll_calls),
                "violations": dict(self._violations),
            }


@dataclass(slots=True)
class _Pending(Generic[_F]):
    fault: _F
    strikes_left: int
    calls_seen: int = 0


class FaultPlan:
    """Hold the injected faults, and hand each out as often as it asks for; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at_calls: list[_Pending[CallFault]] = []
        self._at_subscribes: list[_Pending[SubscribeFault]] = []
        self._at_polls: list[_Pending[PollFault]] = []
        self._at_puts: list[_Pending[PutFault]] = []
        self._at_events: list[_Pending[StreamFault]] = []
        self._revoked: dict[str, RevokeKey] = {}
        self._struck: Counter[str] = Counter()

    def add(self, fault: Fault) -> None:
        """Plan a fault."""
        with self._lock:
            if isinstance(fault, RevokeKey):
                self._revoked[fault.access_key] = fault
            elif isinstance(fault, CallFault):
                self._at_calls.append(_Pending(fault, fault.times))
            elif isinstance(fault, SubscribeFault):
                self._at_subscribes.append(_Pending(fault, fault.times))
            elif isinstance(fault, PollFault):
                self._at_polls.append(_Pending(fault, fault.times))
            elif isinstance(fault, PutFault):
                self._at_puts.append(_Pending(fault, fault.times))
            else:
                self._at_events.append(_Pending(fault, fault.times))

    def at_key(self, access_key: str) -> RevokeKey | None:
        """Return the fault that strikes the calls that are signed with a key, if there is one."""
        with self._lock:
            fault = self._revoked.get(access_key)
            if fault is not None:
                self._struck[type(fault).__name__] += 1
            return fault

    def at_call(self, action: str) -> CallFault | None:
        """Take the fault that strikes this call, if there is one."""
        with self._lock:
            matching = [p for p in self._at_calls if p.fault.action == action]
            return self._strike(self._at_calls, _due(matching))

    def at_subscribe(self, shard_id: str) -> SubscribeFault | None:
        """Take the fault that strikes this subscribe call, if there is one."""
        with self._lock:
            matching = [p for p in self._at_subscribes if p.fault.shard in {None, shard_id}]
            return self._strike(self._at_subscribes, _due(matching))

    def at_poll(self, shard_id: str) -> PollFault | None:
        """Take the fault that strikes this GetRecords call, if there is one."""
        with self._lock:
            matching = [p for p in self._at_polls if p.fault.shard in {None, shard_id}]
            return self._strike(self._at_polls, _due(matching))

    def at_put(self) -> PutFault | None:
        """Take the fault that strikes this put, if there is one."""
        with self._lock:
            return self._strike(self._at_puts, _due(self._at_puts))

    def at_event(self, shard_id: str, number: int) -> StreamFault | None:
        """Take the fault that strikes the n-th event of a subscription, if there is one."""
        with self._lock:
            due = (
                p
                for p in self._at_events
                if p.fault.shard in {None, shard_id} and p.fault.event in {None, number}
            )
            return self._strike(self._at_events, next(due, None))

    def struck(self) -> dict[str, int]:
        """Return how many faults struck, by kind."""
        with self._lock:
            return dict(self._struck)

    def _strike(self, plan: list[_Pending[_F]], due: _Pending[_F] | None) -> _F | None:
        if due is None:
            return None
        self._struck[type(due.fault).__name__] += 1
        due.strikes_left -= 1
        if not due.strikes_left:
            plan.remove(due)
        return due.fault


def _due(matching: Sequence[_Pending[_C]]) -> _Pending[_C] | None:
    """Count a call for the faults that are about it; return the first whose turn it is."""
    for pending in matching:
        pending.calls_seen += 1
    return next((p for p in matching if p.calls_seen >= p.fault.call), None)


def now_in_millis() -> int:
    """Return the wall clock, which arrival times and AT_TIMESTAMP are about."""
    return int(datetime.now(UTC).timestamp() * 1000)
