"""Set a batch aside whose handler has failed, where the user has said how."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias, final

from pyspark.sql import DataFrame

from fanout.core.error_text import text_of
from fanout.core.user_functions import UnfinishedError, call
from fanout.errors import (
    BatchFailedError,
    BatchNotWrittenError,
    FanOutError,
    OptionError,
    ServiceError,
    UnwritableRecordError,
)
from fanout.spark.hadoop.jvm import has_gone, is_caused_by

if TYPE_CHECKING:
    from fanout.landing.log.ledger import LedgerBatch
    from fanout.landing.log.set_aside import SetAsideLog

OnFailedBatch: TypeAlias = Callable[[DataFrame, int, BatchFailedError], None]
"""Called with the records of a batch, its id, and the error of its handler."""

# Of the errors of this library those that may be about the rows; the others are about the query,
# or about a service, and the rows are fine.
_ABOUT_ROWS: Final = (UnwritableRecordError, BatchNotWrittenError)
# What is behind the error of a sink whose store or connection has failed: classes of Java, and
# those of SQLSTATE, where a connection that is lost has none.
_OF_STORAGE: Final = (
    "java.io.IOException",
    "java.sql.SQLNonTransientConnectionException",
    "java.sql.SQLRecoverableException",
    "java.sql.SQLTransientException",
)
_OF_SERVER: Final = frozenset({"", "08", "53", "57", "58"})
_PLACES: Final = 100


@final
class FailedBatches:
    """Give batches whose handler has failed to the user's function; None sets no batch aside.

    That a batch is set aside is durable before the function is called: a replay calls the function
    again, and never the handler, whose second attempt might succeed.
    """

    def __init__(self, function: OnFailedBatch | None, log: SetAsideLog) -> None:
        self._function = function
        self._log = log

    def takes(self, error: BatchFailedError) -> bool:
        """Say whether a batch is set aside for an error of its handler."""
        cause = error.__cause__
        if self._function is None or not isinstance(cause, Exception):
            return False  # as for SystemExit, by which the user ends the program
        if isinstance(cause, UnfinishedError) or has_gone(cause):
            return False
        if isinstance(cause, BatchNotWrittenError) and _is_of_storage(cause.__cause__):
            return False
        return not isinstance(cause, FanOutError) or isinstance(cause, _ABOUT_ROWS)

    def begun(self, batch_id: int) -> BatchFailedError | None:
        """Return the error for which an earlier run has set a batch aside; None if it has not.

        Raises:
            OptionError: If there is no function to set it aside.
        """
        batch = self._log.find(batch_id)
        if batch is None:
            return None
        if self._function is None:
            raise OptionError(
                f"batch {batch_id} was being set aside when the last run ended, and has to be: "
                f"pass on_failed_batch once more"
            )
        return BatchFailedError(
            f"in an earlier run the handler raised {batch.error} in batch {batch_id}"
        )

    def set_aside(
        self,
        frame: DataFrame,
        batch: LedgerBatch,
        error: BatchFailedError,
        stopped: Callable[[], bool],
    ) -> None:
        """Call the function with a batch whose handler has failed.

        `stopped` returns whether Spark's side of the query was stopped, which cuts the function
        off.

        Raises:
            BatchFailedError: If the function raises; the batch is not set aside then.
            CheckpointError: If a newer run owns the checkpoint.
        """
        assert self._function is not None, "begun and takes have looked"
        batch_id = batch.batch_id
        if self._log.find(batch_id) is None:
            name = type(error.__cause__ or error).__name__
            self._log.add(batch_id, rows=batch.rows, error=name, places=batch.places(_PLACES))
        try:
            call(self._function, frame, batch_id, error)
        except BaseException as raised:
            refuses = raised is error or raised is error.__cause__
            if refuses or not (stopped() or has_gone(raised)):
                self._log.remove(batch_id)
            if refuses:
                raise error from error.__cause__
            says = (
                "" if isinstance(raised, UnfinishedError) else f"raised {type(raised).__name__}: "
            )
            raise BatchFailedError(
                f"on_failed_batch {says}{text_of(raised)}; it was called because {error}"
            ) from raised


def _is_of_storage(error: BaseException | None) -> bool:
    """Return whether a sink has failed because of what it writes to, not because of the rows."""
    if error is None:
        return False
    if isinstance(error, (ServiceError, OSError)) or is_caused_by(error, *_OF_STORAGE):
        return True
    # Drivers of Python's DB API; the server sends no state where it does not answer any more.
    return hasattr(error, "sqlstate") and (error.sqlstate or "")[:2] in _OF_SERVER
