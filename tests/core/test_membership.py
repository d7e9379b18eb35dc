"""What a stream does with splits that a group gives it and takes back."""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

import fanout
from fanout.core.checkpoint import Checkpoint
from fanout.core.drain import Basket
from fanout.core.events import End, Split
from fanout.core.membership import SharedSplits
from fanout.core.positions import Cursor, Horizon
from fanout.core.statistics import CommitStatistics
from fanout.errors import (
    OptionError,
    ServiceError,
    SplitLostError,
    StreamStateError,
)
from tests.support.scripted_source import Log, ScriptedSource, seeded, sequences
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from fanout.core.membership import SplitHolder
    from fanout.core.positions import Position

A, B = Split("a"), Split("b")
LOGS = (
    Log(split=A, entries=(1, 2, 3, 4), per_event=1),
    Log(split=B, entries=(1, 2, 3, 4), per_event=1),
)


class Member:
    """A membership whose test is the referee; a group too, as there is one process."""

    group = "shop"
    commits = CommitStatistics()

    def __init__(self) -> None:
        self.valid_until = math.inf
        self.stored: list[dict[str, Position]] = []
        self.ended: list[End] = []
        self.fault: Exception | None = None
        self._ownership: asyncio.Future[SplitHolder] | None = None
        self._failing = asyncio.Event()

    @asynccontextmanager
    async def join(self, *_: object) -> AsyncIterator[Member]:
        self._ownership = asyncio.get_running_loop().create_future()
        yield self

    async def take_part(self, ownership: SplitHolder) -> None:
        assert self._ownership is not None
        self._ownership.set_result(ownership)
        await self._failing.wait()
        assert self.fault is not None
        raise self.fault

    def store(self, positions: Mapping[str, Position]) -> None:
        self.stored.append(dict(positions))

    def finish(self, end: End) -> None:
        self.ended.append(end)

    async def ownership(self) -> SplitHolder:
        assert self._ownership is not None
        return await asyncio.shield(self._ownership)

    async def grant(self, *splits: Split, position: Position = Horizon()) -> None:  # noqa: B008 - frozen
        ownership = await self.ownership()
        for split in splits:
            ownership.grant(split, position)

    def fail(self, error: Exception) -> None:
        self.fault = error
        self._failing.set()


@asynccontextmanager
async def sharing(member: Member, **options: Any) -> AsyncIterator[fanout.FanOut]:
    source = ScriptedSource(logs=LOGS)
    async with fanout.open(source, group=member, random=seeded(), **options) as stream:
        yield stream
    assert source.broken == []
    assert not source.live.total()


async def nothing_comes(stream: fanout.FanOut) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(600):
            await anext(stream)
            return False
    return True


async def of(stream: fanout.FanOut, *split_ids: str, count: int) -> list[tuple[str, int]]:
    taken: list[tuple[str, int]] = []
    while len(taken) < count:
        batch = await anext(stream)
        assert batch.split.id in split_ids
        taken += [(batch.split.id, number) for number in sequences(batch)]
        await stream.acknowledge(batch)
    return taken


@in_virtual_time
async def test_only_what_was_granted_is_read() -> None:
    member = Member()
    async with sharing(member) as stream:
        assert await nothing_comes(stream)
        await member.grant(A)
        assert await of(stream, "a", count=4) == [("a", n) for n in (1, 2, 3, 4)]
        assert await nothing_comes(stream)
        await member.grant(B, position=Cursor(2))
        assert await of(stream, "b", count=2) == [("b", 3), ("b", 4)]
        assert member.stored[-1] == {"b": Cursor(4)}
        found = stream.statistics().membership
        assert found is not None
        assert (found.owned, found.granted, found.handed_over, found.lost) == (2, 2, 0, 0)
        assert stream.statistics().splits.keys() == {"a", "b"}


