from __future__ import annotations

import asyncio
import weakref
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from fanout.core.backoff import FullJitter
from fanout.core.events import Batch, End, Failure, Gap, Split
from fanout.core.lifecycle_log import LifecycleLog
from fanout.core.limits import MemoryLimit, SubscribeLimit
from fanout.core.policy import Finish, Pace, Phase, Retry, Skip
from fanout.core.positions import Cursor, Horizon, Range
from fanout.core.slot import Slot
from fanout.core.source import Capabilities
from fanout.core.statistics import SplitState
from fanout.core.subscriber import Subscriber
from fanout.errors import (
    MalformedEventError,
    ServiceError,
    SubscribeTimeoutError,
    SubscriptionEndedError,
    SubscriptionSilentError,
)
from fanout.testing.virtual_time.cancellation import Cancellation, sweep
from fanout.testing.virtual_time.loop import SimLoop, simulate
from tests.support.scripted_source import (
    PACING,
    BadClose,
    Break,
    FlakyError,
    Idle,
    Log,
    NoAnswer,
    Refuse,
    ScriptedConnection,
    ScriptedSource,
    Stall,
    Stop,
    ThrottledError,
    VerdictError,
    record_batch,
    sequences,
)
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from fanout.core.backoff import Pacing
    from fanout.core.policy import Verdict
    from fanout.core.positions import Position
    from fanout.core.source import Reserve
    from fanout.errors import SplitFailedError

A = Split("a")


class Highest(Random):
    """Draw the upper bound each time, so that a delay is its ceiling."""

    def uniform(self, a: float, b: float) -> float:
        del a
        return b


class Lowest(Random):
    """Draw the lower bound each time, so that jitter adds nothing."""

    def uniform(self, a: float, b: float) -> float:
        del b
        return a


