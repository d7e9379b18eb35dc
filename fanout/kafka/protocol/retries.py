"""Calls to the cluster for which a stream waits before it can begin."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from aiokafka.errors import KafkaError
from tenacity import AsyncRetrying, retry_if_exception

from fanout.core.cancellation import prefer_cancellation
from fanout.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fanout.core.backoff import FullJitter

    _T = TypeVar("_T")

__all__ = ("with_retries",)

# An election, or the restart of a broker, is over by then; somebody waits for a stream to open.
_PATIENCE: Final = 30.0


async def with_retries(
    doing: str,
    call: Callable[[], Awaitable[_T]],
    jitter: FullJitter,
    *,
    patience: float | None = None,
) -> _T:
    """Return what a call returns, trying again for a while where that may help.

    Args:
        doing: What the call is for, as a clause: `"the topics cannot be listed"`.
        call: Makes the call.
        jitter: How long to wait between two attempts.
        patience: For how many seconds it is tried again; None is half a minute.

    Raises:
        ServiceError: If the cluster refuses it for good, or does not answer for so long.
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
        raise ServiceError(f"{doing}: {str(error) or type(error).__name__}") from error
    raise AssertionError("the last attempt returns or raises")


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, KafkaError) and bool(error.retriable)
