"""A stream that is stopped, as by a signal: reading ends, and nothing is lost or repeated."""

from __future__ import annotations

import asyncio

import pytest

import fanout
from fanout.core.events import Split
from tests.support.scripted_source import Log, ScriptedSource, sequences
from tests.support.virtual_time import in_virtual_time

LOGS = (
    Log(split=Split("a"), entries=tuple(range(1, 9)), per_event=1),
    Log(split=Split("b"), entries=tuple(range(1, 9)), per_event=1),
)
EVERYTHING = sorted((name, number) for name in "ab" for number in range(1, 9))


async def read(stream: fanout.FanOut, *, stop_after: int) -> list[tuple[str, int]]:
    """Iterate, and stop the stream inside the handling of a batch; return what was handled."""
    handled: list[tuple[str, int]] = []
    async for batch in stream:
        if len(handled) + 1 == stop_after:
            stream.stop()
        await asyncio.sleep(0.1)
        handled += [(batch.split.id, number) for number in sequences(batch)]
        await stream.acknowledge(batch)
        if len(handled) == len(EVERYTHING):
            break
    return handled


@pytest.mark.parametrize("stop_after", [1, 2, 7, 16])
@in_virtual_time
async def test_the_batch_in_hand_is_finished_and_the_next_run_continues_after_it(
    stop_after: int,
) -> None:
    async with fanout.open(ScriptedSource(logs=LOGS)) as stream:
        handled = await read(stream, stop_after=stop_after)
        assert stream.stopping
    assert len(handled) == stop_after
    if stop_after < len(EVERYTHING):
        async with fanout.open(ScriptedSource(logs=LOGS), resume=stream.positions) as stream:
            while len(handled) < len(EVERYTHING):
                batch = await anext(stream)
                handled += [(batch.split.id, number) for number in sequences(batch)]
    assert sorted(handled) == EVERYTHING


@in_virtual_time
async def test_an_iteration_that_waits_ends_at_once() -> None:
    loop = asyncio.get_running_loop()
    async with fanout.open(ScriptedSource(logs=[Log(split=Split("a"), entries=())])) as stream:
        loop.call_later(5.0, stream.stop)
        begun = loop.time()
        assert [batch async for batch in stream] == []
        assert loop.time() - begun == pytest.approx(5.0)
        stream.stop()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


@in_virtual_time
async def test_a_drain_returns_what_it_has_and_then_nothing() -> None:
    loop = asyncio.get_running_loop()
    async with fanout.open(ScriptedSource(logs=LOGS)) as stream:
        loop.call_later(5.0, stream.stop)
        begun = loop.time()
        drained = await stream.drain(max_wait=600.0, first_wait=600.0)
        assert drained.num_records == len(EVERYTHING)
        assert loop.time() - begun == pytest.approx(5.0)
        assert (await stream.drain(max_wait=600.0)).batches == ()
        assert loop.time() - begun == pytest.approx(5.0)
