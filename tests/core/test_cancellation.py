from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest

import fanout
from fanout.core.cancellation import FailingTasks, prefer_cancellation
from fanout.core.events import Split
from fanout.errors import MalformedEventError
from fanout.testing.virtual_time.cancellation import Cancellation, sweep
from tests.support.scripted_source import (
    PACING,
    Break,
    FlakyError,
    Idle,
    Log,
    NoAnswer,
    Refuse,
    ScriptedSource,
    Stall,
    Stop,
    check_delivery,
    seeded,
    sequences,
)
from tests.support.virtual_time import in_virtual_time

A, B = Split("a"), Split("b")
LEFT = Split("left", ("a",))

LOGS = (
    Log(
        split=A,
        entries=(1, 2, 3, Idle(4), 5),
        ends=True,
        children=(LEFT,),
        faults=(Refuse(FlakyError()), Break(1, FlakyError()), Stop(1)),
        event_delay=0.5,
    ),
    Log(
        split=B,
        entries=(1, 2, 3, 4),
        faults=(Break(1, MalformedEventError("checksum")), NoAnswer(), Stall(1)),
        event_delay=0.25,
    ),
    Log(split=LEFT, entries=(6, 7, 8), event_delay=0.5, per_event=1),
)
TOTAL = sum(len(log.records) for log in LOGS)


def source() -> ScriptedSource:
    """Faults at every stage, and memory for little more than two events."""
    pacing = replace(PACING, max_bytes_in_flight=120)
    return ScriptedSource(logs=LOGS, pacing=pacing, answer_after=0.25, close_after=0.25)


@pytest.mark.fault("A task is cancelled at any of its steps")
@pytest.mark.long
@pytest.mark.parametrize("first_wait", [0.25, 3.0, math.inf])
def test_a_drain_cancelled_at_any_step_loses_and_repeats_nothing(first_wait: float) -> None:
    async def scenario(cancellation: Cancellation) -> None:
        delivered: list[tuple[str, int]] = []
        async with fanout.open(source(), random=seeded()) as stream:

            async def drain() -> None:
                drained = await stream.drain(max_records=3, max_wait=2.0, first_wait=first_wait)
                for batch in drained.batches:
                    delivered.extend((batch.split.id, number) for number in sequences(batch))

            while len(delivered) < TOTAL:
                await cancellation.run(drain())
        check_delivery(LOGS, delivered)

    assert sweep(scenario) > 30


@pytest.mark.fault("A task is cancelled at any of its steps")
def test_iteration_cancelled_at_any_step_loses_and_repeats_nothing() -> None:
    async def scenario(cancellation: Cancellation) -> None:
        delivered: list[tuple[str, int]] = []
        async with fanout.open(source(), random=seeded()) as stream:

            async def iterate() -> None:
                async for batch in stream:
                    delivered.extend((batch.split.id, number) for number in sequences(batch))
                    if len(delivered) == TOTAL:
                        return

            while len(delivered) < TOTAL:
                await cancellation.run(iterate())
        check_delivery(LOGS, delivered)

    assert sweep(scenario) > 30


@pytest.mark.fault("A task is cancelled at any of its steps")
@pytest.mark.parametrize("busy", [0.0, 3.0])
def test_a_stream_cancelled_at_any_step_is_continued_exactly(busy: float) -> None:
    async def scenario(cancellation: Cancellation) -> None:
        scripted = source()
        runs: list[list[tuple[str, int]]] = []
        acknowledged: list[tuple[str, int]] = []
        positions: str | None = None

        async def run() -> None:
            nonlocal positions
            runs.append([])
            async with fanout.open(scripted, resume=positions, random=seeded()) as stream:
                try:
                    while len(acknowledged) < TOTAL:
                        batch = await anext(stream)
                        records = [(batch.split.id, number) for number in sequences(batch)]
                        runs[-1] += records
                        if busy:
                            await asyncio.sleep(busy)
                        acknowledged.extend(records)
                        await stream.acknowledge(batch)
                finally:
                    positions = stream.positions

        await cancellation.run(run())
        assert scripted.live.total() == 0
        assert len(asyncio.all_tasks()) == 1
        if len(acknowledged) < TOTAL:
            await run()
        assert scripted.broken == []
        check_delivery(LOGS, acknowledged)
        for log in LOGS:
            first, *second = ([n for s, n in records if s == log.split.id] for records in runs)
            assert first == log.records[: len(first)]
            for again in second:
                assert again == log.records[len(log.records) - len(again) :]
                assert len(first) + len(again) - len(log.records) in {0, 1, 2}

    assert sweep(scenario) > 60


@pytest.mark.fault("A task is cancelled at any of its steps")
def test_a_stream_that_is_cancelled_while_it_opens_and_closes_leaves_nothing() -> None:
    async def scenario(cancellation: Cancellation) -> None:
        scripted = source()

        async def run() -> None:
            async with fanout.open(scripted, random=seeded()):
                await asyncio.sleep(1.0)

        await cancellation.run(run())
        assert scripted.live.total() == 0
        assert scripted.broken == []
        assert len(asyncio.all_tasks()) == 1

    assert sweep(scenario) > 3


@in_virtual_time
async def test_an_error_of_a_task_that_was_not_cancelled_is_left_alone() -> None:
    prefer_cancellation(OSError())


@in_virtual_time
async def test_a_cancellation_is_preferred_to_the_error_that_came_out_instead() -> None:
    async def close() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            prefer_cancellation(OSError("reset"))

    task = asyncio.create_task(close())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _fail(seconds: float, error: Exception) -> None:
    await asyncio.sleep(seconds)
    raise error


@in_virtual_time
async def test_the_error_of_a_task_is_no_cancellation_of_the_one_that_waits() -> None:
    async def wait() -> None:
        async with FailingTasks() as tasks:
            tasks.spawn("sleeper", asyncio.sleep, math.inf)
            for seconds in (1, 2, 2):
                tasks.spawn("failing", _fail, seconds, OSError(f"after {seconds} s"))
            await tasks.failure()

    with pytest.raises(OSError, match="after 1 s") as failed:
        await wait()
    prefer_cancellation(failed.value)  # a task group would leave this task cancelled


@in_virtual_time
async def test_tasks_of_which_one_fails_at_the_end_leave_no_error_behind() -> None:
    async def late() -> None:
        try:
            await asyncio.sleep(math.inf)
        finally:
            raise OSError

    async with FailingTasks() as tasks:
        tasks.spawn("late", late)
        await asyncio.sleep(1)
