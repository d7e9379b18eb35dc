from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from fanout.testing.virtual_time.cancellation import Cancellation, Moment, sweep


async def two_waits(seen: list[str]) -> None:
    seen.append("begin")
    await asyncio.sleep(1)
    seen.append("middle")
    await asyncio.sleep(0)
    seen.append("end")


def test_a_sweep_cancels_at_every_step_in_every_way() -> None:
    runs: list[tuple[bool, list[str]]] = []

    async def scenario(cancellation: Cancellation) -> None:
        seen: list[str] = []
        await cancellation.run(two_waits(seen))
        runs.append((cancellation.fired, seen))

    assert sweep(scenario) == 7
    cancelled = [seen for fired, seen in runs if fired]
    running, suspended, woken = cancelled[:3], cancelled[3:5], cancelled[5:]
    assert running == [["begin"], ["begin", "middle"], ["begin", "middle", "end"]]
    assert suspended == [["begin"], ["begin", "middle"]]
    assert woken == suspended
    assert all(seen[-1] == "end" for fired, seen in runs if not fired)


def test_woken_means_that_what_was_waited_for_has_happened() -> None:
    happened: list[tuple[Moment, bool]] = []

    async def wait(future: asyncio.Future[None]) -> None:
        try:
            await future
        except asyncio.CancelledError:
            happened.append((cancellations[-1].moment, not future.cancelled()))
            raise

    cancellations: list[Cancellation] = []

    async def scenario(cancellation: Cancellation) -> None:
        cancellations.append(cancellation)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(1, future.set_result, None)
        await cancellation.run(wait(future))
        timer.cancel()

    sweep(scenario)
    assert happened == [(Moment.RUNNING, False), (Moment.SUSPENDED, False), (Moment.WOKEN, True)]


def test_steps_are_counted_over_all_calls() -> None:
    async def scenario(cancellation: Cancellation) -> None:
        await cancellation.run(two_waits([]))
        await cancellation.run(two_waits([]))

    assert sweep(scenario) == 14


def test_a_swallowed_cancellation_is_found() -> None:
    async def swallow() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(1)

    async def scenario(cancellation: Cancellation) -> None:
        await cancellation.run(swallow())

    with pytest.raises(AssertionError, match="swallowed"):
        sweep(scenario)


def test_a_failing_sweep_names_the_step() -> None:
    async def scenario(cancellation: Cancellation) -> None:
        await cancellation.run(two_waits([]))
        assert not cancellation.fired

    with pytest.raises(AssertionError) as caught:
        sweep(scenario)
    assert caught.value.__notes__ == ["cancelled at step 1 while running"]
