"""Streams that have a stop in each split, and end when they have reached all of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

import fanout
from fanout.core.checkpoint import Checkpoint
from fanout.core.events import Split
from fanout.core.positions import Cursor
from fanout.core.statistics import SplitState
from fanout.errors import SplitFailedError, StreamStateError
from fanout.testing.virtual_time.loop import simulate
from tests.support.scripted_source import (
    PACING,
    BadClose,
    Break,
    FatalError,
    FlakyError,
    Idle,
    Log,
    Refuse,
    ScriptedSource,
    check_delivery,
    sequences,
)
from tests.support.virtual_time import in_virtual_time

A, B = Split("a"), Split("b")
LEFT, RIGHT = Split("left", ("a",)), Split("right", ("a",))
HOUR = 3600.0


def bounded(*logs: Log) -> ScriptedSource:
    return ScriptedSource(logs=logs, bounded=True)


async def read(stream: fanout.FanOut) -> list[tuple[str, int]]:
    return [(batch.split.id, number) async for batch in stream for number in sequences(batch)]


def now() -> float:
    return asyncio.get_running_loop().time()


TWO = (
    Log(split=A, entries=(1, 2, 3, 4, 5)),
    Log(split=B, entries=(1, Idle(2), 3, Idle(4)), event_delay=1.0),
)


@in_virtual_time
async def test_an_iteration_ends_where_every_split_has_reached_its_stop() -> None:
    source = bounded(*TWO)
    async with fanout.open(source) as stream:
        check_delivery(TWO, await read(stream))
        assert now() == 4.0
        assert stream.caught_up
        assert await read(stream) == []
    assert source.broken == []


@in_virtual_time
async def test_a_drain_returns_what_there_is_and_then_nothing_but_the_positions() -> None:
    source = bounded(*TWO)
    async with fanout.open(source) as stream:
        drained = await stream.drain(max_wait=HOUR)
        assert drained.num_records == 7
        assert now() == 4.0
        for _ in range(2):
            rest = await stream.drain(max_wait=HOUR)
            assert rest.batches == ()
            at = {id_: state.position for id_, state in rest.positions.splits.items()}
            assert at == {"a": Cursor(5), "b": Cursor(4)}
        assert now() == 4.0


@in_virtual_time
async def test_what_a_limit_has_cut_off_comes_before_the_end() -> None:
    source = bounded(Log(split=A, entries=(1, 2, 3), per_event=3))
    async with fanout.open(source) as stream:
        assert [(await stream.drain(max_records=2)).num_records for _ in range(3)] == [2, 1, 0]


@in_virtual_time
async def test_what_a_cancelled_drain_had_collected_comes_before_the_end() -> None:
    async with fanout.open(bounded(*TWO)) as stream:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await stream.drain(max_wait=HOUR)
        await asyncio.sleep(HOUR)
        check_delivery(TWO, await read(stream))


@in_virtual_time
async def test_a_stream_without_a_stop_goes_on_although_it_has_caught_up() -> None:
    async with fanout.open(ScriptedSource(logs=TWO)) as stream:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(HOUR):
                await read(stream)
        assert stream.caught_up


@in_virtual_time
async def test_a_split_at_its_stop_has_not_ended_and_a_later_stream_goes_on_there() -> None:
    async with fanout.open(bounded(*TWO)) as stream:
        async for batch in stream:
            await stream.acknowledge(batch)
        positions = stream.positions
        states = {id_: split.state for id_, split in stream.statistics().splits.items()}
    assert states == {"a": SplitState.CAUGHT_UP, "b": SplitState.CAUGHT_UP}
    assert not any(state.ended for state in Checkpoint.from_json(positions).splits.values())
    longer = tuple(replace(log, entries=(*log.entries, 6, 7)) for log in TWO)
    async with fanout.open(bounded(*longer), resume=positions) as stream:
        assert sorted(await read(stream)) == [("a", 6), ("a", 7), ("b", 6), ("b", 7)]
    async with fanout.open(ScriptedSource(logs=longer), resume=positions) as stream:
        assert (await stream.drain(max_wait=HOUR)).num_records == 4


@in_virtual_time
async def test_a_stream_that_begins_at_its_stops_ends_without_a_record() -> None:
    async with fanout.open(bounded(*TWO)) as stream:
        async for batch in stream:
            await stream.acknowledge(batch)
        positions = stream.positions
    async with fanout.open(bounded(*TWO), resume=positions) as stream:
        assert await read(stream) == []
        assert stream.caught_up


@in_virtual_time
async def test_a_stream_ends_when_its_last_subscription_is_closed() -> None:
    source = bounded(*TWO)
    source.close_after = 2.0
    async with fanout.open(source) as stream:
        check_delivery(TWO, await read(stream))
        assert now() == 6.0
        assert source.live.total() == 0


@in_virtual_time
async def test_a_stream_without_splits_ends_at_once() -> None:
    async with fanout.open(bounded()) as stream:
        assert await read(stream) == []
        assert (await stream.drain()).batches == ()


def test_a_split_at_its_stop_is_left_alone() -> None:
    causes: list[Exception] = []

    async def main() -> None:
        # Its second subscription would fail for good.
        source = bounded(
            Log(split=A, entries=(1,), faults=(None, Refuse(FatalError("gone")))),
            Log(split=B, entries=(1, 2), event_delay=30.0),
        )
        async with fanout.open(source, on_resubscribe=lambda *_: causes.append(_[1])) as stream:
            await anext(stream)
            await asyncio.sleep(15.0)
            assert source.live == {"a": 0, "b": 1}
            assert len(await read(stream)) == 2
            await asyncio.sleep(HOUR)
            assert await read(stream) == []
            assert stream.failure is None
        assert [len(source.calls_of(id_)) for id_ in ("a", "b")] == [1, 1]
        assert source.broken == []

    simulate(main)
    assert causes == []


@in_virtual_time
async def test_a_split_that_is_interrupted_before_its_stop_goes_on_to_it() -> None:
    log = Log(split=A, entries=(1, 2, 3, 4, 5), faults=(Break(1, FlakyError("reset")),))
    async with fanout.open(bounded(log)) as stream:
        check_delivery([log], await read(stream))


@in_virtual_time
async def test_a_split_that_fails_before_its_stop_fails_the_stream() -> None:
    failing = Log(split=B, entries=(1, 2, 3), faults=(Break(1, FatalError("gone")),))
    async with fanout.open(bounded(TWO[0], failing)) as stream:
        with pytest.raises(SplitFailedError):
            await read(stream)
        assert stream.statistics().splits["b"].records == 2


@in_virtual_time
async def test_a_subscription_that_closes_badly_at_its_stop_changes_nothing() -> None:
    log = replace(TWO[0], faults=(BadClose(FatalError("reset")),))
    async with fanout.open(bounded(log)) as stream:
        check_delivery([log], await read(stream))
        assert stream.failure is None


@in_virtual_time
async def test_the_children_of_a_split_that_ends_belong_to_a_bounded_stream() -> None:
    logs = (
        Log(split=A, entries=(1, 2), ends=True, children=(LEFT, RIGHT), event_delay=1.0),
        Log(split=LEFT, entries=(3, 4), event_delay=30.0),
        Log(split=RIGHT, entries=(3,), ends=True),
    )
    source = ScriptedSource(logs=logs, bounded=True, listings=[[A], [A, LEFT, RIGHT]])
    async with fanout.open(source) as stream:
        check_delivery(logs, await read(stream))
        states = {id_: split.state for id_, split in stream.statistics().splits.items()}
    assert states == {
        "a": SplitState.ENDED,
        "left": SplitState.CAUGHT_UP,
        "right": SplitState.ENDED,
    }


@pytest.mark.parametrize(
    "source",
    [
        ScriptedSource(logs=[Log(split=A, entries=(1, 2), event_delay=HOUR)], bounded=True),
        ScriptedSource(
            logs=[Log(split=A, entries=(1, 2), event_delay=HOUR)],
            pacing=replace(PACING, discovery_interval=None),
        ),
    ],
    ids=["bounded", "no interval"],
)
@in_virtual_time
async def test_splits_are_listed_once_where_discovery_is_off(source: ScriptedSource) -> None:
    source.pacing = replace(source.pacing, silence_timeout=2 * HOUR)
    source.listings = [[A]]
    async with fanout.open(source) as stream:
        assert (await anext(stream)).num_records == 2
    assert source.listed == 1


@in_virtual_time
async def test_the_end_of_a_split_is_listed_where_discovery_is_off() -> None:
    logs = (
        Log(split=A, entries=(1, 2), ends=True, children=(LEFT,)),
        Log(split=LEFT, entries=(3, 4)),
    )
    source = ScriptedSource(
        logs=logs,
        pacing=replace(PACING, discovery_interval=None),
        listings=[[A], FlakyError("busy"), [A, LEFT]],
    )
    async with fanout.open(source) as stream:
        async with asyncio.timeout(HOUR):
            check_delivery(
                logs,
                [
                    (b.split.id, n)
                    for b in (await anext(stream), await anext(stream))
                    for n in sequences(b)
                ],
            )
        await asyncio.sleep(HOUR)
    assert source.listed == 3


@in_virtual_time
async def test_statistics_tell_that_a_split_is_at_its_stop_and_nothing_is_behind() -> None:
    async with fanout.open(bounded(TWO[0])) as stream:
        await anext(stream)
        before = stream.statistics().splits["a"]
        assert (before.lag, before.behind) == (3.0, 3)
        await read(stream)
        await asyncio.sleep(HOUR)
        after = stream.statistics().splits["a"]
        assert (after.state, after.lag, after.behind) == (SplitState.CAUGHT_UP, 0.0, 0)


@in_virtual_time
async def test_how_far_a_split_is_behind_is_not_told_while_it_backs_off() -> None:
    log = replace(TWO[0], faults=(Break(1, FlakyError("reset")), Refuse(FlakyError("busy"))))
    async with fanout.open(ScriptedSource(logs=[log])) as stream:
        await anext(stream)
        await asyncio.sleep(0)
        reported = stream.statistics().splits["a"]
        assert (reported.state, reported.behind) == (SplitState.BACKING_OFF, None)


@pytest.mark.parametrize("available_now", [False, True])
@in_virtual_time
async def test_the_source_is_told_whether_only_what_is_there_now_is_read(
    *, available_now: bool
) -> None:
    source = bounded(*TWO)
    async with fanout.open(source, available_now=available_now):
        pass
    assert source.available_now == [available_now]


@in_virtual_time
async def test_a_bounded_stream_that_is_closed_says_so() -> None:
    async with fanout.open(bounded(*TWO)) as stream:
        await read(stream)
    with pytest.raises(StreamStateError, match="closed"):
        await anext(stream)
