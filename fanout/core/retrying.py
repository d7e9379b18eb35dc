"""Make a call again while its errors may pass."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, TypeVar

from tenacity import AsyncRetrying, retry_if_exception

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

    Args:
        call: Makes the call.
        jitter: The waits between two attempts.
        may_pass: Whether another attempt may succeed after an error.
        patience: The seconds after which no further attempt is made.

    Raises:
        Exception: The error of the last attempt.
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
