"""Check how long a shard waits before it is subscribed to again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from botocore.exceptions import BotoCoreError

from fanout.errors import SubscribeTimeoutError, SubscriptionSilentError

if TYPE_CHECKING:
    from fanout.core.backoff import Pacing

__all__ = ("BackoffCheck",)

# Errors that are waited for with full jitter.
_JITTERED: Final = (BotoCoreError, SubscribeTimeoutError, SubscriptionSilentError)
# A wait out of [0, 30) seconds is as short as this once in 15 times, and eight in a row once in
# two thousand million.
_SHORT: Final = 2.0
_CHANCE: Final = 8
_MANY: Final = 64


@final
@dataclass(slots=True)
class BackoffCheck:
    """Check the waits of one shard: with full jitter, longer with each failure without progress."""

    _failures: int = 0
    _short: int = 0

    def check(self, cause: Exception, delay: float, pacing: Pacing, *, progressed: bool) -> str:
        """Record a wait; return what is wrong about it, or nothing.

        Args:
            cause: Why the shard is waited for.
            delay: For how many seconds.
            pacing: The rule.
            progressed: Whether an event was handed over since the wait before.
        """
        self._failures = 1 if progressed else self._failures + 1
        backoff = pacing.backoff
        growth = backoff.power ** min(self._failures - 1, _MANY)
        ceiling = min(backoff.cap, backoff.base * growth)
        longest = max(pacing.floor, pacing.spacing) + ceiling
        for_a_person = pacing.slow <= delay <= pacing.slow + backoff.base
        if not (0 <= delay <= longest or for_a_person):
            return f"a wait of {delay:g} s after {self._failures} failures, not up to {longest:g}"
        if ceiling == backoff.cap and isinstance(cause, _JITTERED):
            self._short = self._short + 1 if delay <= _SHORT else 0
        if self._short == _CHANCE:
            return f"the last {_CHANCE} of {self._failures} waits were {_SHORT:g} s at most"
        return ""
