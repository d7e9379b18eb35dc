"""Make the calls that describe and list, also while many readers begin together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from fanout.core.backoff import retrying
from fanout.kinesis.policy import passes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fanout.core.backoff import FullJitter

# Seconds. Twenty calls a second in an account may describe a stream (AWS API reference,
# DescribeStreamSummary), and five calls a second may list the consumers of one.
_TIMEOUT: Final = 60.0

_T = TypeVar("_T")


async def until_answered(call: Callable[[], Awaitable[_T]], jitter: FullJitter) -> _T:
    """Make a call; repeat it for a minute while the service refuses it for now."""
    return await retrying(call, jitter, passes, patience=_TIMEOUT)
