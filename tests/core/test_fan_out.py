from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest

import fanout
from fanout.core.checkpoint import Checkpoint, SplitPosition
from fanout.core.events import Batch, Split
from fanout.core.opening import resolve_start
from fanout.core.policy import Finish, Skip
from fanout.core.positions import Cursor, Horizon, Range, Timestamp
from fanout.core.statistics import SplitState
from fanout.errors import (
    OptionError,
    PositionError,
    ServiceError,
    SplitFailedError,
    StreamStateError,
)
from fanout.testing.virtual_time.loop import simulate
from tests.support.scripted_source import (
    PACING,
    Break,
    FatalError,
    FlakyError,
    Idle,
    Log,
    NoAnswer,
    Refuse,
    ScriptedSource,
    Stop,
    VerdictError,
    check_delivery,
    record_batch,
    seeded,
    sequences,
)
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from fanout.core.drain import Drained
    from fanout.core.positions import Position

A, B = Split("a"), Split("b")
LEFT, RIGHT = Split("left", ("a",)), Split("right", ("a",))
MERGED = Split("merged", ("right", "b"))

FAMILY = (
    Log(split=A, entries=(1, 2, 3), ends=True, children=(LEFT, RIGHT)),
    Log(split=B, entries=(1, 2, 3, 4, 5), ends=True, children=(MERGED,), per_event=1),
    Log(split=LEFT, entries=(4, Idle(5), 6), ends=True),
    Log(split=RIGHT, entries=(4, 5), ends=True, children=(MERGED,)),
    Log(split=MERGED, entries=(6, 7, 8)),
)


def numbers(batch: Batch) -> list[tuple[str, int]]:
    return [(batch.split.id, number) for number in sequences(batch)]


def drained_numbers(drained: Drained) -> list[tuple[str, int]]:
    return [number for batch in drained.batches for number in numbers(batch)]


async def take(stream: fanout.FanOut, count: int) -> list[tuple[str, int]]:
    """Iterate and acknowledge until so many records have come."""
    taken: list[tuple[str, int]] = []
    while len(taken) < count:
        batch = await anext(stream)
        taken += numbers(batch)
        await stream.acknowledge(batch)
    return taken


async def nothing_comes(stream: fanout.FanOut, seconds: float = 600.0) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await anext(stream)
            return False
    return True


@in_virtual_time
async def test_a_family_of_splits_is_read_once_and_in_order() -> None:
    source = ScriptedSource(logs=FAMILY)
    async with fanout.open(source) as stream:
        check_delivery(FAMILY, await take(stream, 15))
        assert await nothing_comes(stream)
    assert source.broken == []


@pytest.mark.fault("A restart in the middle of a reshard, and of every reshard of many")
@pytest.mark.parametrize("stop_after", range(16))
@in_virtual_time
async def test_a_restart_at_any_point_continues_after_what_was_acknowledged(
    stop_after: int,
) -> None:
    async with fanout.open(ScriptedSource(logs=FAMILY)) as stream:
        delivered = await take(stream, stop_after)
    async with fanout.open(ScriptedSource(logs=FAMILY), resume=stream.positions) as stream:
        delivered += await take(stream, 15 - len(delivered))
        assert await nothing_comes(stream)
    check_delivery(FAMILY, delivered)


@pytest.mark.fault("A restart in the middle of a reshard, and of every reshard of many")
@in_virtual_time
async def test_a_split_that_has_ended_is_not_subscribed_again_by_the_next_run() -> None:
    async with fanout.open(ScriptedSource(logs=FAMILY)) as stream:
        await take(stream, 15)
    source = ScriptedSource(logs=FAMILY)
    async with fanout.open(source, resume=stream.positions) as stream:
        assert await nothing_comes(stream)
    assert {call.split_id for call in source.calls} == {"merged"}


@in_virtual_time
async def test_a_split_that_is_no_longer_wanted_keeps_its_position_and_is_not_read() -> None:
    logs = [Log(split=Split(name), entries=(1, 2, 3, 4)) for name in ("a", "b")]
    async with fanout.open(ScriptedSource(logs=logs)) as stream:
        await take(stream, 4)
    positions = Checkpoint.from_json(stream.positions).splits
    source = ScriptedSource(logs=logs[:1], unread=frozenset({"b"}))
    async with fanout.open(source, resume=stream.positions) as stream:
        await take(stream, 2)
        assert await nothing_comes(stream)
        assert stream.statistics().splits.keys() == {"a"}
    assert {call.split_id for call in source.calls} == {"a"}
    assert Checkpoint.from_json(stream.positions).splits["b"] == positions["b"]


