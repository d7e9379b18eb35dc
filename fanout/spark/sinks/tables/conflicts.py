"""Write a batch again where another writer has changed its table meanwhile."""

from __future__ import annotations

import logging
from random import Random
from typing import TYPE_CHECKING, Final

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt

from fanout.core.backoff import Backoff, FullJitter
from fanout.spark.hadoop.jvm import JAVA_ERRORS, first_and_last_cause

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

# A commit of the other writer may take as long as one of ours.
_ATTEMPTS: Final = 30
_WAITS: Final = Backoff(base=0.2, cap=10.0)


def in_attempts(
    attempt: Callable[[], object], is_conflict: Callable[[BaseException], bool]
) -> None:
    """Call a function, and again where another writer has changed the table meanwhile.

    `attempt` looks whether the batch is in the table as it is now, and writes it if not.
    `is_conflict`
    says whether an error of Java is such a change.
    """
    attempts = Retrying(
        stop=stop_after_attempt(_ATTEMPTS),
        wait=FullJitter(_WAITS, Random()),  # noqa: S311 - jitter, no secret
        retry=retry_if_exception(
            lambda error: isinstance(error, JAVA_ERRORS) and is_conflict(error)
        ),
        before_sleep=_tell,
        reraise=True,
    )
    attempts(attempt)


def _tell(state: RetryCallState) -> None:
    error = None if state.outcome is None else state.outcome.exception()
    says = "" if error is None else first_and_last_cause(error)
    log.warning("another writer has changed the table, so the batch is tried again: %s", says)
