"""Keep one split subscribed: subscribe, deliver, resubscribe."""

from __future__ import annotations

import asyncio
import logging
import traceback
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, final

from fanout.core.backoff import Retries, until_ready
from fanout.core.cancellation import cancelled_by_us, prefer_cancellation
from fanout.core.error_text import text_of
from fanout.core.event_time import SplitWatermark
from fanout.core.events import Batch, End, Failure, Gap
from fanout.core.policy import Fatal, Finish, Pace, Phase, Retry, Skip
from fanout.core.sentence import in_brackets, joined
from fanout.core.statistics import SplitState
from fanout.core.subscription import Subscription
from fanout.errors import (
    EventTimeError,
    SplitFailedError,
    StreamStateError,
    SubscriptionEndedError,
)

if TYPE_CHECKING:
    from fanout.core.backoff import FullJitter
    from fanout.core.event_time import EventTime
    from fanout.core.events import Split
    from fanout.core.lifecycle_log import LifecycleLog
    from fanout.core.limits import MemoryLimit, SubscribeLimit
    from fanout.core.positions import Position
    from fanout.core.slot import Slot
    from fanout.core.source import Connection
    from fanout.core.statistics import OnResubscribe
    from fanout.errors import RetryLaterError

log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class _Interruption:
    """Why a subscription is over although its split has not ended."""

    cause: Exception
    phase: Phase


