"""Check that the simulator finds a library that breaks its promises to its process."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fanout.core import fan_out
from fanout.core.opening import Supervisor
from fanout.core.slot import Slot
from fanout.core.subscriber import Subscriber
from fanout.core.subscribers import Subscribers
from fanout.core.subscription import Watchdog
from fanout.errors import ServiceError
from tests.provers.simulation.errors import SimulationError
from tests.provers.simulation.kinesis.faults import KinesisFault, KinesisFaultKind
from tests.provers.simulation.kinesis.plan_draws import draw_kinesis_plan
from tests.provers.simulation.run import run_plan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    import pytest

    from tests.provers.simulation.kinesis.plan import KinesisPlan


def error_of(
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    broken: Any,
    plans: Iterable[KinesisPlan] = (),
) -> str:
    """Return what the simulator says of a broken library, by the first plan that shows it."""
    monkeypatch.setattr(owner, name, broken)
    for plan in plans or map(draw_kinesis_plan, range(60)):
        try:
            run_plan(plan)
        except SimulationError as error:
            return str(error).splitlines()[0].removeprefix("OracleError: ")
    return "nothing"


def test_an_end_that_is_retried_without_a_word_is_swallowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    init = Subscriber.__init__

    def silent(self: Subscriber, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs | {"on_resubscribe": lambda *_: None})

    assert error_of(monkeypatch, Subscriber, "__init__", silent).startswith("swallowed")


def test_a_slot_without_a_bound_is_unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    queues: defaultdict[Slot, list[Any]] = defaultdict(list)

    async def put(self: Slot, event: Any, cost: int = 0) -> None:
        queues[self].append((event, cost))
        self._on_ready(self)

    def take(self: Slot) -> Any:
        return queues[self].pop(0) if queues[self] else (self._pill, 0)

    monkeypatch.setattr(Slot, "take", take)
    assert error_of(monkeypatch, Slot, "put", put).startswith("unbounded")


def test_memory_that_a_closed_stream_holds_is_leaked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert error_of(monkeypatch, Subscribers, "_discard", lambda _: None).startswith("leaked")


def test_a_timer_that_a_closed_stream_leaves_is_leaked(monkeypatch: pytest.MonkeyPatch) -> None:
    supervise = Supervisor.supervise

    @asynccontextmanager
    async def leaky(self: Supervisor) -> AsyncIterator[None]:
        asyncio.get_running_loop().call_later(30, self._subscribers.check_open)
        async with supervise(self):
            yield

    assert error_of(monkeypatch, Supervisor, "supervise", leaky).startswith("leaked: process")


def test_closing_that_waits_for_the_service_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    supervise = Supervisor.supervise

    @asynccontextmanager
    async def slow(self: Supervisor) -> AsyncIterator[None]:
        async with supervise(self):
            yield
        await asyncio.sleep(16)

    assert error_of(monkeypatch, Supervisor, "supervise", slow).startswith("late: closing")


def test_records_that_never_come_are_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Supervisor._start

    def forgetful(self: Supervisor) -> None:
        if not self._subscribers.by_split:
            start(self)

    assert error_of(monkeypatch, Supervisor, "_start", forgetful).startswith("stuck")


def test_a_silence_that_is_waited_for_too_long_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Watchdog._start

    def patient(self: Watchdog, seconds: float) -> None:
        start(self, seconds + 5)

    assert error_of(monkeypatch, Watchdog, "_start", patient).startswith("late: shardId")


def test_another_failure_after_the_first_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def more(self: Subscribers) -> None:
        if self.failure is not None:
            raise ServiceError("something else")
        self._changed.clear()
        await self._changed.wait()

    gone = KinesisFault(kind=KinesisFaultKind.STREAM_GONE, at=100)
    plans = [replace(draw_kinesis_plan(seed), faults=(gone,)) for seed in range(9)]
    assert "another failure than" in error_of(monkeypatch, Subscribers, "more", more, plans)


def test_a_lag_that_is_told_while_a_split_backs_off_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_split = fan_out._of_split

    def healthy(progress: Any, *others: Any) -> Any:
        return replace(of_split(progress, *others), lag=progress.lag)

    assert "backs off, but its state is" in error_of(monkeypatch, fan_out, "_of_split", healthy)


def test_counters_that_count_something_else_are_miscounted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_split = fan_out._of_split

    def generous(*given: Any) -> Any:
        statistics = of_split(*given)
        return replace(
            statistics, subscriptions=statistics.subscriptions + statistics.resubscriptions
        )

    assert error_of(monkeypatch, fan_out, "_of_split", generous).startswith("miscounted")
