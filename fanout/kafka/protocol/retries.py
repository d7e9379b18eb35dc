"""Retry the calls for which a stream or a writer waits before it can begin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from aiokafka.errors import KafkaError

from fanout.core.backoff import retrying
from fanout.core.cancellation import prefer_cancellation
from fanout.core.error_text import text_of
from fanout.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fanout.core.backoff import FullJitter

    _T = TypeVar("_T")

# Seconds: an election or the restart of a broker is over by then. One request may take half of it,
# as in Java (`default.api.timeout.ms`, `request.timeout.ms`).
_PATIENCE: Final = 60.0


async def with_retries(
    failure: str,
    call: Callable[[], Awaitable[_T]],
    jitter: FullJitter,
    *,
    patience: float | None = None,
) -> _T:
    """Return the result of a call, with further attempts after errors that may pass.

    The last one begins within `patience` seconds; None is a minute. Then the call raises a
    ServiceError that begins with `failure`, a clause such as `"the topics cannot be listed"`.
    """
    longest = _PATIENCE if patience is None else patience
    try:
        return await retrying(call, jitter, _may_pass, patience=longest)
    except (KafkaError, OSError) as error:
        prefer_cancellation(error)
        raise ServiceError(f"{failure}: {text_of(error)}") from error


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, KafkaError) and bool(error.retriable)
