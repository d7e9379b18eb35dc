"""What all requests to one embedded Kinesis share: its rules, its faults, its counts, its clock."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fanout.testing.kinesis.fault_plan import FaultPlan

if TYPE_CHECKING:
    from fanout.testing.kinesis.rules import KinesisRules

__all__ = ("Service", "now_in_millis")


class Service:
    """Belong to one server; safe for threads."""

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


def now_in_millis() -> int:
    """Return the wall clock, which arrival times and AT_TIMESTAMP are about."""
    return int(datetime.now(UTC).timestamp() * 1000)
