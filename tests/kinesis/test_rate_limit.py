from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from fanout.kinesis.reading.polling import ShardRateLimit
from fanout.testing.virtual_time.loop import simulate

MIB = 1024 * 1024


def now() -> float:
    return asyncio.get_running_loop().time()


async def calls(count: int, *, taking: float = 0.0) -> list[tuple[float, float]]:
    """Make calls one after another; return when each began and ended."""
    pace, made = ShardRateLimit(), []
    for _ in range(count):
        async with pace.call():
            began = now()
            await asyncio.sleep(taking)
            made.append((began, now()))
    return made


async def gap_after(nbytes: int, *, transfer: float = 0.0) -> float:
    """Return the time from an answer to the next call."""
    pace = ShardRateLimit()
    async with pace.call():
        answered_at = now()
        await asyncio.sleep(transfer)
    pace.rest(answered_at, nbytes)
    async with pace.call():
        return now() - answered_at


def test_five_calls_are_made_in_a_second() -> None:
    begins = [began for began, _ in simulate(calls, 6)]
    assert begins == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])


def test_a_call_that_takes_long_is_followed_by_an_interval_all_the_same() -> None:
    (_, ended), (began, _) = simulate(calls, 2, taking=3.0)
    assert began - ended == pytest.approx(0.2)


def test_a_call_that_fails_counts() -> None:
    async def main() -> float:
        pace = ShardRateLimit()
        with pytest.raises(ZeroDivisionError):
            async with pace.call():
                raise ZeroDivisionError
        async with pace.call():
            return now()

    assert simulate(main) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("nbytes", "seconds"),
    [(0, 0.2), (MIB // 4, 0.2), (MIB, 0.5), (3 * MIB, 1.5), (10 * MIB, 5.0), (24 * MIB, 5.0)],
)
def test_after_an_answer_the_shard_rests_until_its_average_is_2_mib_a_second(
    nbytes: int, seconds: float
) -> None:
    assert simulate(gap_after, nbytes) == pytest.approx(seconds)


def test_the_transfer_of_an_answer_is_a_part_of_the_rest() -> None:
    assert simulate(gap_after, 10 * MIB, transfer=4.0) == pytest.approx(5.0)


def test_a_body_that_broke_off_is_rested_for_too() -> None:
    async def main() -> float:
        pace = ShardRateLimit()
        with suppress(ConnectionResetError):
            async with pace.call():
                pace.rest(now(), 4 * MIB)
                raise ConnectionResetError
        async with pace.call():
            return now()

    assert simulate(main) == pytest.approx(2.0)


def test_an_idle_shard_is_asked_ever_less_often_until_it_says_something() -> None:
    async def main() -> list[float]:
        pace, gaps = ShardRateLimit(), []
        for idle in (True, True, True, True, False, True):
            async with pace.call():
                answered_at = now()
            pace.set_idle(idle=idle)
            pace.rest(answered_at, 0)
            async with pace.call():
                gaps.append(now() - answered_at)
        return gaps

    assert simulate(main) == pytest.approx([0.4, 0.8, 1.0, 1.0, 0.2, 0.4])


def test_a_wait_that_is_cancelled_takes_no_turn() -> None:
    async def main() -> float:
        pace = ShardRateLimit()
        async with pace.call():
            pass
        waiting = asyncio.create_task(pace.call().__aenter__())
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.wait([waiting])
        async with pace.call():
            return now()

    assert simulate(main) == pytest.approx(0.2)
