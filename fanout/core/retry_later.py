"""Make an attempt again for as long as a user's function asks for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from fanout.errors import RetryLaterError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fanout.core.backoff import FullJitter

_T = TypeVar("_T")


async def until_ready(
    attempt: Callable[[], Awaitable[_T]],
    jitter: FullJitter,
    on_wait: Callable[[RetryLaterError, float], None],
) -> _T:
    """Make an attempt until it does not raise RetryLaterError; return its result.

    Args:
        attempt: The attempt.
        jitter: The waits between two attempts.
        on_wait: Called before each wait, with the error and the seconds.

    Cancellation: no further attempt is made.
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
