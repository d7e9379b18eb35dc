from __future__ import annotations

import asyncio

import pytest

from fanout.core.events import Batch, End, Failure
from fanout.core.lineage import Split
from fanout.core.positions import Cursor, Range
from fanout.core.slot import Slot
from fanout.errors import SplitFailedError
from fanout.testing.simulation import Cancellation, simulate, sweep
from tests.core.scripted import Log, record_batch

A = Split("a")


def batch(sequence: int) -> Batch:
    covered = Range(Cursor(sequence - 1), Cursor(sequence))
    return Batch(A, record_batch(Log(split=A), [sequence]), covered)


def pill(reason: str) -> Failure:
    return Failure(A, SplitFailedError(reason))


def test_an_event_is_taken_with_its_cost() -> None:
    async def main() -> None:
        ready: list[Slot] = []
        slot, event = Slot(ready.append), batch(1)
        await slot.put(event, 7)
        assert slot.occupied
        assert ready == [slot]
        assert slot.take() == (event, 7)
        assert not slot.occupied

    simulate(main)


def test_a_full_slot_makes_its_subscriber_wait() -> None:
    async def main() -> None:
        loop, slot = asyncio.get_running_loop(), Slot(lambda _: None)
        await slot.put(batch(1))
        loop.call_later(3600, slot.take)
        await slot.put(End(A))
        assert loop.time() == 3600
        assert slot.take() == (End(A), 0)

    simulate(main)


def test_the_pill_needs_no_room_and_is_taken_after_the_buffered_event() -> None:
    async def main() -> None:
        ready: list[Slot] = []
        slot, event, failure = Slot(ready.append), batch(1), pill("gone")
        await slot.put(event, 7)
        slot.fail(failure)
        assert slot.pill is failure
        assert [ready_slot.take() for ready_slot in ready] == [(event, 7), (failure, 0)]

    simulate(main)


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