@in_virtual_time
async def test_a_source_that_keeps_its_records_lends_none() -> None:
    async with fanout.open(ScriptedSource(logs=FAMILY)) as stream:
        assert stream.statistics().lending is None
        batch = await anext(stream)
        with pytest.raises(StreamStateError, match="locks no records"):
            await stream.lending.release(batch)
        with pytest.raises(StreamStateError, match="locks no records"):
            await stream.lending.reject(batch, [0], reason="bad")


@in_virtual_time
async def test_what_was_not_acknowledged_comes_again() -> None:
    async with fanout.open(ScriptedSource(logs=FAMILY)) as stream:
        await take(stream, 6)
        unacknowledged = numbers(await anext(stream))
    async with fanout.open(ScriptedSource(logs=FAMILY), resume=stream.positions) as stream:
        again = [number for _ in range(6) for number in numbers(await anext(stream))]
    assert set(unacknowledged) <= set(again)


@in_virtual_time
async def test_positions_of_a_stream_that_has_read_nothing_are_its_start() -> None:
    source = ScriptedSource(logs=[Log(split=A)], start=Timestamp(7))
    async with fanout.open(source) as stream:
        positions = Checkpoint.from_json(stream.positions)
    assert positions.splits == {"a": SplitPosition(A, Timestamp(7))}


@in_virtual_time
async def test_positions_of_another_source_are_refused() -> None:
    positions = Checkpoint("scripted:other").to_json()
    with pytest.raises(PositionError, match="belong to scripted:other, not to scripted:one"):
        async with fanout.open(ScriptedSource(logs=FAMILY), resume=positions):
            pass


@in_virtual_time
async def test_damaged_positions_are_refused_before_connecting() -> None:
    source = ScriptedSource(logs=FAMILY, listings=[FatalError("connected")])
    with pytest.raises(PositionError, match="damaged"):
        async with fanout.open(source, resume="{"):
            pass


@in_virtual_time
async def test_a_split_that_appeared_between_two_runs_starts_at_the_horizon() -> None:
    logs = (Log(split=A, entries=(1, 2)), Log(split=B, entries=(3, 4)))
    one = ScriptedSource(logs=logs, listings=[[A]])
    async with fanout.open(one) as stream:
        await take(stream, 2)
    two = ScriptedSource(logs=logs, start=Timestamp(10**12))
    async with fanout.open(two, resume=stream.positions) as stream:
        assert await take(stream, 2) == [("b", 3), ("b", 4)]


@pytest.mark.parametrize("position", [Horizon(), Timestamp(1), Cursor(1)], ids=repr)
@pytest.mark.parametrize("parents", [(), ("a",)], ids=["an original split", "a child"])
def test_a_stored_split_that_expired_meanwhile_is_asked_for_and_its_children_are_read(
    position: Position, parents: tuple[str, ...]
) -> None:
    stored = Split("stored", parents)
    child = Split("child", ("stored",))
    expired = Refuse(VerdictError(Finish((child,), lost="its retention is over")))

    async def main() -> None:
        logs = (Log(split=stored, faults=(expired,)), Log(split=child, entries=(5,)))
        source = ScriptedSource(logs=logs, listings=[[child]])
        splits = MappingProxyType({"stored": SplitPosition(stored, position)})
        resume = Checkpoint(source.identity, splits).to_json()
        async with fanout.open(source, resume=resume) as stream:
            assert await take(stream, 1) == [("child", 5)]
            assert stream.statistics().gaps == 1
            assert Checkpoint.from_json(stream.positions).splits["stored"].ended

    simulate(main)


@in_virtual_time
async def test_a_child_that_was_started_resumes_although_its_family_has_expired() -> None:
    logs = (Log(split=LEFT, entries=(4, 5, 6)),)
    splits = MappingProxyType({"left": SplitPosition(LEFT, Cursor(4))})
    source = ScriptedSource(logs=logs, listings=[[]])
    resume = Checkpoint(source.identity, splits).to_json()
    async with fanout.open(source, resume=resume) as stream:
        assert await take(stream, 2) == [("left", 5), ("left", 6)]


@in_virtual_time
async def test_the_origin_of_a_source_is_where_a_stream_starts() -> None:
    source = ScriptedSource(logs=FAMILY[:1], start=Timestamp(2))
    positions = await fanout.resolve_start(source)
    assert source.calls == []
    source.start = Horizon()
    async with fanout.open(source, resume=positions) as stream:
        assert await take(stream, 2) == [("a", 2), ("a", 3)]


