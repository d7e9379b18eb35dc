"""Full-jitter backoff: how long to wait before asking again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from tenacity.wait import wait_base

from fanout.errors import OptionError

if TYPE_CHECKING:
    from random import Random

    from tenacity import RetryCallState

__all__ = ("BackoffOptions", "FullJitter")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffOptions:
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
        if not 0 < self.base <= self.cap < math.inf:
            raise OptionError(
                f"backoff_base={self.base} and backoff_cap={self.cap} must satisfy 0 < base <= cap"
            )
        if not 1 <= self.power < math.inf:
            raise OptionError(f"backoff_power={self.power} must be at least 1")


@final
class FullJitter(wait_base):
    """Draw each wait uniformly from zero to an exponentially growing ceiling.

    The rule is "full jitter" of the AWS Architecture Blog ("Exponential Backoff And Jitter"):
    it spreads clients that failed together better than a fixed delay with jitter added. It is
    also a tenacity wait strategy, for control-plane calls.

    Args:
        options: Base, cap and growth.
        random: The source of randomness; pass a seeded one for a repeatable run.
    """

    def __init__(self, options: BackoffOptions, random: Random) -> None:
        self._options = options
        self._random = random

    def delay(self, failures: int) -> float:
        """Return the seconds to wait, uniform in [0, min(cap, base * power**failures)].

        Args:
            failures: The number of failures in a row before the one that is waited for.
        """
        return self._random.uniform(0.0, self._ceiling(failures))

    def __call__(self, retry_state: RetryCallState) -> float:
        """Return the wait that tenacity asks for after attempt number 1, 2, ..."""
        return self.delay(retry_state.attempt_number - 1)

    def _ceiling(self, failures: int) -> float:
        try:
            return min(self._options.cap, self._options.base * self._options.power**failures)
        except OverflowError:
            return self._options.cap
