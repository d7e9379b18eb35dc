"""Subscribe to hundreds of splits at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

import fanout
from fanout.core.events import Split
from fanout.testing.virtual_time.loop import simulate
from tests.support.scripted_source import (
    PACING,
    Log,
    NoAnswer,
    ScriptedSource,
    Stop,
    check_delivery,
    seeded,
    sequences,
)


def splits(count: int) -> list[Split]:
    return [Split(f"split-{index:04}") for index in range(count)]


@pytest.mark.fault("A thousand subscriptions expire in the same second")
@pytest.mark.long
def test_1000_subscriptions_that_end_in_one_second_are_renewed_in_turn_and_without_delay() -> None:
    life, latency, pending = 300.0, 0.3, 50
    logs = [
        Log(split=split, heartbeat=30.0, faults=(Stop(int(life) // 30),)) for split in splits(1000)
    ]
    pacing = replace(PACING, max_pending_subscribes=pending)

    async def main() -> None:
        source = ScriptedSource(logs=logs, pacing=pacing)
        async with fanout.open(source, random=seeded()) as stream:
            reading = asyncio.create_task(anext(stream))
            await asyncio.sleep(life / 2)
            assert {call.time for call in source.calls} == {0.0}
            source.answer_after, source.most_pending = latency, 0
            await asyncio.sleep(life / 2 + 1000 / pending * latency + 0.1)
            assert source.live.total() == 1000
            assert len(source.calls) == 2000
            assert source.most_pending == pending
            renewals = source.calls[1000:]
            assert min(call.time for call in renewals) == life
            assert len({call.split_id for call in renewals}) == 1000
            reading.cancel()

    simulate(main)


@pytest.mark.fault("A split is listed again while it is read, or read by two tasks")
def test_a_single_renewal_waits_for_nothing() -> None:
    logs = [Log(split=split, heartbeat=30.0) for split in splits(100)]
    logs[50] = replace(logs[50], faults=(Stop(10),))

    async def main() -> None:
        source = ScriptedSource(logs=logs)
        async with fanout.open(source, random=seeded()) as stream:
            reading = asyncio.create_task(anext(stream))
            await asyncio.sleep(400)
            reading.cancel()
        assert [call.time for call in source.calls_of(logs[50].split.id)] == [0, 300]

    simulate(main)


@pytest.mark.fault("A thousand subscriptions expire in the same second")
def test_calls_that_hang_hold_the_other_splits_up_for_seconds_only() -> None:
    hanging = [Log(split=Split(f"hanging-{index}"), faults=(NoAnswer(),) * 9) for index in range(4)]
    logs = [*hanging, *(Log(split=split, entries=(1,)) for split in splits(4))]
    pacing = replace(PACING, max_pending_subscribes=2)

    async def main() -> None:
        async with fanout.open(ScriptedSource(logs=logs, pacing=pacing), random=seeded()) as stream:
            for _ in range(4):
                await anext(stream)
            assert asyncio.get_running_loop().time() < PACING.subscribe_timeout

    simulate(main)


def test_no_split_of_256_starves_where_memory_is_scarce_and_the_consumer_slow() -> None:
    logs = [Log(split=split, entries=tuple(range(1, 6)), per_event=1) for split in splits(256)]
    pacing = replace(PACING, max_bytes_in_flight=120)  # little more than two events

    async def main() -> None:
        delivered: list[tuple[str, int]] = []
        taken: Counter[str] = Counter()
        async with fanout.open(ScriptedSource(logs=logs, pacing=pacing), random=seeded()) as stream:
            while len(delivered) < 256 * 5:
                batch = await anext(stream)
                delivered += [(batch.split.id, number) for number in sequences(batch)]
                taken[batch.split.id] += 1
                assert max(taken.values()) - min(taken[log.split.id] for log in logs) <= 2
                await asyncio.sleep(0.1)
        check_delivery(logs, delivered)

    simulate(main)