@pytest.mark.fault("Positions move without records, and are stored")
@in_virtual_time
async def test_idle_progress_moves_the_positions_when_nothing_is_outstanding() -> None:
    source = ScriptedSource(logs=[Log(split=A, entries=(1, Idle(9)))])
    async with fanout.open(source) as stream:
        batch = await anext(stream)
        assert await nothing_comes(stream)
        assert Checkpoint.from_json(stream.positions).splits["a"].position == Horizon()
        await stream.acknowledge(batch)
        assert Checkpoint.from_json(stream.positions).splits["a"].position == Cursor(9)
        assert source.acknowledged == [{"a": Cursor(9)}]


@pytest.mark.fault("An older batch is acknowledged after a newer one")
@in_virtual_time
async def test_acknowledging_is_cumulative_per_split() -> None:
    logs = (Log(split=A, entries=(1, 2, 3), per_event=1), Log(split=B, entries=(4,)))
    source = ScriptedSource(logs=logs)
    async with fanout.open(source) as stream:
        batches = [await anext(stream) for _ in range(4)]
        of_a = [batch for batch in batches if batch.split == A]
        await stream.acknowledge(of_a[1])
        await stream.acknowledge(of_a[0])
        splits = Checkpoint.from_json(stream.positions).splits
        assert (splits["a"].position, splits["b"].position) == (Cursor(2), Horizon())
        assert source.acknowledged == [{"a": Cursor(2)}]


@in_virtual_time
async def test_a_drain_and_a_snapshot_can_be_acknowledged() -> None:
    source = ScriptedSource(logs=[Log(split=A, entries=(1, 2, 3), per_event=1)])
    async with fanout.open(source) as stream:
        await stream.acknowledge(await stream.drain(max_records=1))
        assert Checkpoint.from_json(stream.positions) == stream.delivered
        await stream.drain(max_records=1)
        await stream.acknowledge(stream.delivered)
        assert Checkpoint.from_json(stream.positions).splits["a"].position == Cursor(2)


@pytest.mark.fault("A batch is acknowledged that was never delivered")
@in_virtual_time
async def test_what_was_not_delivered_cannot_be_acknowledged() -> None:
    log = Log(split=A, entries=(1, 2, 3), per_event=1)
    async with fanout.open(ScriptedSource(logs=[log])) as stream:
        await anext(stream)
        later = Batch(A, record_batch(log, [2]), Range(Cursor(1), Cursor(2)))
        with pytest.raises(StreamStateError, match="beyond"):
            await stream.acknowledge(later)


@pytest.mark.fault("A batch is acknowledged that was never delivered")
@in_virtual_time
async def test_a_snapshot_or_a_drain_of_another_source_cannot_be_acknowledged() -> None:
    log = Log(split=A, entries=(1, 2, 3), per_event=1)
    ours, theirs = ScriptedSource(logs=[log]), ScriptedSource(logs=[log], identity="another")
    async with fanout.open(ours) as stream, fanout.open(theirs) as other:
        await stream.drain(max_records=3)
        # The name of the split and the position would be right for our stream as well.
        for done in (await other.drain(max_records=1), other.delivered):
            with pytest.raises(StreamStateError, match=r"positions of another, not of scripted"):
                await stream.acknowledge(done)
        assert ours.acknowledged == []


@in_virtual_time
async def test_the_failure_is_set_at_once_while_the_consumer_is_busy() -> None:
    gone = Break(2, FatalError("gone"))
    logs = (
        Log(split=A, entries=(1, 2, 3, 4), event_delay=5.0, faults=(gone,)),
        Log(split=B, entries=(5, 6, 7, 8, 9), event_delay=4.0),
    )
    source = ScriptedSource(logs=logs)
    async with fanout.open(source) as stream:
        delivered = numbers(await anext(stream))  # from here on the consumer is busy
        await asyncio.sleep(5.9)
        assert stream.failure is None
        await asyncio.sleep(1.1)
        assert stream.failure is None  # a's second event is in the hand: its slot is full
        delivered += numbers(await anext(stream))
        delivered += numbers(await anext(stream))
        await asyncio.sleep(0.1)
        assert isinstance(stream.failure, SplitFailedError)
        assert source.live.total() == 0
        await asyncio.sleep(3600)
        delivered += numbers(await anext(stream))
        with pytest.raises(SplitFailedError, match="gone") as caught:
            await anext(stream)
        assert caught.value is stream.failure
    check_delivery(logs[:1], delivered)


