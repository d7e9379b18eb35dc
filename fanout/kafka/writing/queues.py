"""What waits for its turn to be sent to one partition."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, final

import pyarrow as pa

from fanout.kafka.writing.producing import Batch
from fanout.kafka.writing.rows import cut

if TYPE_CHECKING:
    from fanout.kafka.partitions import Partition

__all__ = ("Queue",)


@final
@dataclass(slots=True, eq=False)
class Queue:
    """The batches of a partition, of which only the first is sent.

    Args:
        partition: The partition.
        batches: Its batches.
        failures: How many times in a row the first one failed.
        max_bytes: What is larger is cut before it is sent, because the topic takes no more.
    """

    partition: Partition
    batches: deque[Batch] = field(default_factory=deque)
    failures: int = 0
    max_bytes: float = float("inf")

    def shape_first(self, batch_size: int) -> None:
        """Cut the first batch where it is too large, or put those behind it into it.

        Each batch takes an answer of the broker before the next one is sent, and small ones as
        long as large ones. What was sent stays as it is: it may have arrived.

        Args:
            batch_size: About the most bytes in a batch.
        """
        first = self.batches[0]
        if first.nbytes > self.max_bytes and len(first.rows) > 1:
            parts = [
                Batch(rows, nbytes, first.deadline)
                for rows, nbytes in cut(first.rows, int(self.max_bytes))
            ]
            self.batches.popleft()
            self.batches.extendleft(reversed(parts))
        elif not first.attempts:
            self._join_first(min(batch_size, self.max_bytes))

    def _join_first(self, max_bytes: float) -> None:
        """Make one batch of the first ones, as many as are no larger together."""
        first = self.batches[0]
        count, nbytes = 1, first.nbytes
        for batch in islice(self.batches, 1, None):
            if nbytes + batch.nbytes > max_bytes:
                break
            count, nbytes = count + 1, nbytes + batch.nbytes
        if count == 1:
            return
        table = pa.Table.from_batches([self.batches.popleft().rows for _ in range(count)])
        (rows,) = table.combine_chunks().to_batches()
        self.batches.appendleft(Batch(rows, nbytes, first.deadline))