@in_virtual_time
async def test_nothing_is_delivered_of_a_split_that_is_handed_over() -> None:
    member = Member()
    async with sharing(member) as stream:
        await member.grant(A)
        first = await anext(stream)
        ownership = await member.ownership()
        handing = asyncio.create_task(ownership.hand_over(["a"], math.inf))
        assert await nothing_comes(stream)
        assert not handing.done()  # what was delivered is not acknowledged
        await stream.acknowledge(first)
        await handing
        assert member.stored == [{"a": Cursor(1)}]
        assert stream.statistics().splits == {}
        await stream.acknowledge(first)  # it is stored already
        await member.grant(A, position=Cursor(1))
        assert await of(stream, "a", count=3) == [("a", 2), ("a", 3), ("a", 4)]


@in_virtual_time
async def test_a_hand_over_ends_in_time() -> None:
    member = Member()
    async with sharing(member) as stream:
        await member.grant(A, B)
        batch = await anext(stream)
        loop = asyncio.get_running_loop()
        until = loop.time() + 30
        await (await member.ownership()).hand_over([batch.split.id], until)
        assert loop.time() == until
        with pytest.raises(SplitLostError, match=f"has given {batch.split.id} to another") as told:
            await stream.acknowledge(batch)
        assert told.value.splits == (batch.split.id,)
        assert member.stored == []


@in_virtual_time
async def test_a_reader_that_collects_gets_nothing_of_what_has_left() -> None:
    member = Member()
    async with sharing(member) as stream:
        await member.grant(A, B)
        draining = asyncio.create_task(stream.drain(max_wait=60))
        await asyncio.sleep(30)  # all of it is collected
        await (await member.ownership()).hand_over(["a"], math.inf)
        drained = await draining
        assert {batch.split.id for batch in drained.batches} == {"b"}
        assert drained.num_records == 4
        assert drained.positions.splits.keys() == {"b"}
        await member.grant(A)
        assert (await stream.drain(max_wait=1)).num_records == 4


@in_virtual_time
async def test_what_was_collected_does_not_come_back_to_another_ownership() -> None:
    """A drain is cancelled, and gives back what it has collected: not what has left."""
    member = Member()
    async with sharing(member) as stream:
        await member.grant(A)
        draining = asyncio.create_task(stream.drain(max_wait=math.inf))
        await asyncio.sleep(30)
        ownership = await member.ownership()
        await ownership.lose(["a"])
        await member.grant(A)
        draining.cancel()
        with suppress(asyncio.CancelledError):
            await draining
        assert await of(stream, "a", count=4) == [("a", n) for n in (1, 2, 3, 4)]


@in_virtual_time
async def test_nothing_is_delivered_when_the_time_has_run_out() -> None:
    member = Member()
    async with sharing(member) as stream:
        await member.grant(A)
        await asyncio.sleep(30)
        loop = asyncio.get_running_loop()
        member.valid_until = loop.time()
        assert await nothing_comes(stream)
        drained = asyncio.create_task(stream.drain(max_wait=1))
        await asyncio.sleep(5)
        member.valid_until = math.inf
        await (await member.ownership()).lose(["a"])
        assert (await drained).batches == ()
        await member.grant(A)
        assert await of(stream, "a", count=4) == [("a", n) for n in (1, 2, 3, 4)]


@in_virtual_time
async def test_a_drain_whose_time_runs_out_waits_for_the_decision() -> None:
    member = Member()
    async with sharing(member) as stream:
        await member.grant(A, B)
        loop = asyncio.get_running_loop()
        member.valid_until = loop.time() + 40
        draining = asyncio.create_task(stream.drain(max_wait=60))
        await asyncio.sleep(70)
        assert not draining.done()
        member.valid_until = math.inf
        await (await member.ownership()).lose(["a", "b"])
        assert (await draining).batches == ()
        await member.grant(B)
        assert await of(stream, "b", count=4) == [("b", n) for n in (1, 2, 3, 4)]