@in_virtual_time
async def test_drain_returns_what_is_buffered_before_it_raises_the_failure() -> None:
    gone = Break(1, FatalError("gone"))
    logs = (
        Log(split=A, entries=(1, 2), faults=(gone,)),
        Log(split=B, entries=(5, 6, 7), event_delay=3.0),
    )
    async with fanout.open(ScriptedSource(logs=logs)) as stream:
        drained = await stream.drain(max_wait=3600.0)
        assert drained_numbers(drained) == [("a", 1), ("a", 2)]
        assert asyncio.get_running_loop().time() == 0  # a failure ends the wait
        with pytest.raises(SplitFailedError, match="gone"):
            await stream.drain()


@in_virtual_time
async def test_a_failure_in_the_body_of_a_reader_reaches_it_every_time() -> None:
    log = Log(split=A, faults=(Refuse(FatalError("gone")),))
    async with fanout.open(ScriptedSource(logs=[log])) as stream:
        for _ in range(3):
            with pytest.raises(SplitFailedError):
                await anext(stream)


@pytest.mark.fault("Code of the user raises")
def test_on_resubscribe_is_called_and_what_it_raises_is_fatal() -> None:
    def hook(split: Split, cause: Exception, delay: float) -> None:
        raise KeyError(split.id, type(cause).__name__, delay)

    async def main() -> None:
        log = Log(split=A, entries=(1,), faults=(Refuse(FlakyError()),))
        async with fanout.open(ScriptedSource(logs=[log]), on_resubscribe=hook) as stream:
            with pytest.raises(SplitFailedError) as caught:
                await anext(stream)
            cause = caught.value.__cause__
            assert isinstance(cause, KeyError)
            assert cause.args[:2] == ("a", "FlakyError")
            assert 1.0 <= cause.args[2] <= 2.0

    simulate(main)


@pytest.mark.fault("A split is listed again while it is read, or read by two tasks")
@in_virtual_time
async def test_a_second_reader_is_refused_and_the_first_goes_on() -> None:
    log = Log(split=A, entries=(1,), event_delay=10.0)
    async with fanout.open(ScriptedSource(logs=[log])) as stream, asyncio.TaskGroup() as tasks:
        first = tasks.create_task(take(stream, 1))
        await asyncio.sleep(1)
        with pytest.raises(StreamStateError, match="another task"):
            await anext(stream)
        with pytest.raises(StreamStateError, match="another task"):
            await stream.drain()
    assert first.result() == [("a", 1)]


@pytest.mark.fault("A stream is used after it was closed, or closed twice")
@in_virtual_time
async def test_a_closed_stream_cannot_be_read() -> None:
    async with fanout.open(ScriptedSource(logs=FAMILY)) as stream:
        await asyncio.sleep(1)  # every slot is full
    with pytest.raises(StreamStateError, match="closed"):
        await anext(stream)
    with pytest.raises(StreamStateError, match="closed"):
        await stream.drain()


def test_a_reader_that_waits_while_the_stream_is_closed_is_told() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            async with fanout.open(ScriptedSource(logs=[Log(split=A)])) as stream:
                reader = tasks.create_task(nothing_comes(stream))
                await asyncio.sleep(1)
            with pytest.raises(StreamStateError, match="closed"):
                await reader

    with pytest.raises(ExceptionGroup):
        simulate(main)


@pytest.mark.fault("Code of the user raises")
@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), StopAsyncIteration()])
@pytest.mark.parametrize("fault", [None, Refuse(FlakyError()), NoAnswer(), Refuse(FatalError())])
def test_an_error_in_the_body_comes_out_as_itself(
    error: BaseException, fault: Refuse | NoAnswer | None
) -> None:
    async def main() -> BaseException | None:
        source = ScriptedSource(logs=[Log(split=A, faults=(fault,) * 9)], close_after=0.5)
        try:
            async with fanout.open(source):
                await asyncio.sleep(3.5)
                raise error
        except type(error) as caught:
            return caught

    assert simulate(main) is error


@pytest.mark.fault("The reader is cancelled")
@in_virtual_time
async def test_a_cancellation_of_the_body_comes_out_as_itself() -> None:
    source = ScriptedSource(logs=[Log(split=A, faults=(Refuse(FlakyError()),) * 9)])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3.5), fanout.open(source) as stream:
            await anext(stream)
    assert asyncio.get_running_loop().time() == 3.5


