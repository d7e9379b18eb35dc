"""Every subscribe call of a process and how it ended, compared with what the process reports."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

from fanout.errors import (
    DamagedFrameError,
    MalformedEventError,
    SubscribeTimeoutError,
    SubscriptionSilentError,
    UnconfirmedEndError,
)
from fanout.kinesis.aws.error_hints import code_of
from tests.provers.simulation.kinesis.faults import UNKNOWN_ERROR

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fanout.kinesis.options import KinesisOptions

__all__ = ("SubscribeAttempt", "SubscribeAttempts", "limit_of")

Place: TypeAlias = "tuple[str, int]"

_FORGOTTEN_AFTER: Final = 3600.0
_DAMAGE_LIMIT: Final = 3
_UNKNOWN_LIMIT: Final = 40
_MISSING_LIMIT: Final = 10


def limit_of(cause: BaseException, options: KinesisOptions) -> int | None:
    """Return how often an error may come at one place before it is fatal; None for any number.

    Args:
        cause: The error.
        options: The options of the user.
    """
    if isinstance(cause, DamagedFrameError) and options.on_bad_frame == "gap":
        return None
    if isinstance(cause, MalformedEventError):
        return _DAMAGE_LIMIT
    limits = {UNKNOWN_ERROR: _UNKNOWN_LIMIT, "ResourceNotFoundException": _MISSING_LIMIT}
    return limits.get(code_of(cause) or "")


def _must_fail(cause: BaseException, options: KinesisOptions) -> int | None:
    """Return the limit, or None for an error that may end when it is examined."""
    if isinstance(cause, UnconfirmedEndError) or code_of(cause) not in {None, UNKNOWN_ERROR}:
        return None
    return limit_of(cause, options)


@final
@dataclass(slots=True, eq=False)
class SubscribeAttempt:
    """One subscribe call, and how it ended.

    Args:
        shard_id: The shard.
        place: Where its reader stands: what it has asked for, then where the last event ends.
        waiting_since: When the reader began to wait for the answer, or for the next event.
        blocked: How long the loop had been blocked before that.
        live: Whether the call was answered.
        ending: What the service did to it: the error raised, or the type and code of the error
            that the reader has to make of it; None while it lives.
        ended_at: When.
        cause: The cause that the library has reported for its end.
        reported_at: When.
        progressed: Whether its reader has got an event.
        whole_at: When its reader asked for the last piece of a frame, infinity before: it knows
            the length from the first one, and may wait long for so much memory.
    """

    shard_id: str
    place: Place
    waiting_since: float
    blocked: float
    live: bool = False
    ending: Exception | tuple[type[Exception], str] | None = None
    ended_at: float = 0.0
    cause: Exception | None = None
    reported_at: float = 0.0
    progressed: bool = False
    whole_at: float = 0.0

    def receive(self, number: int, now: float, blocked: float, *, records: bool) -> None:
        """Record that its reader has an event up to a sequence number, and asks for more.

        Args:
            number: The sequence number.
            now: The virtual seconds.
            blocked: How many seconds the loop has been blocked until now.
            records: Whether the event has any.
        """
        # A reader inside a record stays there until the rest of that comes.
        if records or self.place[0] != "AT_SEQUENCE_NUMBER":
            self.place = "AFTER_SEQUENCE_NUMBER", number
        self.waiting_since, self.blocked = now, blocked
        self.progressed = True

    def fits(self, cause: Exception, now: float, options: KinesisOptions) -> str:
        """Return why a cause does not fit its end; an empty text where it does.

        Args:
            cause: The cause.
            now: The virtual seconds.
            options: The options of the user.
        """
        match self.ending:
            case Exception() as error:
                return "" if cause is error else f"the service raised {error!r}"
            case (kind, code):
                same = isinstance(cause, kind) and (not code or code_of(cause) == code)
                return "" if same else f"the service ended it with {kind.__name__} {code}"
            case None:
                return self._fits_silence(cause, now, options)

    def _fits_silence(self, cause: Exception, now: float, options: KinesisOptions) -> str:
        waited = now - self.waiting_since
        kind = SubscriptionSilentError if self.live else SubscribeTimeoutError
        patience = options.silence_timeout if self.live else options.subscribe_timeout
        if isinstance(cause, kind) and waited >= patience - 1e-6:
            return ""
        return f"the timeout is {patience:g} s, and the reader waited {waited:g} s"


@final
@dataclass(slots=True)
class SubscribeAttempts:
    """The subscribe calls of one process.

    `wrongs` holds what is wrong in the reports of the library. `answered` and `answered_at` say
    how many calls for a shard were answered, and when the last one was. `on_end` is called, where
    it is set, with each attempt that the service ends.
    """

    wrongs: list[str] = field(default_factory=list)
    on_end: Callable[[SubscribeAttempt], object] | None = None
    answered: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    answered_at: defaultdict[str, float] = field(
        default_factory=lambda: defaultdict(lambda: -math.inf)
    )
    reported: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    _of: defaultdict[str, list[SubscribeAttempt]] = field(default_factory=lambda: defaultdict(list))

    def begin(
        self, shard_id: str, position: Mapping[str, Any], now: float, blocked: float
    ) -> SubscribeAttempt:
        """Record a call.

        Args:
            shard_id: For which shard.
            position: From where on, as the API writes it.
            now: The virtual seconds.
            blocked: How many seconds the loop has been blocked until now.
        """
        last = self.last(shard_id)
        if last is not None and last.cause is None:
            self.wrongs.append(f"swallowed: no cause was reported for the last end of {shard_id}")
        place = position["Type"], int(position.get("SequenceNumber", 0))
        attempt = SubscribeAttempt(shard_id, place, now, blocked)
        self._of[shard_id].append(attempt)
        return attempt

    def answer(self, attempt: SubscribeAttempt, now: float) -> None:
        """Record that the process has its answer.

        Args:
            attempt: The call.
            now: The virtual seconds.
        """
        attempt.live, attempt.waiting_since = True, now
        self.answered[attempt.shard_id] += 1
        self.answered_at[attempt.shard_id] = now

    def end(
        self, attempt: SubscribeAttempt, ending: Exception | tuple[type[Exception], str], now: float
    ) -> None:
        """Record that the service ends a subscription, or refuses a call.

        Args:
            attempt: The call.
            ending: The error raised, or the type and code of the one that the reader has to make of
                it.
            now: The virtual seconds.
        """
        attempt.ending, attempt.ended_at = ending, now
        if self.on_end is not None:
            self.on_end(attempt)

    def last(self, shard_id: str) -> SubscribeAttempt | None:
        """Return the latest call for a shard."""
        return self._of[shard_id][-1] if self._of[shard_id] else None

    def report(self, shard_id: str, cause: Exception, now: float, options: KinesisOptions) -> None:
        """Record the cause that the library reports for an end, and check it.

        Args:
            shard_id: Of which shard.
            cause: The cause.
            now: The virtual seconds.
            options: The options of the user.
        """
        self.reported[shard_id] += 1
        last = self.last(shard_id)
        if last is None or last.cause is not None:
            self.wrongs.append(f"{shard_id} has no subscription that could have ended: {cause!r}")
            return
        if why := last.fits(cause, now, options):
            self.wrongs.append(f"a wrong cause was reported for {shard_id}: {cause!r}, but {why}")
        last.cause, last.reported_at = cause, now
        limit = _must_fail(cause, options)
        if limit is not None and (times := self.repeats(shard_id, cause)) >= limit:
            self.wrongs.append(f"swallowed: {shard_id} goes on after {times} times {cause!r}")

    def repeats(self, shard_id: str, cause: BaseException) -> int:
        """Return how often the latest error came at its place, as far as that is remembered.

        Args:
            shard_id: Of which shard.
            cause: The error.
        """
        *before, last = self._of[shard_id]
        times, later = 1, last
        for attempt in reversed(before):
            if (
                attempt.place != last.place
                or later.ended_at - attempt.reported_at > _FORGOTTEN_AFTER
            ):
                break
            same = type(attempt.cause) is type(cause) and code_of(attempt.cause) == code_of(cause)
            times, later = times + same, attempt
        return times
