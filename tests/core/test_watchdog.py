from __future__ import annotations

import asyncio

import pytest
import uvloop

from fanout.core.subscription import Watchdog
from fanout.testing.virtual_time.cancellation import Cancellation, sweep
from fanout.testing.virtual_time.loop import SimLoop
from tests.support.patience import PATIENCE
from tests.support.virtual_time import in_virtual_time


def block(seconds: float) -> None:
    """Let time pass without letting the loop run, as code that never awaits does."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    loop.advance(seconds)


def now() -> float:
    return asyncio.get_running_loop().time()


def arrival_at(when: float) -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    arrived = loop.create_future()
    loop.call_at(when, arrived.set_result, None)
    return arrived


async def silence(*, pause_at: float | None = None) -> None:
    """Wait for what never comes, with a pause of 1,000 s in between."""
    watchdog = Watchdog(35.0)
    arrived = None if pause_at is None else arrival_at(pause_at)

    async def wait() -> None:
        async with watchdog:
            if arrived is not None:
                await arrived
                with watchdog.paused():
                    await asyncio.sleep(1000)
            await asyncio.get_running_loop().create_future()

    with pytest.raises(TimeoutError):
        await wait()
    assert watchdog.expired


@in_virtual_time
async def test_a_wait_that_is_too_long_ends_on_time() -> None:
    await silence()
    assert now() == 35


@in_virtual_time
async def test_a_wait_that_is_short_enough_leaves_nothing_behind() -> None:
    async with Watchdog(35.0) as watchdog:
        await asyncio.sleep(34)
    assert not watchdog.expired


@in_virtual_time
async def test_a_timeout_of_the_block_itself_is_told_from_ours() -> None:
    watchdog = Watchdog(35.0)
    with pytest.raises(TimeoutError, match="own"):
        async with watchdog:
            raise TimeoutError("own")
    assert not watchdog.expired


@pytest.mark.parametrize("turns", [1, 50])
@pytest.mark.parametrize("blocked", [37.0, 60.0, 3600.0])
@in_virtual_time
async def test_what_waits_behind_a_blocked_loop_is_read_however_many_turns_that_takes(
    blocked: float, turns: int
) -> None:
    async with Watchdog(35.0):
        asyncio.get_running_loop().call_soon(block, blocked)
        await asyncio.sleep(5)
        for _ in range(turns):
            await asyncio.sleep(0)
    assert now() == blocked


@in_virtual_time
async def test_what_arrives_in_the_turn_in_which_the_time_is_up_has_arrived_in_time() -> None:
    arrived = arrival_at(35.0)
    async with Watchdog(35.0):
        await arrived


@in_virtual_time
async def test_after_a_blocked_loop_silence_is_measured_anew() -> None:
    asyncio.get_running_loop().call_at(1.0, block, 60)
    await silence()
    assert now() == 61 + 35


@in_virtual_time
async def test_a_loop_that_was_blocked_but_is_back_in_time_changes_nothing() -> None:
    asyncio.get_running_loop().call_at(1.0, block, 33)
    await silence()
    assert now() == 35


@in_virtual_time
async def test_a_loop_that_is_a_little_late_when_the_time_is_up_changes_nothing() -> None:
    asyncio.get_running_loop().call_at(34.0, block, 2)
    await silence()
    assert now() == 36


@in_virtual_time
async def test_a_pause_leaves_the_rest_of_the_time() -> None:
    await silence(pause_at=30.0)
    assert now() == 1035


@in_virtual_time
async def test_a_pause_that_begins_when_the_time_is_up_is_waited_for() -> None:
    await silence(pause_at=35.0)
    assert now() == 1035


def test_a_cancelled_wait_is_cancelled_and_leaves_nothing_behind() -> None:
    async def scenario(cancellation: Cancellation) -> None:
        async def wait() -> None:
            async with Watchdog(3.0) as watchdog:
                await asyncio.sleep(1)
                with watchdog.paused():
                    await asyncio.sleep(5)
                await asyncio.sleep(1)

        await cancellation.run(wait())

    assert sweep(scenario) >= 9


@in_virtual_time
async def test_each_block_has_the_whole_time_and_one_timer_serves_all() -> None:
    watchdog = Watchdog(35.0, again=True)
    for _ in range(10):
        async with watchdog:
            await asyncio.sleep(30)
        await asyncio.sleep(3)
    with pytest.raises(TimeoutError):
        async with watchdog:
            await asyncio.get_running_loop().create_future()
    assert watchdog.expired
    assert now() == 330 + 35
    async with watchdog:
        await asyncio.sleep(34)
    assert not watchdog.expired
    watchdog.close()


@in_virtual_time
async def test_a_blocked_loop_is_no_silence_where_the_timer_is_of_an_earlier_block() -> None:
    watchdog = Watchdog(35.0, again=True)
    async with watchdog:
        await asyncio.sleep(30)
    async with watchdog:
        asyncio.get_running_loop().call_soon(block, 3600.0)
        await asyncio.sleep(5)
        for _ in range(50):
            await asyncio.sleep(0)
    watchdog.close()


@in_virtual_time
async def test_nothing_is_measured_between_blocks() -> None:
    watchdog = Watchdog(35.0, again=True)
    async with watchdog:
        pass
    await asyncio.sleep(1000)
    async with watchdog:
        await asyncio.sleep(34)
    watchdog.close()


@in_virtual_time
async def test_what_arrives_as_the_time_is_up_leaves_the_next_block_alone() -> None:
    watchdog = Watchdog(35.0, again=True)
    arrived = arrival_at(35.0)
    async with watchdog:
        await arrived
    async with watchdog:
        await asyncio.sleep(34)
    assert not watchdog.expired
    watchdog.close()


@pytest.mark.parametrize("microseconds", range(0, 1000, 100))
def test_the_time_ends_where_the_loop_rounds_it(microseconds: int) -> None:
    """A timer of uvloop fires up to half a millisecond early, and then knows no time."""

    async def wait() -> None:
        watchdog = Watchdog(0.02 + microseconds / 1e6, again=True)
        async with watchdog:
            await asyncio.sleep(0.002)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(PATIENCE), watchdog:
                await asyncio.get_running_loop().create_future()
        assert watchdog.expired
        watchdog.close()

    uvloop.run(wait())