@final
class Subscriber:
    """Keep one split subscribed and hand its events to its slot.

    `position` is the place to resume from. It moves with each hand-off, with no await between, so
    that a new subscription neither skips nor repeats a record. `on_resubscribe` is called at each
    recoverable end. All splits share the two limits.
    """

    def __init__(
        self,
        split: Split,
        position: Position,
        *,
        connection: Connection,
        slot: Slot,
        memory_limit: MemoryLimit,
        subscribe_limit: SubscribeLimit,
        jitter: FullJitter,
        on_resubscribe: OnResubscribe,
        lifecycle: LifecycleLog,
        event_time: EventTime | None = None,
    ) -> None:
        self.split = split
        self.slot = slot
        self.position = position
        self.state = SplitState.SUBSCRIBING
        self.subscriptions = 0
        self.resubscriptions = 0
        self.last_cause: Exception | None = None
        self._connection = connection
        self._decode = connection.capabilities.decode
        self._memory_limit = memory_limit
        self._subscribe_limit = subscribe_limit
        self._on_resubscribe = on_resubscribe
        self._lifecycle = lifecycle
        self._jitter = jitter
        self._retries = Retries(connection.pacing, jitter)
        self._watermark = None if event_time is None else SplitWatermark(event_time)
        self._gaps: tuple[Gap, ...] = ()
        self._read: SplitState | None = None  # how reading has ended

    def __repr__(self) -> str:
        return (
            f"<Subscriber {self.split} {self.state.name} position={self.position} "
            f"failures={self._retries.failures} slot={int(self.slot.occupied)}/1>"
        )

    async def run(self) -> None:
        """Deliver the split until its end, its stop, or a failure, which the slot then holds.

        Cancellation: the subscription is closed, and every event that was not handed over stays
        after `position`.
        """
        try:
            while (interruption := await self._subscription()) is not None:
                cause = self.last_cause = interruption.cause
                self.state = SplitState.BACKING_OFF
                verdict = await self._connection.verdict(
                    cause, interruption.phase, self.split, self.position
                )
                match verdict:
                    case Finish():
                        await self._finish(verdict)
                        return
                    case Skip():
                        delay = self._skip(verdict)
                    case Retry():
                        delay = self._retry(cause, verdict)
                    case Fatal(hint):
                        self._fail(split_failure(self.split, cause, hint))
                        return
                self.resubscriptions += 1
                self._on_resubscribe(self.split, cause, delay)
                await asyncio.sleep(delay)
        except asyncio.CancelledError as error:
            if cancelled_by_us():
                raise
            self._fail(StreamStateError(f"the subscription was cancelled, but not by us: {error}"))
        except Exception as error:  # noqa: BLE001 - the consumer gets every error as the pill
            self._fail(error)
        finally:
            if self.state is not SplitState.FAILED:
                self.state = self._read or SplitState.STOPPED

    def _fail(self, error: Exception) -> None:
        self.state = SplitState.FAILED
        self.slot.fail(Failure(self.split, split_failure(self.split, error)))

    async def _subscription(self) -> _Interruption | None:
        """Run one subscription: None at the split's end or stop, else why it is over."""
        phase = Phase.SUBSCRIBE
        self.state = SplitState.SUBSCRIBING
        subscription = Subscription(
            self.split,
            self._connection,
            memory_limit=self._memory_limit,
            subscribe_limit=self._subscribe_limit,
        )
        try:
            async with subscription.open(self.position):
                phase = Phase.STREAM
                self.state = SplitState.LIVE
                self.subscriptions += 1
                self._retries.subscribed()
                self._lifecycle.subscribed(self.split, self.position)
                while self._read is None:
                    await self._deliver(subscription)
                return None
        except EventTimeError as error:
            _forget_locals(error)
            raise  # the user's function raised it, so the source has no verdict
        except Exception as error:  # noqa: BLE001 - the source's verdict says what it means
            prefer_cancellation(error)
            _forget_locals(error)
            if self._read is not None:
                log.warning(
                    "%s is read, but closing its subscription failed: %s",
                    self.split,
                    text_of(error),
                )
                return None
            if phase is Phase.SUBSCRIBE:
                self._retries.refused()
            return _Interruption(error, phase)

    async def _deliver(self, subscription: Subscription) -> None:
        """Hand one event over; no local name holds it while the next one is awaited."""
        event = await subscription.receive()
        if self._decode is not None and isinstance(event, Batch):
            event = await until_ready(
                partial(self._decode, event), self._jitter, self._decode_waits
            )
            self.state = SplitState.LIVE
            await subscription.reserve_at_least(event.nbytes)
            self._lifecycle.bad(self.split, event)
        self._lifecycle.lost(self.split, event.gaps)
        event = self._stamp(event)
        await self.slot.put(event, subscription.reserved)
        subscription.handed_over()
        self._gaps = ()
        match event:
            case End():
                self._read = SplitState.ENDED
            case Batch():
                self._advance(event.range.until)
                if self._connection.capabilities.bounded and event.lag == 0:
                    self._read = SplitState.CAUGHT_UP

    def _decode_waits(self, cause: RetryLaterError, delay: float) -> None:
        _forget_locals(cause)
        self.state, self.last_cause = SplitState.BACKING_OFF, cause
        self._lifecycle.decode_waits(self.split, self.position, cause, delay)

    def _stamp(self, event: Batch | End) -> Batch | End:
        """Add the gaps before an event, its event times, and the watermark after it."""
        gaps = self._gaps + event.gaps
        if self._watermark is not None and isinstance(event, Batch):
            event = self._watermark.stamp(event)
        return replace(event, gaps=gaps) if self._gaps else event

    def _advance(self, position: Position) -> None:
        self._retries.progressed(moved=position != self.position)
        self.position = position

    async def _finish(self, verdict: Finish) -> None:
        """Hand over the end of a split whose service sends no `End`."""
        gaps = self._gaps
        if verdict.lost:
            gaps += (self._lose(None, verdict.lost),)
        await self.slot.put(End(self.split, verdict.children, gaps))
        self._read = SplitState.ENDED

    def _skip(self, verdict: Skip) -> float:
        """Go on from another position; return the delay before that."""
        self._gaps += (self._lose(verdict.to, verdict.reason),)
        self.position = verdict.to
        self._retries.skipped()
        return self._retries.wait(Pace.FLOOR)

    def _lose(self, until: Position | None, reason: str) -> Gap:
        gap = Gap(self.position, until, reason)
        self._lifecycle.lost(self.split, (gap,))
        return gap

    def _retry(self, cause: Exception, verdict: Retry) -> float:
        """Return the delay before the next attempt, or raise SplitFailedError if there is none."""
        if reason := self._retries.failed(cause, verdict):
            hint = joined("; ", filter(None, (reason, verdict.hint)))
            raise split_failure(self.split, cause, hint)
        delay = self._retries.wait(verdict.pace)
        if verdict.pace is Pace.SLOW:
            self._lifecycle.blocked(self.split, self.position, cause, verdict.hint, delay)
        elif isinstance(cause, SubscriptionEndedError):
            self._lifecycle.renews(self.split, self.position)
        else:
            self._lifecycle.retries(
                self.split, self.position, cause, delay, failing_for=self._retries.failing_for
            )
        return delay


def _forget_locals(error: BaseException) -> None:
    """Empty the frames of an error and of what led to it; its traceback keeps files and lines.

    The error is kept for statistics, and its frames would keep records in memory.
    """
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__


def split_failure(split: Split, cause: Exception, hint: str = "") -> SplitFailedError:
    """Return the error that the consumer gets when a split cannot go on, with its cause.

    A cause that is such an error already is returned as it is.
    """
    if isinstance(cause, SplitFailedError):
        return cause
    error = SplitFailedError(f"{split} cannot go on: ", cause, in_brackets(hint))
    error.__cause__ = cause
    return error