@in_virtual_time
async def test_an_error_while_opening_comes_out_as_itself() -> None:
    source = ScriptedSource(logs=[], listings=[FatalError("no such stream")])
    with pytest.raises(FatalError, match="no such stream"):
        async with fanout.open(source):
            pass


@in_virtual_time
async def test_an_error_of_the_service_while_opening_is_explained_and_kept_as_the_cause() -> None:
    refused = PermissionError("not allowed")
    with pytest.raises(ServiceError, match="the splits cannot be listed: not allowed") as reports:
        async with fanout.open(ScriptedSource(logs=[], listings=[refused])):
            pass
    assert reports.value.__cause__ is refused


@in_virtual_time
async def test_a_listing_that_fails_for_now_while_opening_is_tried_again() -> None:
    failures = [OSError("no answer")] * 4
    source = ScriptedSource(
        logs=[Log(split=A, entries=(1,))], listings=[*failures, [A], *failures, [A]]
    )
    resume = await resolve_start(source)
    assert source.listed == 5
    async with fanout.open(source, resume=resume) as stream:
        assert await take(stream, 1) == [("a", 1)]
    assert asyncio.get_running_loop().time() < 60.0


@pytest.mark.fault("The service throttles, fails or lets a page token expire while a stream is")
@in_virtual_time
async def test_a_listing_that_fails_for_a_minute_while_opening_is_the_failure() -> None:
    source = ScriptedSource(logs=[], listings=[OSError("no answer")])
    with pytest.raises(ServiceError, match="the splits cannot be listed: no answer"):
        async with fanout.open(source):
            pass
    assert 60.0 <= asyncio.get_running_loop().time() <= 61.0
    assert source.listed > 3


@in_virtual_time
async def test_a_listing_that_fails_as_often_as_its_verdict_allows_ends_the_opening() -> None:
    source = ScriptedSource(logs=[], listings=[EOFError("again")])
    with pytest.raises(ServiceError, match="the splits cannot be listed: again"):
        async with fanout.open(source):
            pass
    assert source.listed == 3


@pytest.mark.fault("It is known how far a shard is behind, and unknown while it is not read")
@in_virtual_time
async def test_the_lag_is_unknown_while_a_split_is_not_live() -> None:
    log = Log(
        split=A, entries=(1, 2), per_event=1, ends=False, faults=(Break(1, FlakyError("cut")),)
    )
    async with fanout.open(ScriptedSource(logs=[log])) as stream:
        await anext(stream)
        assert stream.statistics().splits["a"].state is SplitState.BACKING_OFF
        assert stream.statistics().lag is None
        await anext(stream)
        assert stream.statistics().lag == 0.0


@pytest.mark.fault("An event without records comes before a single record")
@in_virtual_time
async def test_drain_wakes_at_the_first_record_and_fills_until_the_wait_ends() -> None:
    log = Log(split=A, entries=(Idle(1), 2, 3, 4), per_event=1, event_delay=10.0)
    async with fanout.open(ScriptedSource(logs=[log])) as stream:
        drained = await stream.drain(max_wait=15.0, first_wait=math.inf)
        assert asyncio.get_running_loop().time() == 35.0  # record 2 came at 20
        assert drained_numbers(drained) == [("a", 2), ("a", 3)]


@in_virtual_time
async def test_drain_without_a_wait_returns_what_is_ready_at_the_first_record() -> None:
    log = Log(split=A, entries=(2, 3, 4), per_event=1, event_delay=10.0)
    async with fanout.open(ScriptedSource(logs=[log])) as stream:
        drained = await stream.drain(max_wait=0, first_wait=math.inf)
        assert asyncio.get_running_loop().time() == 10.0
        assert drained_numbers(drained) == [("a", 2)]


@in_virtual_time
async def test_drain_returns_at_once_when_it_is_full() -> None:
    log = Log(split=A, entries=(1, 2, 3, 4), per_event=1)
    async with fanout.open(ScriptedSource(logs=[log])) as stream:
        drained = await stream.drain(max_records=3, max_wait=3600.0)
        assert asyncio.get_running_loop().time() == 0.0
        assert drained.num_records == 3