@in_virtual_time
async def test_an_acknowledgement_whose_time_has_run_out_waits_for_the_decision() -> None:
    member = Member()
    async with sharing(member) as stream:
        await member.grant(A, B)
        drained = await stream.drain(max_wait=30)
        ownership = await member.ownership()
        handing = asyncio.create_task(ownership.hand_over(["a"], math.inf))
        await asyncio.sleep(1)
        member.valid_until = asyncio.get_running_loop().time()
        acknowledging = asyncio.create_task(stream.acknowledge(drained))
        await asyncio.sleep(70)
        assert not acknowledging.done()
        await ownership.lose(["a"])
        await asyncio.sleep(70)
        assert not acknowledging.done()  # nothing is known of the other
        member.valid_until = math.inf  # a renewal that was under way is answered
        with pytest.raises(SplitLostError, match="given a to another process"):
            await acknowledging
        await handing
        assert member.stored == [{"b": Cursor(4)}]


@in_virtual_time
async def test_an_acknowledgement_that_is_cancelled_while_it_waits_stores_nothing() -> None:
    member = Member()
    async with sharing(member) as stream:
        await member.grant(A)
        drained = await stream.drain(max_wait=30)
        member.valid_until = asyncio.get_running_loop().time()
        acknowledging = asyncio.create_task(stream.acknowledge(drained))
        await asyncio.sleep(70)
        acknowledging.cancel()
        await asyncio.wait([acknowledging])
        assert acknowledging.cancelled()
        assert member.stored == []
        member.valid_until = math.inf
        await stream.acknowledge(drained)
        assert len(member.stored) == 1


@in_virtual_time
async def test_an_acknowledgement_is_not_taken_when_nobody_can_decide_any_more() -> None:
    member = Member()
    async with sharing(member) as stream:
        await member.grant(A)
        drained = await stream.drain(max_wait=30)
        member.valid_until = asyncio.get_running_loop().time()
        acknowledging = asyncio.create_task(stream.acknowledge(drained))
        await asyncio.sleep(1)
        member.fail(ServiceError("refused"))
        with pytest.raises(ServiceError, match="refused"):
            await acknowledging
    assert member.stored == []


@in_virtual_time
async def test_a_lost_split_is_named_and_the_others_are_acknowledged() -> None:
    member = Member()
    async with sharing(member) as stream:
        await member.grant(A, B)
        drained = await stream.drain(max_wait=30)
        await (await member.ownership()).lose(["a"])
        with pytest.raises(SplitLostError, match="group shop has given a to another") as told:
            await stream.acknowledge(drained)
        assert told.value.splits == ("a",)
        assert member.stored == [{"b": Cursor(4)}]
        found = stream.statistics().membership
        assert found is not None
        assert (found.owned, found.lost) == (1, 1)


@in_virtual_time
async def test_a_batch_of_before_the_loss_is_no_batch_of_now() -> None:
    member = Member()
    async with sharing(member) as stream:
        await member.grant(A)
        drained = await stream.drain(max_wait=30)
        await (await member.ownership()).lose(["a"])
        await member.grant(A)
        with pytest.raises(SplitLostError):
            await stream.acknowledge(drained)
        again = await stream.drain(max_wait=30)
        await stream.acknowledge(again)
        await stream.acknowledge(drained)  # all of it is acknowledged by now
        assert member.stored == [{"a": Cursor(4)}]


@in_virtual_time
async def test_what_was_acknowledged_of_a_lost_split_is_not_taken_for_stored() -> None:
    member = Member()
    async with sharing(member) as stream:
        await member.grant(A)
        drained = await stream.drain(max_wait=30)
        await stream.acknowledge(drained)
        await (await member.ownership()).lose(["a"])
        with pytest.raises(SplitLostError):
            await stream.acknowledge(drained)


