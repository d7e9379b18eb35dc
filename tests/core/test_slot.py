from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fanout.core.events import Batch, End, Failure, Split
from fanout.core.positions import Cursor, Range
from fanout.core.slot import Slot
from fanout.errors import SplitFailedError
from fanout.testing.virtual_time.cancellation import Cancellation, sweep
from fanout.testing.virtual_time.loop import SimLoop
from tests.support.scripted_source import Log, record_batch
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from fanout.core.events import Event

A = Split("a")


def batch(sequence: int) -> Batch:
    covered = Range(Cursor(sequence - 1), Cursor(sequence))
    return Batch(A, record_batch(Log(split=A), [sequence]), covered)


def pill(reason: str) -> Failure:
    return Failure(A, SplitFailedError(reason))


@in_virtual_time
async def test_an_event_is_taken_with_its_cost() -> None:
    ready: list[Slot] = []
    slot, event = Slot(ready.append), batch(1)
    await slot.put(event, 7)
    assert slot.occupied
    assert ready == [slot]
    assert slot.take() == (event, 7)
    assert not slot.occupied


@pytest.mark.fault("The service sends far more than was asked for")
@in_virtual_time
async def test_a_full_slot_makes_its_subscriber_wait() -> None:
    loop, slot = asyncio.get_running_loop(), Slot(lambda _: None)
    await slot.put(batch(1))
    loop.call_later(3600, slot.take)
    await slot.put(End(A))
    assert loop.time() == 3600
    assert slot.take() == (End(A), 0)


@in_virtual_time
async def test_the_pill_needs_no_room_and_is_taken_after_the_buffered_event() -> None:
    ready: list[Slot] = []
    slot, event, failure = Slot(ready.append), batch(1), pill("gone")
    await slot.put(event, 7)
    slot.fail(failure)
    assert slot.pill is failure
    assert [ready_slot.take() for ready_slot in ready] == [(event, 7), (failure, 0)]


@pytest.mark.fault("Several errors come at once")
def test_the_first_pill_wins() -> None:
    ready: list[Slot] = []
    slot, first = Slot(ready.append), pill("first")
    slot.fail(first)
    slot.fail(pill("second"))
    assert slot.pill is first
    assert ready == [slot]


def test_a_slot_that_is_not_ready_cannot_be_taken_from() -> None:
    with pytest.raises(AssertionError):
        Slot(lambda _: None).take()


def test_a_cancelled_put_has_put_all_or_nothing() -> None:
    async def scenario(cancellation: Cancellation) -> None:
        ready: list[Slot] = []
        slot, put = Slot(ready.append), list[int]()

        async def fill() -> None:
            for sequence in (1, 2, 3):
                await slot.put(batch(sequence), sequence)
                put.append(sequence)

        async with asyncio.TaskGroup() as tasks:
            filling = tasks.create_task(cancellation.run(fill()))
            taken: list[int] = []
            while not (filling.done() and not ready):
                await asyncio.sleep(1)
                while ready:
                    taken.append(ready.pop(0).take()[1])
                    assert put[: len(taken)] == taken
        assert taken == put
        assert cancellation.fired or put == [1, 2, 3]
        await slot.put(batch(4))

    assert sweep(scenario) == 7


class SlotMachine(RuleBasedStateMachine):
    """One subscriber that puts and is cancelled, and one reader, in any order of their steps.

    The model: what `put` has returned for and is not taken yet, and the first pill.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = SimLoop()
        self.ready: list[Slot] = []
        self.slot = Slot(self.ready.append)
        self.number = 0
        self.putting: asyncio.Task[None] | None = None
        self.offered: tuple[End, int] = (End(A), 0)
        self.buffered: tuple[Event, int] | None = None
        self.pill: Failure | None = None
        self.pill_taken = False

    @precondition(lambda self: self.putting is None)
    @rule(cost=st.integers(0, 9))
    def put(self, cost: int) -> None:
        self.number += 1
        self.offered = End(Split(str(self.number))), cost
        self.putting = self.loop.create_task(self.slot.put(*self.offered))

    @precondition(lambda self: self.putting)
    @rule()
    def cancel(self) -> None:
        assert self.putting is not None
        self.putting.cancel()

    @rule(subscribe_limit=st.integers(1, 3))
    def run(self, subscribe_limit: int) -> None:
        for _ in range(subscribe_limit):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
        if self.putting is not None and self.putting.done():
            if not self.putting.cancelled():
                self.putting.result()
                assert self.buffered is None, "the event before was evicted"
                self.buffered = self.offered
            self.putting = None

    @rule()
    def run_until_all_wait(self) -> None:
        self.run(5)
        assert self.putting is None or self.buffered is not None, (
            "a vacant slot keeps a put waiting"
        )

    @rule(reason=st.text(max_size=3))
    def fail(self, reason: str) -> None:
        failure = pill(reason)
        self.slot.fail(failure)
        self.pill = self.pill or failure

    @precondition(lambda self: self.ready)
    @rule()
    def take(self) -> None:
        taken = self.ready.pop().take()
        if self.buffered is not None:
            assert taken == self.buffered
            self.buffered = None
        else:
            assert taken == (self.pill, 0)
            self.pill_taken = True

    @invariant()
    def the_slot_holds_what_was_put_and_not_taken(self) -> None:
        assert self.slot.occupied == (self.buffered is not None)
        assert self.slot.pill is self.pill

    @invariant()
    def the_reader_is_told_once_of_each_thing_to_take(self) -> None:
        pill_waits = self.pill is not None and not self.pill_taken
        assert len(self.ready) == (self.buffered is not None) + pill_waits

    def teardown(self) -> None:
        with closing(self.loop):
            while self.ready or self.putting is not None:
                self.run_until_all_wait()
                if self.ready:
                    self.take()
            self.loop.check_leaks()


TestSlotMachine = pytest.mark.long(SlotMachine.TestCase)
TestSlotMachine.settings = settings(max_examples=2 * settings().max_examples)
