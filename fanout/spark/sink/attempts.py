"""Writing a batch again as a whole, a bounded number of times."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, TypeVar, final

from fanout.errors import BatchNotWrittenError, FanOutError

if TYPE_CHECKING:
    from collections.abc import Callable

    _T = TypeVar("_T")

__all__ = ("AttemptFailedError", "in_attempts")

log = logging.getLogger(__name__)

_ATTEMPTS: Final = 3


@final
class AttemptFailedError(FanOutError):
    """An attempt to write a batch failed, by what may be over; another begins from nothing."""

    retryable = True


def in_attempts(batch_id: int, attempt: Callable[[], _T]) -> _T:
    """Return what an attempt returns, and make up to three.

    Args:
        batch_id: The batch, for messages.
        attempt: Writes the whole batch; it raises AttemptFailedError where another may help.

    Raises:
        BatchNotWrittenError: All failed; the cause is why the last one did.
    """
    failures: list[AttemptFailedError] = []
    while len(failures) < _ATTEMPTS:
        try:
            return attempt()
        except AttemptFailedError as error:
            failures.append(error)
            log.warning("attempt %d to write batch %d: %s", len(failures), batch_id, error)
    raise BatchNotWrittenError(
        f"batch {batch_id} could not be written to Kafka in {_ATTEMPTS} attempts; the last one: "
        f"{failures[-1]}"
    ) from failures[-1]
