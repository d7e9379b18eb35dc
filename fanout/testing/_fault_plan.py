"""The faults still to come, and a count of what happened: read by tests, written by requests."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass

from fanout.testing.faults import (
    Fault,
    IgnoreSubscribe,
    RefuseSubscribe,
    StreamFault,
    SubscribeFault,
)

__all__ = ("FaultPlan",)


@dataclass(slots=True)
class _Pending:
    fault: Fault
    remaining: int
    calls: int = 0


class FaultPlan:
    """Hold the injected faults, and hand each out as often as it asks for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: list[_Pending] = []
        self._fired: Counter[str] = Counter()

    def add(self, fault: Fault) -> None:
        """Plan a fault."""
        with self._lock:
            self._pending.append(_Pending(fault, fault.times))

    def at_subscribe(self, shard: str) -> SubscribeFault | None:
        """Take the fault that strikes this subscribe call, if there is one."""
        with self._lock:
            due: SubscribeFault | None = None
            for pending in tuple(self._pending):
                fault = pending.fault
                if not isinstance(fault, RefuseSubscribe | IgnoreSubscribe):
                    continue
                if fault.shard not in {None, shard}:
                    continue
                pending.calls += 1
                if due is None and pending.calls >= fault.call:
                    self._use(pending)
                    due = fault
            return due

    def at_event(self, shard: str, number: int) -> StreamFault | None:
        """Take the fault that strikes the n-th event of a subscription, if there is one."""
        with self._lock:
            for pending in self._pending:
                fault = pending.fault
                if isinstance(fault, RefuseSubscribe | IgnoreSubscribe):
                    continue
                if fault.shard in {None, shard} and fault.event == number:
                    self._use(pending)
                    return fault
            return None

    def fired(self) -> dict[str, int]:
        """Return how many faults struck, by kind."""
        with self._lock:
            return dict(self._fired)

    def _use(self, pending: _Pending) -> None:
        self._fired[type(pending.fault).__name__] += 1
        pending.remaining -= 1
        if not pending.remaining:
            self._pending.remove(pending)
