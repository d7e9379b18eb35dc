"""Keep a cancellation that an error has taken the place of."""

from __future__ import annotations

import asyncio
import logging

__all__ = ("prefer_cancellation",)

log = logging.getLogger(__name__)


def prefer_cancellation(error: Exception) -> None:
    """Raise CancelledError if the running task has been cancelled and `error` came out instead.

    Closing a broken connection may fail, also while the task that holds it is being cancelled.
    The failure then replaces the CancelledError; whoever treats it like any other failure goes on
    working, and whoever has cancelled the task waits for ever.

    Raises:
        CancelledError: If the task has been cancelled; the error is logged.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        log.warning("an error while stopping: %s", error)
        raise asyncio.CancelledError from error
