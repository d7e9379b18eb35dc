"""Make a call again: while its errors may pass, or for as long as a user's function asks for it."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, TypeVar

from tenacity import AsyncRetrying, retry_if_exception

from fanout.errors import RetryLaterError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fanout.core.backoff import FullJitter

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
