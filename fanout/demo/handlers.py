"""What the queries of the demo do with a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, final

import pyarrow.parquet as pq

from fanout.demo.messages import BatchWritten, Holding
from fanout.demo.sources import ShuffleSettings
from fanout.spark.current_batch import current_batch

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from fanout.demo.messages import DriverOptions, Message
    from fanout.demo.plan import Kill
    from fanout.demo.workspace import Workspace

__all__ = ("DoomedHandler", "Write", "make_write")

Write: TypeAlias = "Callable[[DataFrame, int], int]"
"""Writes a batch, which has an id, and returns how many records it has."""


def make_write(options: DriverOptions, workspace: Workspace) -> Write:
    """Return what writes the batches of a query."""
    if (shuffle := options.shuffle) is not None:
        from fanout.demo.shuffle import make_shuffle_sink  # noqa: PLC0415 - it needs Kafka

        sink = make_shuffle_sink(shuffle)

        def write_by_key(frame: DataFrame, batch_id: int) -> int:
            sink.write(frame, batch_id)
            return frame.count()

        return write_by_key

    def write_parquet(frame: DataFrame, batch_id: int) -> int:
        """Write a batch into a directory of its own; writing it again replaces it."""
        if isinstance(options.source, ShuffleSettings):
            workspace.report(batch_id, current_batch().watermark)
        target = workspace.batch(batch_id)
        frame.write.mode("overwrite").parquet(str(target))
        return sum(pq.read_metadata(path).num_rows for path in target.glob("*.parquet"))

    return write_parquet


@final
class DoomedHandler:
    """Write each batch, and hold still in the one in which the driver is to be killed.

    Args:
        write: How a batch is written.
        kill: In which batch to hold still; None for none.
        tell: Is told what happens.
        stopping: Set when the demo wants no more, or has died.
    """

    def __init__(
        self,
        write: Write,
        kill: Kill | None,
        tell: Callable[[Message], None],
        stopping: threading.Event,
    ) -> None:
        self._write = write
        self._kill = kill
        self._tell = tell
        self._stopping = stopping
        self._rows = 0

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Handle one batch."""
        kill = self._kill
        doomed = kill is not None and self._rows >= kill.after
        if doomed and kill is not None and not kill.written:
            self._hold(batch_id, written=False)
        rows = self._write(frame, batch_id)
        if doomed:
            self._hold(batch_id, written=True)
        self._rows += rows
        self._tell(BatchWritten(batch_id, rows))

    def _hold(self, batch_id: int, *, written: bool) -> None:
        self._tell(Holding(batch_id, written))
        self._stopping.wait()
