"""Streams and queries whose statistics a test gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanout.core.positions import Cursor
from fanout.core.statistics import Origin, SplitState, SplitStatistics, Statistics

if TYPE_CHECKING:
    from collections.abc import Callable

ORDERS = Origin("kafka", "orders", "etl")


class Given:
    """A stream that says what it is given."""

    def __init__(self, statistics: Any) -> None:
        self.given: Any = statistics
        self.asked = 0

    def statistics(self) -> Any:
        self.asked += 1
        return self.given


class GivenQuery(Given):
    """A query that says what it is given."""

    def __init__(self, statistics: Statistics, name: str | None = None) -> None:
        super().__init__(statistics)
        self.name = name
        self.is_active = True
        self.listeners: list[Callable[[Any], None]] = []

    def on_batch(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)


class GivenBatch:
    """A batch that is over."""

    def __init__(self, seconds: float, error: Exception | None = None) -> None:
        self.seconds = {"handler": seconds, "ledger": 0.1}
        self.error = error


def split(
    lag: float | None,
    *,
    behind: int | None = None,
    state: SplitState = SplitState.LIVE,
    newest: int | None = None,
    resubscriptions: int = 0,
    waiting: float | None = None,
) -> SplitStatistics:
    return SplitStatistics(
        state,
        Cursor(1),
        0,
        0,
        0,
        resubscriptions,
        None,
        lag,
        newest,
        behind=behind,
        waiting=waiting,
    )


def statistics(splits: dict[str, SplitStatistics] | None = None, **others: Any) -> Statistics:
    return Statistics(splits or {}, 0, **{"origin": ORDERS, **others})