@in_virtual_time
async def test_drain_cuts_a_batch_and_begins_the_next_time_with_the_rest() -> None:
    log = Log(split=A, entries=(10, 20, 30, 40, 50), per_event=5)
    async with fanout.open(ScriptedSource(logs=[log])) as stream:
        first = await stream.drain(max_records=2)
        assert [(b.range, sequences(b)) for b in first.batches] == [
            (Range(Horizon(), Cursor(20)), [10, 20])
        ]
        assert first.positions.splits["a"].position == Cursor(20)
        second = await stream.drain(max_records=2)
        assert [(b.range, sequences(b)) for b in second.batches] == [
            (Range(Cursor(20), Cursor(40)), [30, 40])
        ]
        assert second.positions.splits["a"].position == Cursor(40)
        await stream.acknowledge(first)
        positions = stream.positions
    async with fanout.open(ScriptedSource(logs=[log]), resume=positions) as stream:
        assert await take(stream, 3) == [("a", 30), ("a", 40), ("a", 50)]


@in_virtual_time
async def test_drain_keeps_within_max_bytes() -> None:
    log = Log(split=A, entries=tuple(range(1, 21)), per_event=20, size=1000)
    collected: list[tuple[str, int]] = []
    async with fanout.open(ScriptedSource(logs=[log])) as stream:
        while len(collected) < 20:
            drained = await stream.drain(max_bytes=3500, max_wait=0)
            assert drained.nbytes <= 3500
            collected += drained_numbers(drained)
    check_delivery([log], collected)


@in_virtual_time
async def test_drain_returns_a_record_larger_than_max_bytes_alone() -> None:
    log = Log(split=A, entries=(1, 2, 3), per_event=3, size=1000)
    async with fanout.open(ScriptedSource(logs=[log])) as stream:
        for expected in (1, 2, 3):
            assert drained_numbers(await stream.drain(max_bytes=10)) == [("a", expected)]


@in_virtual_time
async def test_drain_is_fair_over_splits() -> None:
    logs = [
        Log(split=Split(name), entries=tuple(range(1, 101)), per_event=10)
        for name in ("busy", "busier", "busiest")
    ]
    async with fanout.open(ScriptedSource(logs=logs)) as stream:
        drained = await stream.drain(max_records=60)
    counts = {name.split.id: 0 for name in logs}
    for split_id, _ in drained_numbers(drained):
        counts[split_id] += 1
    assert set(counts.values()) == {20}


@in_virtual_time
async def test_drain_of_an_idle_stream_returns_nothing_after_its_wait() -> None:
    async with fanout.open(ScriptedSource(logs=[Log(split=A)])) as stream:
        for now in (0.5, 1.0):
            drained = await stream.drain(max_wait=0.5)
            assert (drained.batches, asyncio.get_running_loop().time()) == ((), now)
        await stream.acknowledge(drained)
        assert drained.positions.splits["a"].position == Horizon()


@in_virtual_time
async def test_drain_waits_for_the_first_record_as_long_as_first_wait_says() -> None:
    log = Log(split=A, entries=(1, 2, 3), per_event=1, event_delay=10.0)
    async with fanout.open(ScriptedSource(logs=[log])) as stream:
        assert drained_numbers(await stream.drain(max_wait=60.0, first_wait=9.0)) == []
        assert asyncio.get_running_loop().time() == 9.0
        drained = await stream.drain(max_wait=15.0, first_wait=2.0)
        assert asyncio.get_running_loop().time() == 25.0  # the first record came at 10
        assert drained_numbers(drained) == [("a", 1), ("a", 2)]


@in_virtual_time
async def test_drain_without_any_wait_returns_what_is_there() -> None:
    log = Log(split=A, entries=(1, 2, 3), per_event=3, event_delay=10.0)
    async with fanout.open(ScriptedSource(logs=[log])) as stream:
        assert drained_numbers(await stream.drain(max_wait=0)) == []
        await asyncio.sleep(11)
        assert (await stream.drain(max_wait=0)).num_records == 3


@pytest.mark.parametrize("first_wait", [9.999, 10.0, 10.001])
@in_virtual_time
async def test_a_record_that_comes_as_the_wait_for_it_ends_is_not_lost(first_wait: float) -> None:
    log = Log(split=A, entries=(1, 2, 3, 4), per_event=1, event_delay=10.0)
    collected: list[tuple[str, int]] = []
    async with fanout.open(ScriptedSource(logs=[log])) as stream:
        while len(collected) < 4:
            drained = await stream.drain(max_wait=0, first_wait=first_wait)
            collected += drained_numbers(drained)
            assert drained.positions.splits["a"].position == (
                Cursor(len(collected)) if collected else Horizon()
            )
    check_delivery([log], collected)


