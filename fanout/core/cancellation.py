"""Tell our own cancellation of a task from errors that look like it or hide it."""

from __future__ import annotations

import asyncio
import logging

__all__ = ("cancelled_by_us", "prefer_cancellation")

log = logging.getLogger(__name__)


def cancelled_by_us() -> bool:
    """Tell whether somebody has cancelled the running task, and has not taken that back.

    A library may raise CancelledError for reasons of its own. A task group takes that for a task
    that was stopped on purpose, so a split would be lost without a word.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def prefer_cancellation(error: Exception) -> None:
    """Raise CancelledError if the running task has been cancelled and `error` came out instead.

    Closing a broken connection may fail, also while the task that holds it is being cancelled.
    The failure then replaces the CancelledError; whoever treats it like any other failure goes on
    working, and whoever has cancelled the task waits for ever.

    Raises:
        CancelledError: If the task has been cancelled; the error is logged.
    """
    if cancelled_by_us():
        log.warning("an error while stopping: %s", error)
        raise asyncio.CancelledError from error