@in_virtual_time
async def test_what_a_drain_has_collected_is_not_kept_when_it_has_ended() -> None:
    asked: list[str] = []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Basket, "drop", lambda _, split_id: asked.append(split_id))
        member = Member()
        async with sharing(member) as stream:
            await member.grant(A, B)
            await stream.drain(max_wait=30)
            await (await member.ownership()).lose(["a"])
            assert asked == []
            draining = asyncio.create_task(stream.drain(max_wait=30))
            await asyncio.sleep(1)
            await (await member.ownership()).lose(["b"])
            assert asked == ["b"]
            await draining


@in_virtual_time
async def test_a_hand_over_ends_when_the_split_is_lost() -> None:
    member = Member()
    async with sharing(member) as stream:
        await member.grant(A)
        await anext(stream)
        ownership = await member.ownership()
        handing = asyncio.create_task(ownership.hand_over(["a"], math.inf))
        await asyncio.sleep(1)
        await ownership.lose(["a"])
        async with asyncio.timeout(1):
            await handing
        found = stream.statistics().membership
        assert found is not None
        assert (found.handed_over, found.lost) == (0, 1)


@in_virtual_time
async def test_a_function_of_the_user_has_the_splits_before_they_go() -> None:
    member = Member()
    told: list[tuple[Split, ...]] = []

    async def on_revoked(splits: tuple[Split, ...]) -> None:
        told.append(splits)
        await asyncio.sleep(5)
        await stream.acknowledge(last)

    async with sharing(member, on_revoked=on_revoked) as stream:
        await member.grant(A)
        last = await anext(stream)
        await (await member.ownership()).hand_over(["a"], math.inf)
        assert told == [(A,)]
        assert member.stored == [{"a": Cursor(1)}]


@in_virtual_time
async def test_an_error_of_that_function_ends_the_stream() -> None:
    async def on_revoked(_: tuple[Split, ...]) -> None:
        raise KeyError("users")

    member = Member()
    async with sharing(member, on_revoked=on_revoked) as stream:
        await member.grant(A)
        await of(stream, "a", count=4)
        with pytest.raises(OptionError, match="the function on_revoked raised KeyError") as told:
            await (await member.ownership()).hand_over(["a"], math.inf)
        assert isinstance(told.value.__cause__, KeyError)


@in_virtual_time
async def test_a_slow_function_is_cancelled_in_time() -> None:
    ended: list[str] = []

    async def on_revoked(_: tuple[Split, ...]) -> None:
        try:
            await asyncio.sleep(math.inf)
        finally:
            ended.append("cancelled")

    member = Member()
    async with sharing(member, on_revoked=on_revoked) as stream:
        await member.grant(A)
        await of(stream, "a", count=4)
        now = asyncio.get_running_loop().time()
        await (await member.ownership()).hand_over(["a"], now + 7)
        assert ended == ["cancelled"]
        assert asyncio.get_running_loop().time() == now + 7


@pytest.mark.parametrize("error", [ServiceError("refused for good"), OSError("a cable")])
@in_virtual_time
async def test_an_error_of_the_group_ends_the_stream(error: Exception) -> None:
    member = Member()
    async with sharing(member) as stream:
        await member.grant(A)
        await asyncio.sleep(30)
        member.fail(error)
        await asyncio.sleep(1)
        assert len(await of(stream, "a", count=1)) == 1  # what is buffered can be taken
        with pytest.raises(ServiceError) as told:
            await anext(stream)
        assert told.value is error or told.value.__cause__ is error


@in_virtual_time
async def test_a_stream_of_a_group_is_acknowledged_by_its_own_batches() -> None:
    member, other = Member(), Member()
    async with sharing(member) as stream, sharing(other) as second:
        await member.grant(A)
        await other.grant(B)
        with pytest.raises(SplitLostError):
            await stream.acknowledge(await anext(second))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"resume": "{}"}, "resume and group cannot be used together"),
        ({"available_now": True}, "available_now and group cannot be used together"),
        ({"on_revoked": print}, "must be an async function of a tuple of splits"),
    ],
)
@in_virtual_time
async def test_what_a_group_decides_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        async with sharing(Member(), **options):
            raise AssertionError("it is open")