@in_virtual_time
async def test_the_failure_of_a_stream_ends_the_wait_for_the_first_record() -> None:
    log = Log(split=A, faults=(Break(1, FatalError("gone")),))
    async with fanout.open(ScriptedSource(logs=[log])) as stream:
        assert (await stream.drain(max_wait=1.0)).batches == ()
        with pytest.raises(SplitFailedError, match="gone"):
            await stream.drain(first_wait=3600.0)
        assert asyncio.get_running_loop().time() == 5.0  # after the first heartbeat


@pytest.mark.parametrize(
    "limits",
    [{"max_records": 0}, {"max_bytes": 0}, {"max_wait": -1.0}, {"first_wait": -1.0}],
)
@in_virtual_time
async def test_limits_of_drain_that_make_no_sense_are_refused(limits: dict[str, int]) -> None:
    async with fanout.open(ScriptedSource(logs=[])) as stream:
        with pytest.raises(OptionError):
            await stream.drain(**limits)


async def give_up_draining(stream: fanout.FanOut) -> None:
    """Cancel a drain that has collected what there is, and waits for more."""
    with suppress(TimeoutError):
        async with asyncio.timeout(5.0):
            await stream.drain(max_wait=3600.0)


@pytest.mark.fault("The caller of a read is gone when its batch is ready")
@in_virtual_time
async def test_what_a_cancelled_drain_has_collected_is_returned_in_order() -> None:
    log = Log(split=A, entries=(1, 2, 3, 4, 5, 6))
    collected: list[tuple[str, int]] = []
    async with fanout.open(ScriptedSource(logs=[log])) as stream:
        await give_up_draining(stream)
        for _ in range(6):
            collected += drained_numbers(await stream.drain(max_records=1))
    check_delivery([log], collected)


@in_virtual_time
async def test_what_a_cancelled_drain_has_collected_does_not_count_as_delivered() -> None:
    log = Log(split=A, entries=(1, 2, 3, 4))
    async with fanout.open(ScriptedSource(logs=[log])) as stream:
        await give_up_draining(stream)
        positions = [stream.delivered.splits["a"].position]
        assert stream.statistics().records == 0
        await stream.drain()
        positions.append(stream.delivered.splits["a"].position)
        assert stream.statistics().records == 4
    assert positions == [Horizon(), Cursor(4)]


@in_virtual_time
async def test_idle_progress_moves_the_positions_while_drain_waits_for_the_first_record() -> None:
    log = Log(split=A, entries=(Idle(7), Idle(9)))
    async with fanout.open(ScriptedSource(logs=[log])) as stream, asyncio.TaskGroup() as tasks:
        draining = tasks.create_task(stream.drain())
        await asyncio.sleep(1)
        assert Checkpoint.from_json(stream.positions).splits["a"].position == Cursor(9)
        draining.cancel()


WITH_A_LOSS = Log(
    split=A,
    entries=(1, 2, Idle(5), 6, 7),
    per_event=1,
    event_delay=1,
    faults=(Break(2, VerdictError(Skip(Cursor(4), "expired"))),),
)


def gap_reasons(batch: Batch) -> list[str]:
    return [gap.reason for gap in batch.gaps]


@pytest.mark.parametrize("way", ["iterate", "drain"])
@in_virtual_time
async def test_a_loss_before_idle_progress_is_told_by_the_next_batch_with_records(way: str) -> None:
    async with fanout.open(ScriptedSource(logs=[WITH_A_LOSS]), random=seeded()) as stream:
        seen: list[Batch] = []
        while len(seen) < 4:
            if way == "iterate":
                seen.append(await anext(stream))
            else:
                seen += (await stream.drain(max_wait=20.0)).batches
        assert [numbers(batch) for batch in seen] == [[("a", n)] for n in (1, 2, 6, 7)]
        assert [gap_reasons(batch) for batch in seen] == [[], [], ["expired"], []]
        assert stream.statistics().gaps == 1


@in_virtual_time
async def test_a_loss_is_told_although_the_drain_that_collected_it_was_cancelled() -> None:
    async with fanout.open(ScriptedSource(logs=[WITH_A_LOSS]), random=seeded()) as stream:
        with suppress(TimeoutError):
            async with asyncio.timeout(50):
                await stream.drain(max_wait=600.0)
        assert stream.statistics().gaps == 0
        drained = await stream.drain(max_wait=0.0)
        assert [gap_reasons(batch) for batch in drained.batches] == [[], [], ["expired"], []]
        assert stream.statistics().gaps == 1


