"""Retry the calls for which a stream or a writer waits before it can begin."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from aiokafka.errors import KafkaError
from tenacity import AsyncRetrying, retry_if_exception

from fanout.core.cancellation import prefer_cancellation
from fanout.core.error_text import text_of
from fanout.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fanout.core.backoff import FullJitter

    _T = TypeVar("_T")

# Seconds: an election or the restart of a broker is over by then, and a user waits.
_PATIENCE: Final = 30.0


async def with_retries(
    failure: str,
    call: Callable[[], Awaitable[_T]],
    jitter: FullJitter,
    *,
    patience: float | None = None,
) -> _T:
    """Return the result of a call, with further attempts after errors that may pass.

    Args:
        failure: The clause with which an error begins: `"the topics cannot be listed"`.
        call: Makes the call.
        jitter: The waits between two attempts.
        patience: The seconds after which no further attempt is made; None is half a minute.

    Raises:
        ServiceError: If the cluster refuses the call, or the last attempt fails.
    """
    clock = asyncio.get_running_loop().time
    end = clock() + (_PATIENCE if patience is None else patience)
    try:
        async for attempt in AsyncRetrying(
            wait=jitter,
            retry=retry_if_exception(_may_pass),
            stop=lambda _: clock() >= end,
            reraise=True,
        ):
            with attempt:
                return await call()
    except (KafkaError, OSError) as error:
        prefer_cancellation(error)
        raise ServiceError(f"{failure}: {text_of(error)}") from error
    raise AssertionError("the last attempt returns or raises")


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, KafkaError) and bool(error.retriable)