@in_virtual_time
async def test_what_is_about_a_group_needs_one() -> None:
    async def on_revoked(_: tuple[Split, ...]) -> None: ...

    with pytest.raises(OptionError, match="on_revoked is about a group"):
        async with fanout.open(ScriptedSource(logs=LOGS), on_revoked=on_revoked):
            raise AssertionError("it is open")


@in_virtual_time
async def test_a_bounded_source_is_refused() -> None:
    with pytest.raises(OptionError, match="a group reads without an end"):
        async with fanout.open(ScriptedSource(logs=LOGS, bounded=True), group=Member()):
            raise AssertionError("it is open")


@in_virtual_time
async def test_a_closed_stream_has_left() -> None:
    member = Member()
    async with sharing(member) as stream:
        await member.grant(A)
        batch = await anext(stream)
    with pytest.raises(StreamStateError):
        await anext(stream)
    with pytest.raises(StreamStateError, match="is closed"):  # nobody stores it any more
        await stream.acknowledge(batch)
    assert member.stored == []


@pytest.mark.parametrize("after", [0, 1, 2, 3, 5, 8, 13, 29, 31])
@in_virtual_time
async def test_a_stream_can_be_cancelled_at_any_time(after: int) -> None:
    member = Member()

    async def read() -> None:
        async with sharing(member) as stream:
            await member.grant(A, B)
            drained = await stream.drain(max_wait=30)
            await stream.acknowledge(drained)
            await (await member.ownership()).hand_over(["a"], math.inf)
            await stream.drain(max_wait=math.inf, first_wait=math.inf)

    reading = asyncio.create_task(read())
    await asyncio.sleep(after)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


@in_virtual_time
async def test_the_end_of_a_split_is_told_when_all_before_it_is_acknowledged() -> None:
    member, split = Member(), Split("c")
    logs = (Log(split=split, entries=(1, 2), per_event=1, ends=True, children=(A,)),)
    source = ScriptedSource(logs=logs)
    async with fanout.open(source, group=member, random=seeded()) as stream:
        await member.grant(split)
        first, second = await anext(stream), await anext(stream)
        assert await nothing_comes(stream)
        assert member.ended == []
        await stream.acknowledge(first)
        assert member.ended == []
        await stream.acknowledge(second)
        assert [(end.split, end.children) for end in member.ended] == [(split, (A,))]
        await stream.acknowledge(second)  # it is stored already
        found = stream.statistics().membership
        assert found is not None
        assert (found.owned, found.granted, found.handed_over, found.lost) == (0, 1, 0, 0)
        await member.grant(split, position=Cursor(2))  # its end was not stored in time
        assert await nothing_comes(stream)
        assert len(member.ended) == 2


@in_virtual_time
async def test_the_end_of_a_split_that_has_just_left_is_nobodys() -> None:
    member, split = Member(), Split("c")
    source = ScriptedSource(logs=(Log(split=split, entries=(1,), per_event=1, ends=True),))
    async with fanout.open(source, group=member, random=seeded()) as stream:
        await member.grant(split)
        batch = await anext(stream)
        await asyncio.sleep(60)  # its end waits to be taken
        holder = await member.ownership()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(holder.lose(["c"]))
            tasks.create_task(nothing_comes(stream))
        with pytest.raises(fanout.SplitLostError):
            await stream.acknowledge(batch)
        assert member.ended == []


@in_virtual_time
async def test_a_drain_tells_of_an_end_behind_everything() -> None:
    member, split = Member(), Split("c")
    source = ScriptedSource(logs=(Log(split=split, entries=(1, 2), per_event=1, ends=True),))
    async with fanout.open(source, group=member, random=seeded()) as stream:
        await member.grant(split)
        drained = await stream.drain(max_wait=60)
        assert drained.num_records == 2
        assert member.ended == []
        await stream.acknowledge(drained)
        assert [end.split for end in member.ended] == [split]


