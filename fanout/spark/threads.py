"""Work that blocks, beside a loop that must not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from fanout.core.cancellation import finished

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ("in_thread",)

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Run what blocks on the disk in a thread.

    Cancellation: the work is waited for first, so that a segment is never in two threads' hands.
    """
    return await finished(asyncio.get_running_loop().run_in_executor(None, work))
