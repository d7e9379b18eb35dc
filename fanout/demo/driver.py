"""The Spark driver of the demo: `python -m fanout.demo.driver OPTIONS`, a process to be killed."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeAlias, final

import msgspec
import pyarrow.parquet as pq

from fanout.demo.messages import (
    BatchWritten,
    DriverOptions,
    Failed,
    Holding,
    Message,
    Reading,
    Resubscribed,
    Started,
)
from fanout.demo.sources import make_source
from fanout.demo.workspace import Workspace
from fanout.errors import FanOutError
from fanout.spark import foreach_batch
from fanout.testing.driver_session import jvm_pid, short_lived_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from fanout.core.lineage import Split
    from fanout.demo.plan import Kill
    from fanout.spark import FanOutQuery

__all__ = ("main",)

_STDIN = 0

_REPORT_EVERY = 0.25

# None says that the demo wants the driver to stop. The main thread alone takes and prints.
_Outbox: TypeAlias = "SimpleQueue[Message | None]"


@final
class ParquetHandler:
    """Write each batch into a directory of its own; writing it again replaces it.

    Args:
        workspace: Where the directories are.
        kill: In which batch to hold still; None for none.
        outbox: Where messages go.
        stopping: Set when the demo wants no more, or has died.
    """

    def __init__(
        self, workspace: Workspace, kill: Kill | None, outbox: _Outbox, stopping: threading.Event
    ) -> None:
        self._workspace = workspace
        self._kill = kill
        self._outbox = outbox
        self._stopping = stopping
        self._rows = 0

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Handle one batch."""
        kill = self._kill
        doomed = kill is not None and self._rows >= kill.after
        if doomed and kill is not None and not kill.written:
            self._hold(batch_id, written=False)
        target = self._workspace.batch(batch_id)
        frame.write.mode("overwrite").parquet(str(target))
        if doomed:
            self._hold(batch_id, written=True)
        rows = sum(pq.read_metadata(path).num_rows for path in target.glob("*.parquet"))
        self._rows += rows
        self._outbox.put(BatchWritten(batch_id, rows))

    def _hold(self, batch_id: int, *, written: bool) -> None:
        self._outbox.put(Holding(batch_id, written))
        self._stopping.wait()


def main(arguments: str) -> int:
    """Run the query until stdin closes; print messages to stdout.

    Args:
        arguments: DriverOptions as JSON.

    Returns:
        The exit code: 1 if the query has failed.
    """
    options = msgspec.json.decode(arguments, type=DriverOptions)
    workspace = Workspace(Path(options.root))
    outbox: _Outbox = SimpleQueue()
    stopping = threading.Event()
    threading.Thread(target=_await_stop, args=(outbox, stopping), daemon=True).start()

    def on_resubscribe(split: Split, cause: Exception, delay: float) -> None:
        outbox.put(Resubscribed(split.id, type(cause).__name__, delay))

    try:
        with short_lived_session("fanout demo", workspace.scratch) as spark:
            query = foreach_batch(
                spark,
                make_source(options.source),
                ParquetHandler(workspace, options.kill, outbox, stopping),
                checkpoint_location=str(workspace.checkpoint),
                max_records=options.max_records,
                on_resubscribe=on_resubscribe,
            )
            _send(Started(jvm_pid(spark)))
            _report(query, outbox)
    except FanOutError as error:
        _send(Failed(str(error)))
        return 1
    return 0


def _await_stop(outbox: _Outbox, stopping: threading.Event) -> None:
    # Below sys.stdin, whose lock a thread that still reads would hold when the interpreter ends.
    while os.read(_STDIN, 1024):
        pass
    stopping.set()
    outbox.put(None)


def _report(query: FanOutQuery, outbox: _Outbox) -> None:
    """Print what happens until the demo wants no more, then stop the query.

    Raises:
        FanOutError: If the query has failed.
    """
    wanted = True
    while wanted and query.is_active:
        _send(Reading(tuple(query.statistics().splits)))
        try:
            message = outbox.get(timeout=_REPORT_EVERY)
        except Empty:
            continue
        if message is None:
            wanted = False
        else:
            _send(message)
    query.stop()
    while not outbox.empty():
        if (message := outbox.get()) is not None:
            _send(message)
    query.await_termination()


def _send(message: Message) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
