"""The consumer's side of acquired records: give a batch back, or refuse rows of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from fanout.core.events import Batch
from fanout.core.option_checks import as_sequence, check_text, whole, wrong_type
from fanout.core.positions import reaches
from fanout.errors import OptionError, StreamStateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.core.progress import Progress
    from fanout.core.source import RecordLocks
    from fanout.core.statistics import LendingStatistics


@final
class StreamLending:
    """The verbs for records that are locked for a stream; see `FanOut.lending`.

    Args:
        locks: The service's locks.
        progress: What the stream has delivered.
    """

    def __init__(self, locks: RecordLocks, progress: Progress) -> None:
        self._locks = locks
        self._progress = progress

    @property
    def seconds(self) -> float:
        """Within how many seconds what was delivered has to be acknowledged."""
        return self._locks.seconds

    @property
    def statistics(self) -> LendingStatistics:
        """The acquired records, counted by what became of them; from any thread."""
        return self._locks.statistics

    async def release(self, batch: Batch) -> None:
        """Give a batch back at once, so that any consumer gets its records again.

        Args:
            batch: A batch that is not acknowledged.

        Raises:
            StreamStateError: If the stream did not deliver the batch.

        Cancellation: the records may or may not be given back.
        """
        self._check_delivered(batch)
        await self._locks.release(batch.split.id, batch.range)

    async def reject(self, batch: Batch, rows: Sequence[int], *, reason: str) -> None:
        """Refuse rows of a batch for good; its other rows stay as they are.

        Args:
            batch: A batch that is not acknowledged.
            rows: The numbers of the rows, from 0.
            reason: Why they are refused, for people; it goes with them where the source keeps what
                was refused.

        Raises:
            OptionError: If the batch has no such row.
            StreamStateError: If the stream did not deliver the batch.
            AcknowledgementError: If the service did not take the refusal of some of the records.

        Cancellation: the records may or may not be refused.
        """
        self._check_delivered(batch)
        rows = as_sequence("rows", rows, "the numbers of rows")
        check_text("reason", reason, or_none=False)
        if wrong := [row for row in rows if not 0 <= whole("rows", row) < batch.num_records]:
            raise OptionError(f"the batch has {batch.num_records} rows, so none is {wrong[0]}")
        await self._locks.reject(batch.split.id, batch.range, rows, reason)

    def _check_delivered(self, batch: Batch) -> None:
        if not isinstance(batch, Batch):
            raise wrong_type("batch", batch, "a batch that the stream has delivered")
        id_ = batch.split.id
        if id_ not in self._progress or not reaches(
            self._progress[id_].delivered, batch.range.until
        ):
            raise StreamStateError(f"the batch of {id_} was not delivered by this stream")