def shared_of(stream: fanout.FanOut) -> SharedSplits:
    shared = stream.delivered.shared
    assert isinstance(shared, SharedSplits)
    return shared


def delivered(stream: fanout.FanOut) -> dict[str, Position]:
    return {id_: state.position for id_, state in stream.delivered.splits.items()}


@in_virtual_time
async def test_a_transaction_stores_what_was_delivered() -> None:
    member = Member()
    async with sharing(member) as stream:
        await member.grant(A, B)
        drained = await stream.drain(max_wait=1)
        shared, positions = shared_of(stream), delivered(stream)
        assert drained.positions.shared is shared
        assert shared.claim(positions) == {"a": Cursor(4), "b": Cursor(4)}
        handing = asyncio.create_task((await member.ownership()).hand_over(["a"], math.inf))
        await asyncio.sleep(1)
        assert shared.claim(positions) == {"a": Cursor(4), "b": Cursor(4)}  # it is ours still
        shared.settle(positions)
        await handing
        assert shared.claim(positions) == {}
        assert member.stored == []  # the transaction has done it
        assert Checkpoint.from_json(stream.positions).splits["b"].position == Cursor(4)


@in_virtual_time
async def test_a_transaction_misses_what_has_left_before_it() -> None:
    member = Member()
    async with sharing(member) as stream:
        await member.grant(A, B)
        await stream.drain(max_wait=1)
        await (await member.ownership()).lose(["a"])
        # The positions of later drains have nothing of it.
        with pytest.raises(SplitLostError, match="so the transaction is aborted") as told:
            shared_of(stream).claim(delivered(stream))
        assert told.value.splits == ("a",)
        await shared_of(stream).deliver_again()
        assert await of(stream, "b", count=4) == [("b", n) for n in (1, 2, 3, 4)]
        assert shared_of(stream).claim(delivered(stream)) == {}


@in_virtual_time
async def test_what_comes_again_leaves_at_once() -> None:
    """Nothing of it is with the user, so there is nothing to wait for."""
    member = Member()
    async with sharing(member) as stream:
        await member.grant(A, B)
        await of(stream, "a", "b", count=1)
        await stream.drain(max_wait=1)
        handing = asyncio.create_task((await member.ownership()).hand_over(["a"], math.inf))
        await asyncio.sleep(1)
        assert not handing.done()
        await shared_of(stream).deliver_again()
        await handing
        assert {batch.split.id for batch in (await stream.drain(max_wait=1)).batches} == {"b"}


@in_virtual_time
async def test_what_was_delivered_before_an_abort_counts_no_more() -> None:
    member = Member()
    async with sharing(member) as stream:
        await member.grant(A)
        await stream.drain(max_wait=1)
        before = delivered(stream)
        await shared_of(stream).deliver_again()
        with pytest.raises(SplitLostError):
            shared_of(stream).claim(before)


@in_virtual_time
async def test_it_comes_again_although_the_abort_is_cancelled() -> None:
    member = Member()
    async with sharing(member) as stream:
        await member.grant(A, B)
        await stream.drain(max_wait=1)
        aborting = asyncio.create_task(shared_of(stream).deliver_again())
        await asyncio.sleep(0)
        aborting.cancel()
        assert (await stream.drain(max_wait=1)).num_records == 8


@in_virtual_time
async def test_after_the_stream_nothing_is_claimed() -> None:
    member = Member()
    async with sharing(member) as stream:
        await member.grant(A)
        await stream.drain(max_wait=1)
        positions = delivered(stream)
    with pytest.raises(SplitLostError):
        shared_of(stream).claim(positions)
    await shared_of(stream).deliver_again()
