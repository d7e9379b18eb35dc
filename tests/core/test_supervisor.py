from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from fanout.core.backoff import FullJitter
from fanout.core.events import Batch, End, Failure, Split
from fanout.core.lifecycle_log import LifecycleLog
from fanout.core.lineage import Lineage
from fanout.core.opening import Supervisor
from fanout.core.policy import Phase
from fanout.core.positions import Cursor, Horizon, Timestamp
from fanout.core.progress import Progress
from fanout.core.source import Capabilities
from fanout.core.subscribers import Subscribers
from fanout.errors import MalformedEventError, ServiceError, SplitFailedError
from fanout.testing.virtual_time.loop import simulate
from tests.support.scripted_source import (
    LISTED_EVERY,
    PACING,
    BadClose,
    Break,
    FlakyError,
    Log,
    Refuse,
    ScriptedConnection,
    ScriptedSource,
    Stop,
    ThrottledError,
    check_delivery,
    seeded,
    sequences,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

A, B, C = Split("a"), Split("b"), Split("c")
LEFT, RIGHT = Split("left", ("a",)), Split("right", ("a",))
MERGED = Split("merged", ("a", "b"))


class Rig:
    """A supervisor over a scripted source, and a reader of its events."""

    def __init__(self, *logs: Log, listings: Sequence[Sequence[Split] | Exception] = ()) -> None:
        self.source = ScriptedSource(logs=logs, listings=listings)
        self.progress = Progress("scripted:one", self.source.arrival)
        self.connection = ScriptedConnection(self.source)
        self.delivered: list[tuple[str, int]] = []
        self.ends: list[str] = []

    async def start(self) -> Supervisor:
        listed = await self.connection.splits()
        for split in listed:
            self.progress.add(split, Horizon())
        jitter = FullJitter(PACING.backoff, seeded())
        lifecycle = LifecycleLog(self.progress.source, Capabilities())
        self.subscribers = Subscribers(
            self.connection, jitter=jitter, on_resubscribe=lambda *_: None, lifecycle=lifecycle
        )
        lineage = Lineage(
            self.connection,
            self.progress,
            jitter=jitter,
            listed=listed,
            lifecycle=lifecycle,
        )
        self.supervisor = Supervisor(self.connection, self.progress, lineage, self.subscribers)
        return self.supervisor

    def take_ready(self) -> None:
        while (event := self.subscribers.take()) is not None:
            self.progress.deliver([event])
            match event:
                case Batch():
                    self.delivered += [(event.split.id, number) for number in sequences(event)]
                case End():
                    self.ends.append(event.split.id)

    async def read_for(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while True:
                    self.take_ready()
                    await self.subscribers.more()
        except TimeoutError:
            pass


def read(rig: Rig, seconds: float = 600.0) -> Rig:
    """Simulate reading for a while."""

    async def main() -> None:
        supervisor = await rig.start()
        async with supervisor.supervise():
            await rig.read_for(seconds)
        assert rig.source.broken == []

    simulate(main)
    return rig


@pytest.mark.fault("A shard ends: it is not subscribed to again")
def test_children_are_read_after_a_split() -> None:
    logs = (
        Log(split=LEFT, entries=(5, 6)),
        Log(split=A, entries=(1, 2, 3), ends=True, children=(LEFT, RIGHT), event_delay=1.0),
        Log(split=RIGHT, entries=(7, 8)),
    )
    check_delivery(logs, read(Rig(*logs)).delivered)


@pytest.mark.fault("A merged shard has two parents, one slower than the other")
def test_a_merged_split_is_read_after_both_parents() -> None:
    logs = (
        Log(split=A, entries=(1, 2), ends=True, children=(MERGED,)),
        Log(split=B, entries=(3, 4), ends=True, children=(MERGED,), event_delay=20.0),
        Log(split=MERGED, entries=(5, 6)),
    )
    rig = read(Rig(*logs))
    check_delivery(logs, rig.delivered)
    assert rig.source.calls_of("merged")[0].time == 40.0


def test_the_split_of_a_split_is_read_last() -> None:
    grandchild = Split("grandchild", ("left",))
    logs = (
        Log(split=grandchild, entries=(9,)),
        Log(split=LEFT, entries=(5, 6), ends=True, children=(grandchild,), event_delay=1.0),
        Log(split=A, entries=(1, 2, 3), ends=True, children=(LEFT,), event_delay=1.0),
    )
    check_delivery(logs, read(Rig(*logs)).delivered)


@pytest.mark.fault("A child is listed before its parent ends")
def test_a_child_that_is_listed_before_its_parent_ends_waits() -> None:
    logs = (
        Log(split=A, entries=(1, 2), ends=True, children=(LEFT,), event_delay=20.0),
        Log(split=LEFT, entries=(5, 6)),
    )
    rig = read(Rig(*logs))
    check_delivery(logs, rig.delivered)
    assert rig.source.calls_of("left")[0].time == 40.0


@pytest.mark.fault("Children begin at their horizon, after all their parents")
def test_a_child_does_not_start_before_the_reader_has_taken_the_end() -> None:
    logs = (
        Log(split=A, entries=(1, 2), ends=True, children=(LEFT,)),
        Log(split=LEFT, entries=(5, 6)),
    )
    rig = Rig(*logs)

    async def main() -> None:
        supervisor = await rig.start()
        async with supervisor.supervise():
            await asyncio.sleep(3600)
            assert rig.source.calls_of("left") == []
            await rig.read_for(1)
        assert rig.source.calls_of("left")[0].time == 3600

    simulate(main)
    check_delivery(logs, rig.delivered)


@pytest.mark.fault("A child is listed before its parent ends")
def test_a_child_with_a_parent_that_nobody_has_seen_waits_until_that_one_is_listed() -> None:
    logs = (
        Log(split=A, entries=(1,), ends=True, children=(MERGED,)),
        Log(split=B, entries=(2,), ends=True, event_delay=10.0),
        Log(split=MERGED, entries=(3,)),
    )
    rig = read(Rig(*logs, listings=[[A], [A], [A], [A, B, MERGED]]))
    check_delivery(logs, rig.delivered)
    assert rig.source.calls_of("b")[0].time == 120.0
    assert rig.source.calls_of("merged")[0].time == 140.0


def test_a_child_that_listings_in_quick_succession_do_not_name_has_not_expired() -> None:
    others = [Log(split=Split(str(n)), ends=True, event_delay=1.0 + n) for n in range(8)]
    logs = (
        Log(split=A, entries=(1,), ends=True, children=(MERGED,)),
        Log(split=B, entries=(2,), ends=True, event_delay=10.0),
        Log(split=MERGED, entries=(3,)),
    )
    early = [A, *(log.split for log in others)]
    rig = read(Rig(*logs, *others, listings=[early] * 11 + [[*early, B, MERGED]]))
    check_delivery(logs, rig.delivered)
    assert rig.source.calls_of("merged")[0].time > rig.source.calls_of("b")[0].time


@pytest.mark.fault("A child is listed before its parent ends")
def test_children_that_the_end_names_start_before_they_are_listed() -> None:
    logs = (
        Log(split=A, entries=(1,), ends=True, children=(LEFT,)),
        Log(split=LEFT, entries=(2,)),
    )
    rig = read(Rig(*logs, listings=[[A]]))
    check_delivery(logs, rig.delivered)
    assert rig.source.calls_of("left")[0].time == 0.0


def test_children_that_the_end_does_not_name_are_found_by_listing_at_once() -> None:
    logs = (Log(split=A, entries=(1,), ends=True), Log(split=LEFT, entries=(2,)))
    rig = read(Rig(*logs, listings=[[A], [A, LEFT]]))
    check_delivery(logs, rig.delivered)
    assert rig.source.calls_of("left")[0].time == 0.0


@pytest.mark.fault("Children begin at their horizon, after all their parents")
def test_a_new_split_found_by_discovery_starts_at_the_horizon() -> None:
    rig = Rig(Log(split=A, entries=(1,)), Log(split=B, entries=(2,)), listings=[[A], [A, B]])
    rig.source.start = Timestamp(10**12)
    read(rig)
    assert [(call.position, call.time) for call in rig.source.calls_of("b")] == [(Horizon(), 60.0)]
    assert ("b", 2) in rig.delivered


def test_listing_that_fails_is_tried_again() -> None:
    failures = [FlakyError("x"), ThrottledError("y"), FlakyError("z")]
    rig = Rig(
        Log(split=A, entries=(1,)), Log(split=B, entries=(2,)), listings=[[A], *failures, [A, B]]
    )
    read(rig)
    assert ("b", 2) in rig.delivered
    assert [phase for _, phase in rig.source.judged] == [Phase.DISCOVER] * 3
    assert 63.0 <= rig.source.calls_of("b")[0].time < 70.0
    assert rig.subscribers.failure is None
    assert rig.source.listed < 20  # once a minute again


def test_listing_that_fails_for_good_is_the_failure_of_the_stream() -> None:
    rig = Rig(Log(split=A, entries=(1,)), listings=[[A], ServiceError("no such stream")])
    with pytest.raises(ServiceError, match=r"cannot be listed: no such stream \(the script"):
        read(rig)
    assert ("a", 1) in rig.delivered


def test_a_listing_that_works_forgets_the_failures_before_it() -> None:
    twice = [MalformedEventError("no JSON")] * 2  # the third in a row is fatal
    rig = Rig(
        Log(split=A, entries=(1,)),
        Log(split=B, entries=(2,)),
        listings=[[A], *twice, [A], *twice, [A, B]],
    )
    read(rig)
    assert ("b", 2) in rig.delivered


def test_listing_that_fails_as_often_as_its_verdict_allows_is_the_failure_of_the_stream() -> None:
    failures = [MalformedEventError("no JSON")] * 3
    rig = Rig(Log(split=A, entries=(1,)), listings=[[A], *failures, [A]])
    with pytest.raises(ServiceError, match="cannot be listed: no JSON"):
        read(rig)


@pytest.mark.fault("One shard fails")
def test_a_retrying_split_never_stops_the_others() -> None:
    logs = (
        Log(split=A, entries=(1, 2), faults=(Refuse(FlakyError()),) * 1000),
        Log(split=B, entries=tuple(range(1, 200)), event_delay=1.0),
    )
    rig = read(Rig(*logs), 600)
    check_delivery(logs[1:], rig.delivered)
    assert len(rig.source.calls_of("a")) > 20


def test_a_fatal_error_stops_all_splits_at_once_and_keeps_what_they_have_buffered() -> None:
    logs = (
        Log(split=A, entries=(1, 2), faults=(Break(1, ServiceError("gone")),), event_delay=10.0),
        Log(split=B, entries=(3, 4, 5, 6)),
        Log(split=C, entries=(7, 8), faults=(Stop(0),) * 100),
    )
    rig = Rig(*logs)

    async def main() -> None:
        supervisor = await rig.start()
        async with supervisor.supervise():
            await asyncio.sleep(9.9)
            assert rig.subscribers.failure is None
            await asyncio.sleep(0.2)
            assert isinstance(rig.subscribers.failure, SplitFailedError)
            assert rig.source.live.total() == 0
            assert len(asyncio.all_tasks()) == 1
            await asyncio.sleep(3600)
            rig.take_ready()
            with pytest.raises(SplitFailedError, match="a cannot go on: gone"):
                await rig.subscribers.more()

    simulate(main)
    assert rig.delivered == [("b", 3), ("b", 4), ("a", 1), ("a", 2)]


def test_no_split_is_started_after_a_failure() -> None:
    logs = (
        Log(split=A, ends=True, children=(LEFT,)),
        Log(split=B, entries=(2,), faults=(Break(1, ServiceError("gone")),), event_delay=1.0),
        Log(split=LEFT, entries=(3,)),
    )
    rig = Rig(*logs)

    async def main() -> None:
        supervisor = await rig.start()
        async with supervisor.supervise():
            await asyncio.sleep(2)
            assert rig.subscribers.failure is not None
            rig.take_ready()
            await asyncio.sleep(1)

    simulate(main)
    assert rig.ends == ["a"]
    assert rig.source.calls_of("left") == []


@pytest.mark.fault("Several errors come at once")
def test_the_first_failure_wins_and_later_ones_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(Log(split=A, entries=(1,)), Log(split=B, entries=(2,)))
    first, second = SplitFailedError("first"), SplitFailedError("second")

    async def main() -> None:
        supervisor = await rig.start()
        async with supervisor.supervise():
            rig.subscribers.by_split["a"].slot.fail(Failure(A, first))
            rig.subscribers.by_split["b"].slot.fail(Failure(B, second))
            assert rig.subscribers.failure is first
            with pytest.raises(SplitFailedError, match="first"):
                await rig.read_for(1)

    simulate(main)
    assert [record.message for record in caplog.records] == [
        "another failure after the first: second"
    ]


def test_closing_does_not_wait_for_a_split_whose_connection_fails_to_close() -> None:
    faults = (BadClose(OSError("reset")),) * 100
    rig = read(Rig(Log(split=A, entries=(1,), faults=faults)), seconds=7)
    assert len(rig.source.calls) == 1


def test_closing_does_not_wait_for_a_listing_that_fails_when_it_is_stopped() -> None:
    rig = Rig(Log(split=A, entries=(1,)))

    async def main() -> None:
        supervisor = await rig.start()

        async def hang() -> Sequence[Split]:
            try:
                await asyncio.sleep(3600)
            finally:
                raise FlakyError("the connection was closed")

        rig.connection.splits = hang  # type: ignore[method-assign]
        async with supervisor.supervise():
            await rig.read_for(LISTED_EVERY + 1)
        assert asyncio.get_running_loop().time() == LISTED_EVERY + 1

    simulate(main)


def test_events_are_taken_in_the_order_of_their_arrival() -> None:
    logs = (
        Log(split=A, entries=(1, 2, 3, 4), per_event=1),
        Log(split=B, entries=(5, 6), per_event=1),
        Log(split=C, entries=(7, 8), per_event=1),
    )
    order = [split_id for split_id, _ in read(Rig(*logs), 1).delivered]
    assert order == ["a", "b", "c", "a", "b", "c", "a", "a"]


def test_subscribe_calls_of_a_split_keep_the_floor_between_them() -> None:
    log = Log(split=A, entries=tuple(range(50)), faults=(Stop(1), Refuse(FlakyError())) * 10)
    times = [call.time for call in read(Rig(log)).source.calls]
    assert all(later - earlier >= PACING.floor for earlier, later in pairwise(times))


def test_memory_is_bounded_over_all_splits() -> None:
    logs = [
        Log(split=Split(str(i)), entries=tuple(range(1, 21)), per_event=1, size=1000)
        for i in range(50)
    ]
    limit = 10_000
    rig = Rig(*logs)
    rig.source.pacing = replace(PACING, max_bytes_in_flight=limit)
    peaks: list[int] = []

    async def main() -> None:
        supervisor = await rig.start()
        async with supervisor.supervise():
            while len(rig.delivered) < 50 * 20:
                await asyncio.sleep(0.1)
                peaks.append(rig.subscribers.memory_limit.used)
                rig.take_ready()
        assert rig.source.calls == [call for call in rig.source.calls if call.time == 0]

    simulate(main)
    check_delivery(logs, rig.delivered)
    assert 0.8 * limit < max(peaks) <= limit


def test_one_event_larger_than_the_memory_passes_alone() -> None:
    logs = (Log(split=A, entries=(1, 2), size=5000), Log(split=B, entries=(3, 4), size=5000))
    rig = Rig(*logs)
    rig.source.pacing = replace(PACING, max_bytes_in_flight=100)
    check_delivery(logs, read(rig).delivered)


@pytest.mark.fault("A split is listed again while it is read, or read by two tasks")
def test_a_split_that_has_ended_is_not_subscribed_again_after_a_listing() -> None:
    rig = read(Rig(Log(split=A, entries=(1,), ends=True)))
    assert len(rig.source.calls) == 1
    assert rig.ends == ["a"]


def test_a_split_resumes_from_where_its_progress_stands() -> None:
    rig = Rig(Log(split=A, entries=(1, 2, 3)))

    async def main() -> None:
        supervisor = await rig.start()
        rig.progress.add(A, Cursor(2))
        async with supervisor.supervise():
            await rig.read_for(1)

    simulate(main)
    assert rig.delivered == [("a", 3)]


@pytest.mark.fault("A stream is used after it was closed, or closed twice")
def test_an_end_that_is_taken_while_closing_starts_nothing() -> None:
    logs = (
        Log(split=A, entries=(), ends=True, children=(LEFT,)),
        Log(split=LEFT, entries=(2,)),
    )
    rig = Rig(*logs)

    async def main() -> None:
        supervisor = await rig.start()
        async with supervisor.supervise():
            await asyncio.sleep(1)
            asyncio.get_running_loop().call_soon(rig.take_ready)

    simulate(main)
    assert rig.ends == ["a"]
    assert rig.source.calls_of("left") == []


def test_nothing_can_be_taken_after_closing() -> None:
    rig = Rig(Log(split=A, entries=(1,)))

    async def main() -> None:
        supervisor = await rig.start()
        async with supervisor.supervise():
            await asyncio.sleep(1)
        assert rig.subscribers.take() is None

    simulate(main)
