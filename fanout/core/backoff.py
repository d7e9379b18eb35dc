"""How often calls are made again, and how long the waits between them are."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar, final

from tenacity import AsyncRetrying, retry_if_exception
from tenacity.wait import wait_base

from fanout.core.option_checks import number
from fanout.core.policy import Pace
from fanout.errors import OptionError, RetryLaterError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from tenacity import RetryCallState

    from fanout.core.policy import Retry


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How waits grow with the number of failures in a row.

    Args:
        base: The largest wait after the first failure, in seconds.
        cap: The largest wait after any number of failures, in seconds.
        power: The factor by which the largest wait grows with each failure.

    Raises:
        OptionError: If the numbers make no growing wait.
    """

    base: float = 1.0
    cap: float = 30.0
    power: float = 2.0

    def __post_init__(self) -> None:
        for name in ("base", "cap", "power"):
            number(name, getattr(self, name))
        if not 0 < self.base <= self.cap < math.inf:
            raise OptionError(
                f"Backoff: base={self.base} and cap={self.cap} must satisfy 0 < base <= cap"
            )
        if not 1 <= self.power < math.inf:
            raise OptionError(f"Backoff: power={self.power} must be at least 1")


@final
class FullJitter(wait_base):
    """Draw each wait uniformly from zero to an exponentially growing ceiling.

    The rule is "full jitter" of the AWS Architecture Blog ("Exponential Backoff And Jitter"): it
    spreads clients that failed together better than a fixed delay with jitter added. It is also a
    tenacity wait strategy, for control-plane calls.
    """

    def __init__(self, options: Backoff, random: Random) -> None:
        self._options = options
        self._random = random

    def delay(self, failures: int) -> float:
        """Return the seconds to wait, uniform in [0, min(cap, base * power**failures)].

        `failures` are those in a row before the one that is waited for.
        """
        return self._random.uniform(0.0, self._ceiling(failures))

    def __call__(self, retry_state: RetryCallState) -> float:
        """Return the wait after attempt number 1, 2, ... for tenacity."""
        return self.delay(retry_state.attempt_number - 1)

    def _ceiling(self, failures: int) -> float:
        try:
            return min(self._options.cap, self._options.base * self._options.power**failures)
        except OverflowError:
            return self._options.cap


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """The limits that a service sets on calls, and its timeouts. All times are in seconds."""

    floor: float  # the least time between two subscribe calls of one split
    spacing: float  # the least time from a successful subscribe call to the next one of that split
    subscribe_timeout: float  # how long a subscribe call may take
    silence_timeout: float  # how long a live subscription may send nothing
    # The time between two listings of the splits. None lists them only when the stream is opened
    # and when a split has ended, as is always done in a bounded stream.
    discovery_interval: float | None
    # The least time from the last call about a split in one process to the first one in another
    # process.
    handover: float = 0.0
    slow: float = 60.0  # the wait after an error that only a person can end
    backoff: Backoff = field(default_factory=Backoff)
    max_retries: int | None = None  # failures in a row without progress before a split fails
    max_pending_subscribes: int = 64  # calls of all splits together that may wait for an answer
    max_bytes_in_flight: int = 256 * 1024 * 1024  # of all splits together, waiting for the consumer


# What is wrong with a position shows at each attempt. Errors that are an hour apart are others: an
# idle split may stay at one position for months.
_FORGOTTEN_AFTER: Final = 3600.0


@final
class Retries:
    """Count the failures of one split, or of the listings.

    A wait lasts until the service allows the next subscribe call: its floor after the last call,
    its spacing after the last successful one. Jitter comes on top, so that splits which failed
    together do not call together. Jitter grows with failures and is reset by progress, an idle
    position included, not by a subscribe call that succeeds.
    """

    def __init__(self, pacing: Pacing, jitter: FullJitter) -> None:
        self.failures = 0
        self._pacing = pacing
        self._jitter = jitter
        self._fruitless = 0
        self._progressed = False
        self._causes_here: Counter[tuple[type[Exception], Retry]] = Counter()
        self._called_at = -math.inf
        self._subscribed_at = -math.inf
        self._failed_at = self._failing_since = 0.0

    @property
    def failing_for(self) -> float:
        """Seconds from the first failure without progress since to the last one."""
        return self._failed_at - self._failing_since

    def subscribed(self) -> None:
        """Note that a subscribe call has succeeded."""
        self._called_at = self._subscribed_at = asyncio.get_running_loop().time()

    def refused(self) -> None:
        """Note that a subscribe call, or a listing, has failed."""
        self._called_at = asyncio.get_running_loop().time()

    def progressed(self, *, moved: bool) -> None:
        """Note an event; `moved` says whether the position has changed."""
        self.failures = 0
        self._progressed = True
        if moved:
            self._causes_here.clear()

    def skipped(self) -> None:
        """Note that the position has changed without an event."""
        self._causes_here.clear()

    def wait(self, pace: Pace) -> float:
        """Return the seconds to wait before the next attempt, for the failures so far."""
        pacing = self._pacing
        free_at = max(self._called_at + pacing.floor, self._subscribed_at + pacing.spacing)
        left = max(0.0, free_at - asyncio.get_running_loop().time())
        match pace:
            case Pace.FLOOR:
                return left
            case Pace.JITTER:
                return left + self._jitter.delay(self.failures - 1)
            case Pace.SLOW:
                return max(left, pacing.slow + self._jitter.delay(0))

    def failed(self, cause: Exception, verdict: Retry) -> str:
        """Count a failure; return why there is to be no other attempt, or nothing."""
        now = asyncio.get_running_loop().time()
        if now - self._failed_at > _FORGOTTEN_AFTER:
            self._causes_here.clear()
        self._failed_at = now
        if not self.failures:
            self._failing_since = now
        # Errors of one type may mean different things, for example two codes of one service.
        self._causes_here[type(cause), verdict] += 1
        repeats = self._causes_here[type(cause), verdict]
        self._fruitless = 0 if self._progressed else self._fruitless + 1
        self._progressed = False
        self.failures += 1
        if verdict.limit is not None and repeats >= verdict.limit:
            return f"the same error came {repeats} times at one position"
        most = self._pacing.max_retries
        if most is not None and self._fruitless > most:
            return f"max_retries={most} attempts in a row made no progress"
        return ""


_T = TypeVar("_T")


async def retrying(
    call: Callable[[], Awaitable[_T]],
    jitter: FullJitter,
    may_pass: Callable[[BaseException], bool],
    *,
    patience: float = math.inf,
) -> _T:
    """Return the result of a call, with further attempts after errors that may pass.

    None is made after `patience` seconds; then the error of the last attempt is raised.
    """
    clock = asyncio.get_running_loop().time
    end = clock() + patience
    attempts = AsyncRetrying(
        wait=jitter,
        stop=lambda _: clock() >= end,
        retry=retry_if_exception(may_pass),
        reraise=True,
    )
    async for attempt in attempts:
        with attempt:
            return await call()
    raise AssertionError("the last attempt returns or raises")


async def until_ready(
    attempt: Callable[[], Awaitable[_T]],
    jitter: FullJitter,
    on_wait: Callable[[RetryLaterError, float], None],
) -> _T:
    """Make an attempt until it does not raise RetryLaterError; return its result.

    `on_wait` is called before each wait, with the error and the seconds.
    """
    attempts = 0
    while True:
        try:
            return await attempt()
        except RetryLaterError as error:
            delay = jitter.delay(attempts)
            on_wait(error, delay)
        attempts += 1
        await asyncio.sleep(delay)
