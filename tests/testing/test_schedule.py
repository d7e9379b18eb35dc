from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import pytest

from fanout.testing.virtual_time.loop import DeadlockError, SimLoop, simulate
from fanout.testing.virtual_time.schedule import Fifo, Priorities, Shuffled
from fanout.testing.virtual_time.trace import Trace

if TYPE_CHECKING:
    from fanout.testing.virtual_time.schedule import Schedule

_ALL = "abcdefgh"


def _order(schedule: Schedule | None, trace: Trace | None = None) -> str:
    async def main() -> str:
        order = []

        async def run(name: str) -> None:
            order.append(name)
            await asyncio.sleep(0)
            order.append(name.upper())

        async with asyncio.TaskGroup() as tasks:
            for name in _ALL:
                tasks.create_task(run(name))
        return "".join(order)

    return simulate(main, loop_factory=lambda: SimLoop(schedule=schedule, trace=trace))


@pytest.mark.parametrize("schedule", [None, Fifo()])
def test_steps_run_in_the_order_of_asyncio_where_nothing_else_is_asked_for(
    schedule: Schedule | None,
) -> None:
    assert _order(schedule) == _ALL + _ALL.upper()


@pytest.mark.parametrize("kind", [Shuffled, Priorities])
def test_steps_that_are_ready_together_change_places_by_seed(
    kind: type[Shuffled | Priorities],
) -> None:
    orders = [_order(kind(Random(seed))) for seed in range(20)]

    assert len(set(orders)) == 20
    assert all(sorted(order) == sorted(_ALL + _ALL.upper()) for order in orders)
    assert orders == [_order(kind(Random(seed))) for seed in range(20)]


def test_a_task_of_high_priority_runs_first_each_time() -> None:
    order = _order(Priorities(Random(1), depth=1))

    assert order[1::2] == order[::2].upper()


def test_a_demotion_changes_the_order_at_one_moment() -> None:
    async def main() -> str:
        order = []

        async def run(name: str) -> None:
            for _ in range(8000):
                order.append(name)
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run("a"))
            tasks.create_task(run("b"))
        return "".join(order)

    def factory() -> SimLoop:
        return SimLoop(schedule=Priorities(Random(3), depth=2))

    order = simulate(main, loop_factory=factory)
    first = order[0]
    demoted = order.index("b" if first == "a" else "a")

    assert 0 < demoted < 8000
    assert order == first * demoted + order[demoted] * 8000 + first * (8000 - demoted)


def test_plain_callbacks_keep_their_order() -> None:
    async def main() -> list[int]:
        order: list[int] = []

        async def nothing() -> None:
            pass

        async with asyncio.TaskGroup() as tasks:
            for number in range(50):
                asyncio.get_running_loop().call_soon(order.append, number)
                tasks.create_task(nothing())
        return order

    schedule = Shuffled(Random(5))
    assert simulate(main, loop_factory=lambda: SimLoop(schedule=schedule)) == list(range(50))


def test_the_trace_tells_two_orders_apart_and_one_order_from_nothing() -> None:
    traces = [Trace() for _ in range(3)]
    for seed, trace in zip((1, 1, 2), traces, strict=True):
        _order(Shuffled(Random(seed)), trace)

    assert traces[0].digest == traces[1].digest != traces[2].digest
    assert traces[0].steps == traces[2].steps > 16


def test_the_trace_keeps_what_was_noted_with_its_time() -> None:
    trace = Trace(keep_lines=True)

    async def main() -> None:
        await asyncio.sleep(1.5)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        loop.note("something happened")

    simulate(main, loop_factory=lambda: SimLoop(trace=trace))

    assert trace.lines == ["       1.500  something happened"]


def test_time_that_passes_while_nothing_runs_makes_timers_late() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        loop.call_soon(loop.block, 30)
        await asyncio.sleep(2)
        return loop.time()

    assert simulate(main) == 30


def test_tasks_that_go_round_in_circles_are_a_deadlock() -> None:
    async def spin() -> None:
        while True:  # noqa: ASYNC110 - this is what is to be found out
            await asyncio.sleep(0)

    with pytest.raises(DeadlockError, match="round in circles at 0 s"):
        simulate(spin)