def test_the_positions_stay_before_a_loss_until_it_is_told() -> None:
    """A run that ends before it has reported a loss leaves that to the next one."""
    idle = replace(WITH_A_LOSS, entries=(1, 2, Idle(5)))

    async def read() -> None:
        async with fanout.open(ScriptedSource(logs=[idle]), random=seeded()) as stream:
            for _ in range(2):
                await stream.acknowledge(await anext(stream))
            assert await nothing_comes(stream)
            assert stream.statistics().gaps == 1
            for message in (stream.positions, stream.delivered.to_json()):
                assert Checkpoint.from_json(message).splits["a"].position == Cursor(2)
            assert stream.caught_up

    simulate(read)


@in_virtual_time
async def test_draining_and_iterating_take_turns_without_losing_order() -> None:
    log = Log(split=A, entries=tuple(range(1, 21)), per_event=4)
    async with fanout.open(ScriptedSource(logs=[log])) as stream:
        collected: list[tuple[str, int]] = []
        while len(collected) < 20:
            collected += drained_numbers(await stream.drain(max_records=3))
            if len(collected) < 20:
                collected += numbers(await anext(stream))
    check_delivery([log], collected)


@in_virtual_time
async def test_a_stream_has_caught_up_when_every_split_was_at_its_tip() -> None:
    logs = (
        Log(split=A, entries=(1, 2), ends=True, children=(LEFT,), event_delay=10.0),
        Log(split=LEFT, entries=(3, 4), per_event=1, event_delay=10.0),
    )
    async with fanout.open(ScriptedSource(logs=logs)) as stream:
        caught_up = []
        for _ in range(3):
            await anext(stream)
            caught_up.append(stream.caught_up)
    assert caught_up == [False, False, True]


@in_virtual_time
async def test_statistics_tell_what_each_split_is_doing() -> None:
    logs = (
        Log(split=A, entries=(1, 2), faults=(Stop(1),)),
        Log(split=B, faults=(NoAnswer(),)),
        Log(split=LEFT, entries=(3,)),
    )
    async with fanout.open(ScriptedSource(logs=logs), random=seeded()) as stream:
        await anext(stream)
        await asyncio.sleep(1)
        statistics = stream.statistics()
        assert repr(stream) == "<FanOut running, 0 live of 3 splits>"
    states = {split_id: split.state for split_id, split in statistics.splits.items()}
    assert states == {
        "a": SplitState.BACKING_OFF,
        "b": SplitState.SUBSCRIBING,
        "left": SplitState.WAITING,
    }
    assert (statistics.records, statistics.resubscriptions, statistics.lag) == (2, 1, None)
    assert statistics.splits["a"].position == Cursor(2)
    after = stream.statistics().splits.values()
    assert {split.state for split in after} == {SplitState.STOPPED, SplitState.WAITING}


@in_virtual_time
async def test_memory_is_bounded_by_the_pacing_while_the_consumer_sleeps() -> None:
    logs = [Log(split=Split(str(i)), entries=tuple(range(1, 9)), size=500) for i in range(40)]
    pacing = replace(PACING, max_bytes_in_flight=8000)
    async with fanout.open(ScriptedSource(logs=logs, pacing=pacing)) as stream:
        collected: list[tuple[str, int]] = []
        while len(collected) < 320:
            await asyncio.sleep(100.0)
            assert 0 < stream.statistics().bytes_in_flight <= 8000
            collected += drained_numbers(await stream.drain(max_records=50, max_wait=0))
    check_delivery(logs, collected)


@in_virtual_time
async def test_a_closed_stream_holds_no_memory() -> None:
    async with fanout.open(ScriptedSource(logs=FAMILY), random=seeded()) as stream:
        await asyncio.sleep(30)
        assert stream.statistics().bytes_in_flight > 0
    assert stream.statistics().bytes_in_flight == 0


@in_virtual_time
async def test_a_stream_whose_closing_is_cancelled_holds_no_memory() -> None:
    limit = asyncio.timeout(None)
    with suppress(TimeoutError):
        async with limit, fanout.open(ScriptedSource(logs=FAMILY), random=seeded()) as stream:
            await asyncio.sleep(30)
            assert stream.statistics().bytes_in_flight > 0
            limit.reschedule(0)
    assert limit.expired()
    assert stream.statistics().bytes_in_flight == 0


@in_virtual_time
async def test_nothing_outlives_the_stream() -> None:
    source = ScriptedSource(logs=FAMILY, close_after=0.5)
    async with fanout.open(source) as stream:
        await take(stream, 5)
    assert source.live.total() == 0
    assert source.broken == []
    assert asyncio.all_tasks() == {asyncio.current_task()}