class Rig:
    """A subscriber on one scripted split, and a consumer of its slot."""

    def __init__(
        self,
        log: Log,
        *,
        pacing: Pacing = PACING,
        limit: int = 1 << 20,
        random: Random | None = None,
        hook: Callable[[Split, Exception, float], None] | None = None,
        answer_after: float = 0.0,
        close_after: float = 0.0,
    ) -> None:
        self.source = ScriptedSource(
            logs=[log], pacing=pacing, answer_after=answer_after, close_after=close_after
        )
        self.memory_limit = MemoryLimit(limit)
        self.subscribe_limit = SubscribeLimit(1)
        self.reported: list[tuple[float, Split, Exception, float]] = []
        self.delivered: list[int] = []
        self.gaps: list[Gap] = []
        self.ends: list[End] = []
        self.failure: SplitFailedError | None = None
        self._ready: asyncio.Queue[Slot] = asyncio.Queue()
        self._jitter = FullJitter(pacing.backoff, random or Highest())
        self._hook = hook or self._tell
        self._slot = Slot(self._ready.put_nowait)
        self.subscriber = self.new_subscriber(Horizon())

    def new_subscriber(self, position: Cursor | Horizon) -> Subscriber:
        return Subscriber(
            A,
            position,
            connection=ScriptedConnection(self.source),
            slot=self._slot,
            memory_limit=self.memory_limit,
            subscribe_limit=self.subscribe_limit,
            jitter=self._jitter,
            on_resubscribe=self._hook,
            lifecycle=LifecycleLog("scripted:one", Capabilities()),
        )

    @property
    def delays(self) -> list[float]:
        return [delay for *_, delay in self.reported]

    @property
    def causes(self) -> list[type[Exception]]:
        return [type(cause) for _, _, cause, _ in self.reported]

    @property
    def call_times(self) -> list[float]:
        return [call.time for call in self.source.calls]

    async def take(self) -> Batch | End | Failure:
        event, cost = (await self._ready.get()).take()
        self.memory_limit.release(cost)
        match event:
            case Batch():
                self.delivered += sequences(event)
                self.gaps += event.gaps
            case End():
                self.ends.append(event)
                self.gaps += event.gaps
            case Failure():
                pass
        return event

    async def take_all(self, pause: float = 0.0) -> None:
        """Take until the split ends or fails."""
        while True:
            if pause:
                await asyncio.sleep(pause)
            match await self.take():
                case End():
                    return
                case Failure(error=error):
                    self.failure = error
                    return
                case Batch():
                    pass

    async def read(self, pause: float = 0.0) -> None:
        """Run the subscriber, and take until the split ends or fails."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.subscriber.run())
            await self.take_all(pause)
        assert self.source.broken == []
        assert self.memory_limit.used == 0

    def _tell(self, split: Split, cause: Exception, delay: float) -> None:
        self.reported.append((asyncio.get_running_loop().time(), split, cause, delay))


def reading(make: Callable[[], Rig], pause: float = 0.0) -> Rig:
    """Simulate reading one split to its end or failure."""

    async def main() -> Rig:
        rig = make()
        await rig.read(pause)
        return rig

    return simulate(main)


LOG = Log(split=A, entries=(10, 20, 30, Idle(35), 40, 50, 60, 70), ends=True)
FAULTS = (
    Refuse(FlakyError("refused")),
    Stop(1),
    Break(1, FlakyError("cut")),
    NoAnswer(),
    Stall(1),
    Break(0, MalformedEventError("checksum")),
    Stop(0),
)


@pytest.mark.fault("A subscription ends after its five minutes")
def test_resume_is_after_the_last_hand_off() -> None:
    rig = reading(lambda: Rig(replace(LOG, faults=FAULTS)))
    assert rig.delivered == LOG.records
    assert [call.position for call in rig.source.calls] == [
        Horizon(),
        Horizon(),
        Cursor(20),
        Cursor(30),
        Cursor(30),
        Cursor(35),  # idle progress, without a record
        Cursor(35),
        Cursor(35),
    ]


@pytest.mark.fault("A subscription fails after some events, several times in a row")
@pytest.mark.parametrize("after", range(6))
@pytest.mark.parametrize(
    "fault",
    [Stop, Stall, lambda after: Break(after, FlakyError()), lambda after: Break(after, OSError())],
)
def test_no_end_of_a_subscription_loses_or_repeats_a_record(
    fault: Callable[[int], Stop | Stall | Break], after: int
) -> None:
    rig = reading(lambda: Rig(replace(LOG, faults=(fault(after),) * 3)))
    assert rig.delivered == LOG.records


@pytest.mark.fault("The consumer takes hours for an event")
@pytest.mark.parametrize("hours", [1, 6])
def test_a_slow_consumer_loses_nothing_and_trips_no_watchdog(hours: int) -> None:
    rig = reading(lambda: Rig(LOG), pause=3600.0 * hours)
    assert rig.delivered == LOG.records
    assert rig.reported == []


@pytest.mark.fault("A connection is open at one end alone")
def test_a_silent_server_is_given_up_after_exactly_the_silence_timeout() -> None:
    rig = reading(lambda: Rig(replace(LOG, faults=(Stall(1),), event_delay=4.0)))
    assert [(at, type(cause)) for at, _, cause, _ in rig.reported] == [
        (39.0, SubscriptionSilentError)
    ]
    assert rig.delivered == LOG.records


@pytest.mark.fault("A shard has no records, now or ever")
@in_virtual_time
async def test_heartbeats_keep_an_idle_subscription_alive() -> None:
    rig = Rig(Log(split=A, entries=(1,), heartbeat=34.0))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(rig.subscriber.run())
        for _ in range(100):
            await rig.take()
        running.cancel()
    assert asyncio.get_running_loop().time() == 99 * 34
    assert rig.reported == []


@pytest.mark.fault("A subscribe call is never answered")
def test_a_subscribe_call_without_an_answer_is_given_up_after_its_timeout() -> None:
    rig = reading(lambda: Rig(replace(LOG, faults=(NoAnswer(),))))
    assert [(at, type(cause)) for at, _, cause, _ in rig.reported] == [
        (20.0, SubscribeTimeoutError)
    ]


@in_virtual_time
async def test_the_wait_for_a_turn_is_not_a_wait_for_the_service() -> None:
    rig = Rig(LOG, answer_after=PACING.subscribe_timeout - 1)
    held = asyncio.Semaphore(0)
    rig.subscribe_limit._free = held
    asyncio.get_running_loop().call_later(3600, held.release)
    await rig.read()
    assert rig.reported == []
    assert rig.call_times == [3600]


@pytest.mark.fault("User code blocks the event loop for a minute")
@pytest.mark.parametrize("answer_after", [0.0, 15.0])
@in_virtual_time
async def test_an_event_loop_that_user_code_blocks_for_60_s_is_not_taken_for_a_silent_service(
    answer_after: float,
) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    rig = Rig(replace(LOG, event_delay=4.0), answer_after=answer_after)
    loop.call_at(10.0, loop.advance, 60.0)
    await rig.read()
    assert rig.reported == []
    assert rig.delivered == LOG.records


def test_a_timeout_of_the_service_itself_is_not_taken_for_ours() -> None:
    own = TimeoutError("the proxy gave up")
    rig = reading(lambda: Rig(replace(LOG, faults=(Refuse(own), Break(1, own)))))
    assert [cause for _, _, cause, _ in rig.reported] == [own, own]


@pytest.mark.fault("The consumer takes hours for an event")
@in_virtual_time
async def test_the_watchdog_stands_still_while_an_event_waits_for_memory() -> None:
    rig = Rig(replace(LOG, faults=(Stall(1),), event_delay=30.0))
    await rig.memory_limit.reserve(1 << 20)
    asyncio.get_running_loop().call_later(3600.0, rig.memory_limit.release, 1 << 20)
    await rig.read()
    assert rig.reported[0][0] == 3600.0 + 35.0
    assert rig.delivered == LOG.records


@in_virtual_time
async def test_memory_is_reserved_until_the_consumer_takes_the_event() -> None:
    rig = Rig(LOG)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(rig.subscriber.run())
        await asyncio.sleep(1)
        one_event = rig.memory_limit.used // 2
        assert one_event > 0  # one in the slot, one in the hand
        await rig.take()
        await asyncio.sleep(1)
        running.cancel()
    assert rig.memory_limit.used > 0  # still in the slot
    await rig.take()
    assert rig.memory_limit.used == 0


@in_virtual_time
async def test_memory_of_an_event_that_was_not_handed_over_is_given_back() -> None:
    rig = Rig(LOG)
    running = asyncio.create_task(rig.subscriber.run())
    await asyncio.sleep(1)
    both = rig.memory_limit.used
    running.cancel()
    await asyncio.wait([running])
    assert rig.memory_limit.used < both
    await rig.take()
    assert rig.memory_limit.used == 0


def test_the_delay_grows_with_the_failures_in_a_row_up_to_the_cap() -> None:
    rig = reading(lambda: Rig(replace(LOG, faults=(Refuse(FlakyError()),) * 8)))
    assert rig.delays == [PACING.floor + jitter for jitter in (1, 2, 4, 8, 16, 30, 30, 30)]


def test_the_delay_is_never_below_the_floor() -> None:
    rig = reading(lambda: Rig(replace(LOG, faults=(Refuse(FlakyError()),) * 3), random=Lowest()))
    assert rig.delays == [1, 1, 1]


def test_the_first_attempts_again_of_splits_that_failed_together_are_spread() -> None:
    log = replace(LOG, faults=(Refuse(FlakyError()),))
    rigs = [reading(partial(Rig, log, random=Random(seed))) for seed in range(100)]
    delays = sorted(delay for rig in rigs for delay in rig.delays)
    assert PACING.floor <= delays[0] < delays[-1] <= PACING.floor + PACING.backoff.base
    assert delays[75] - delays[25] > 0.25


@pytest.mark.fault("The service throttles, or fails with a 5xx")
def test_a_throttled_split_waits_for_the_floor_alone() -> None:
    rig = reading(lambda: Rig(replace(LOG, faults=(Refuse(ThrottledError()),) * 3)))
    assert rig.delays == [1, 1, 1]


def test_a_resubscription_keeps_its_spacing_from_the_last_successful_subscribe() -> None:
    log = replace(LOG, faults=(Stop(1), Break(1, FlakyError())), event_delay=1.5)
    rig = reading(lambda: Rig(log, random=Lowest(), answer_after=0.25))
    assert rig.delays == [3.5, 3.5]
    assert rig.call_times == [0, 5.25, 10.5]


def test_the_spacing_is_over_after_a_long_subscription() -> None:
    log = replace(LOG, faults=(Stop(2),), event_delay=30.0)
    assert reading(lambda: Rig(log, random=Lowest())).delays == [0]


@pytest.mark.fault("Success and failure alternate")
def test_backoff_resets_on_progress() -> None:
    faults = (*(Refuse(FlakyError()),) * 4, Break(1, FlakyError()), Refuse(FlakyError()))
    rig = reading(lambda: Rig(replace(LOG, faults=faults, event_delay=10.0)))
    assert rig.delays == [2, 3, 5, 9, 1, 3]  # the fifth call was long ago


def test_backoff_resets_on_idle_progress() -> None:
    log = Log(split=A, entries=(Idle(5), 10), ends=True, event_delay=10.0)
    faults = (*(Refuse(FlakyError()),) * 4, Break(1, FlakyError()))
    assert reading(lambda: Rig(replace(log, faults=faults))).delays == [2, 3, 5, 9, 1]


@pytest.mark.fault("Subscriptions succeed and end without an event")
def test_backoff_does_not_reset_on_a_successful_subscribe() -> None:
    faults = (Break(0, FlakyError()),) * 6
    assert reading(lambda: Rig(replace(LOG, faults=faults))).delays == [6, 7, 9, 13, 21, 35]


def test_a_fatal_error_is_the_pill_with_its_cause_and_a_hint() -> None:
    rig = reading(lambda: Rig(replace(LOG, faults=(Break(1, ServiceError("it is gone")),))))
    assert rig.delivered == [10, 20]
    assert rig.failure is not None
    assert str(rig.failure) == "a cannot go on: it is gone (the script says so)"
    assert isinstance(rig.failure.__cause__, ServiceError)
    assert rig.subscriber.state is SplitState.FAILED


@pytest.mark.fault("An error comes while an event is still waiting")
@in_virtual_time
async def test_the_pill_arrives_while_the_slot_is_full_and_is_seen_after_the_event() -> None:
    rig = Rig(replace(LOG, faults=(Break(1, ServiceError("it is gone")),)))
    await rig.subscriber.run()  # it ends although nothing is taken
    pill = rig.subscriber.slot.pill
    assert pill is not None
    await rig.take_all()
    assert rig.delivered == [10, 20]
    assert rig.failure is pill.error


def test_the_same_decode_error_three_times_at_one_position_is_fatal_among_other_errors() -> None:
    bad, other = Break(0, MalformedEventError("checksum")), Refuse(FlakyError())
    rig = reading(lambda: Rig(replace(LOG, faults=(bad, other, bad, other, other, bad))))
    assert str(rig.failure) == (
        "a cannot go on: checksum (the same error came 3 times at one position)"
    )
    assert len(rig.source.calls) == 6


def test_the_same_decode_error_at_different_positions_is_not_fatal() -> None:
    bad = Break(1, MalformedEventError("checksum"))
    rig = reading(lambda: Rig(replace(LOG, faults=(bad,) * 4)))
    assert rig.failure is None
    assert rig.delivered == LOG.records


@pytest.mark.fault("Success and failure alternate")
def test_max_retries_failures_in_a_row_are_allowed() -> None:
    pacing, faults = replace(PACING, max_retries=2), (Refuse(FlakyError()),) * 2
    log = replace(LOG, faults=(*faults, Stop(1), *faults))
    rig = reading(lambda: Rig(log, pacing=replace(pacing, max_retries=3)))
    assert rig.failure is None


@pytest.mark.fault("More failures in a row than are allowed end the stream")
def test_one_failure_more_than_max_retries_is_fatal() -> None:
    log = replace(LOG, faults=(Refuse(FlakyError("refused")),) * 3)
    rig = reading(lambda: Rig(log, pacing=replace(PACING, max_retries=2)))
    assert str(rig.failure) == (
        "a cannot go on: refused (max_retries=2 attempts in a row made no progress)"
    )
    assert len(rig.source.calls) == 3


@pytest.mark.fault("Ends that are part of life are never counted as failures")
@pytest.mark.parametrize("end", [Stop(1), Stall(1), Break(1, FlakyError())])
def test_an_end_after_progress_is_no_retry(end: Stop | Stall | Break) -> None:
    log = replace(LOG, faults=(end, end))
    rig = reading(lambda: Rig(log, pacing=replace(PACING, max_retries=0)))
    assert rig.failure is None
    assert rig.delivered == LOG.records


@pytest.mark.fault("Ends that are part of life are never counted as failures")
@in_virtual_time
async def test_the_ordinary_end_of_an_idle_subscription_is_never_counted() -> None:
    idle = Log(split=A, faults=(Stop(60),) * 100)
    rig = Rig(idle, pacing=replace(PACING, max_retries=0))
    running = asyncio.create_task(rig.subscriber.run())
    taking = asyncio.create_task(rig.take_all())
    await asyncio.sleep(100.5 * 300)
    assert rig.failure is None
    assert set(rig.causes) == {SubscriptionEndedError}
    assert set(rig.delays) == {0.0}
    assert len(rig.reported) == 100
    for task in (running, taking):
        task.cancel()
    await asyncio.wait([running, taking])


@pytest.mark.fault("An answer comes after its call was given up")
@pytest.mark.parametrize("late", [0.0, 0.5, 60.0])
@in_virtual_time
async def test_an_answer_that_comes_when_its_time_is_up_opens_one_subscription_at_most(
    late: float,
) -> None:
    rig = Rig(LOG, answer_after=PACING.subscribe_timeout + late)
    asyncio.get_running_loop().call_later(300, setattr, rig.source, "answer_after", 0.0)
    await rig.read()
    assert rig.delivered == LOG.records
    assert set(rig.causes) <= {SubscribeTimeoutError}


@pytest.mark.fault("Each kind of error has a budget of its own")
def test_errors_with_different_verdicts_are_counted_apart() -> None:
    class OneType(ScriptedConnection):
        async def verdict(
            self,
            error: Exception,
            phase: Phase,
            split: Split | None = None,
            position: Position | None = None,
        ) -> Verdict:
            del phase, split, position
            return Retry(limit=3 if str(error) == "expired" else None)

    async def main() -> None:
        faults = tuple(Refuse(OSError(text)) for text in ["unavailable"] * 9 + ["expired"] * 2)
        rig = Rig(replace(LOG, faults=faults))
        rig.subscriber._connection = OneType(rig.source)
        await rig.read()
        assert rig.failure is None

    simulate(main)


@pytest.mark.fault("What only a person can mend is an error in the log")
def test_what_only_a_person_can_end_is_retried_slowly_and_told_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disabled = VerdictError(Retry(Pace.SLOW, "enable the key"))
    log = replace(LOG, faults=(Refuse(disabled), Refuse(disabled)))
    rig = reading(lambda: Rig(log, pacing=replace(PACING, slow=60.0)))
    assert rig.delivered == LOG.records
    assert rig.delays == [61.0, 61.0]  # with the highest jitter that the base allows
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        "a waits for a person, again in 61 s: as scripted (enable the key)"
    ] * 2


@pytest.mark.long
@in_virtual_time
async def test_errors_that_come_once_in_a_long_while_at_one_idle_position_do_not_add_up() -> None:
    damage = Break(800, MalformedEventError("checksum"))  # 4000 s of heartbeats, then damage
    log = Log(split=A, entries=(10,), faults=(damage,) * 9)
    rig = Rig(log)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(rig.subscriber.run())
        with suppress(TimeoutError):
            async with asyncio.timeout(50_000):
                await rig.take_all()
        running.cancel()
    assert rig.failure is None
    assert len(rig.source.calls) == 10


def test_a_hint_is_told_where_an_error_has_come_too_often() -> None:
    flaky = VerdictError(Retry(hint="look at it", limit=2))
    rig = reading(lambda: Rig(replace(LOG, faults=(Refuse(flaky), Refuse(flaky)))))
    assert str(rig.failure) == (
        "a cannot go on: as scripted (the same error came 2 times at one position; look at it)"
    )


def test_a_reader_that_skips_goes_on_there_and_tells_the_gap_with_the_next_event() -> None:
    skip = VerdictError(Skip(Cursor(40), "expired"))
    rig = reading(lambda: Rig(replace(LOG, per_event=1, faults=(Break(1, skip), Stop(1)))))
    assert rig.delivered == [10, 50, 60, 70]
    assert rig.gaps == [Gap(Cursor(10), Cursor(40), "expired")]
    assert rig.delays[0] == 5.0  # the spacing since the subscribe call


def test_errors_before_a_skip_do_not_count_at_the_position_behind_it() -> None:
    bad = Break(0, MalformedEventError("checksum"))
    skip = Refuse(VerdictError(Skip(Cursor(40), "expired")))
    rig = reading(lambda: Rig(replace(LOG, faults=(bad, bad, skip, bad, bad))))
    assert rig.failure is None
    assert rig.delivered == [50, 60, 70]


def test_gaps_are_kept_until_an_event_has_carried_them() -> None:
    faults = (
        Refuse(VerdictError(Skip(Cursor(20), "one"))),
        Refuse(VerdictError(Skip(Cursor(70), "two"))),
    )
    rig = reading(lambda: Rig(replace(LOG, faults=faults)))
    assert rig.delivered == []
    assert rig.ends[0].gaps == (
        Gap(Horizon(), Cursor(20), "one"),
        Gap(Cursor(20), Cursor(70), "two"),
    )


def test_a_split_that_the_verdict_finishes_ends_with_its_children() -> None:
    child = Split("child", ("a",))
    faults = (Break(1, VerdictError(Finish((child,)))),)
    rig = reading(lambda: Rig(replace(LOG, faults=faults)))
    assert rig.ends == [End(A, (child,))]
    assert rig.subscriber.state is SplitState.ENDED
    assert len(rig.source.calls) == 1


def test_a_split_that_is_finished_too_early_tells_what_is_lost() -> None:
    faults = (Break(1, VerdictError(Finish(lost="expired"))),)
    rig = reading(lambda: Rig(replace(LOG, faults=faults)))
    assert rig.ends == [End(A, gaps=(Gap(Cursor(20), None, "expired"),))]


@pytest.mark.fault("The reader is cancelled")
def test_a_cancellation_that_nobody_asked_for_is_a_failure() -> None:
    cancelled = asyncio.CancelledError("from inside a library")
    rig = reading(lambda: Rig(replace(LOG, faults=(Refuse(cancelled),))))  # type: ignore[arg-type]  # no Exception, and that is the point
    assert "was cancelled, but not by us" in str(rig.failure)


class Loose(ScriptedConnection):
    """A connection that keeps nothing of what it has delivered, and watches who else does."""

    def __init__(self, source: ScriptedSource, ending: Exception | None) -> None:
        super().__init__(source)
        self.kept: list[weakref.ref[Any]] = []
        self._ending = ending

    @asynccontextmanager
    async def subscribe(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AsyncIterator[AsyncIterator[Batch | End]]:
        del position, reserve
        yield self._events(split, len(self.kept) + 1)

    async def _events(self, split: Split, number: int) -> AsyncIterator[Batch | End]:
        records = record_batch(LOG, [number])
        self.kept.append(weakref.ref(records))
        yield Batch(split, records, Range(Horizon(), Cursor(number)))
        if self._ending is not None:
            raise self._ending
        del records
        await asyncio.sleep(10)


@pytest.mark.parametrize("ending", [None, FlakyError("cut")])
@in_virtual_time
async def test_a_record_that_was_taken_is_kept_by_nobody(ending: Exception | None) -> None:
    rig = Rig(LOG)
    loose = rig.subscriber._connection = Loose(rig.source, ending)
    running = asyncio.create_task(rig.subscriber.run())
    await rig.take()
    await asyncio.sleep(0.1)
    assert rig.subscriber.state is (SplitState.BACKING_OFF if ending else SplitState.LIVE)
    assert [kept() for kept in loose.kept] == [None]
    running.cancel()
    await asyncio.wait([running])


def test_on_resubscribe_is_told_the_split_the_cause_and_the_delay() -> None:
    cause = FlakyError("cut")
    rig = reading(lambda: Rig(replace(LOG, faults=(Break(1, cause), Stop(1)))))
    assert [(split, delay) for _, split, _, delay in rig.reported] == [(A, 6), (A, 5)]
    assert rig.reported[0][2] is cause
    assert rig.causes[1] is SubscriptionEndedError
    assert (rig.subscriber.subscriptions, rig.subscriber.resubscriptions) == (3, 2)


def test_a_raising_hook_is_fatal() -> None:
    def hook(*_: object) -> None:
        raise KeyError("bug in the hook")

    rig = reading(lambda: Rig(replace(LOG, faults=(Stop(1),)), hook=hook))
    assert rig.failure is not None
    assert isinstance(rig.failure.__cause__, KeyError)


@pytest.mark.fault("A shard ends: it is not subscribed to again")
@in_virtual_time
async def test_an_end_is_delivered_once_although_closing_fails() -> None:
    rig = Rig(replace(LOG, faults=(BadClose(OSError("reset")),)))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(rig.subscriber.run())
        await rig.take_all()
        await asyncio.sleep(3600)
    assert len(rig.source.calls) == 1
    assert rig.subscriber.state is SplitState.ENDED


@pytest.mark.fault("The reader is cancelled")
@pytest.mark.parametrize("seconds", [1, 36, 100])
@in_virtual_time
async def test_a_close_that_fails_does_not_swallow_the_cancellation(seconds: float) -> None:
    rig = Rig(replace(LOG, faults=(BadClose(OSError("reset")),) * 9, event_delay=10.0))
    running = asyncio.create_task(rig.subscriber.run())
    await asyncio.sleep(seconds)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert asyncio.get_running_loop().time() == seconds


def test_an_error_is_judged_by_what_the_subscriber_was_doing() -> None:
    faults = (Refuse(FlakyError()), Break(0, OSError()), Refuse(FlakyError()))
    rig = reading(lambda: Rig(replace(LOG, faults=faults)))
    assert rig.source.judged == [
        (FlakyError, Phase.SUBSCRIBE),
        (OSError, Phase.STREAM),
        (FlakyError, Phase.SUBSCRIBE),
    ]


def test_the_repr_shows_the_state_and_no_data() -> None:
    rig = reading(lambda: Rig(LOG))
    assert repr(rig.subscriber) == (
        f"<Subscriber a ENDED position={Cursor(70)} failures=0 slot=0/1>"
    )


@pytest.mark.fault("An old subscription still has events when its successor runs")
def test_a_cancelled_subscriber_is_continued_by_a_new_one_from_its_position() -> None:
    tight = 60  # less than two events, so that the sweep crosses waits for memory
    faults = (Refuse(FlakyError()), Break(1, FlakyError()), Stop(2))

    async def scenario(cancellation: Cancellation) -> None:
        log = replace(LOG, faults=faults, event_delay=0.5, per_event=1)
        rig = Rig(log, limit=tight, answer_after=0.5, close_after=0.5)
        async with asyncio.TaskGroup() as tasks:
            taking = tasks.create_task(rig.take_all(pause=2.0))
            await cancellation.run(rig.subscriber.run())
            state = rig.subscriber.state
            if state is not SplitState.ENDED:
                assert state is SplitState.STOPPED
                await rig.new_subscriber(rig.subscriber.position).run()  # type: ignore[arg-type]
            await taking
        assert rig.delivered == log.records
        assert rig.memory_limit.used == 0
        assert rig.source.broken == []

    assert sweep(scenario) > 60


def test_an_end_that_the_verdict_tells_comes_once_wherever_its_hand_over_is_cancelled() -> None:
    faults = (Break(2, VerdictError(Finish())),)

    async def scenario(cancellation: Cancellation) -> None:
        log = Log(split=A, entries=(10, 20), ends=True, faults=faults, per_event=1)
        rig = Rig(log)
        async with asyncio.TaskGroup() as tasks:
            taking = tasks.create_task(rig.take_all(pause=2.0))
            await cancellation.run(rig.subscriber.run())
            if rig.subscriber.state is not SplitState.ENDED:
                await rig.new_subscriber(rig.subscriber.position).run()  # type: ignore[arg-type]
            await taking
        assert rig.delivered == log.records
        assert rig.ends == [End(A)]

    assert sweep(scenario) > 5
