"""A Spark driver of the demo: `python -m fanout.demo.driver OPTIONS`, a process to be killed."""

from __future__ import annotations

import sys
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeAlias, final

import msgspec

from fanout.demo.queries import (
    BatchWritten,
    Holding,
    QueryMessage,
    QueryOptions,
    Reading,
)
from fanout.demo.running_queries import BatchQuery, DataFrameQuery
from fanout.demo.sources import ShuffleSettings, make_shuffle_sink
from fanout.demo.workspace import Workspace
from fanout.spark.current_batch import current_batch
from fanout.testing.s3_clients import s3a_jars, s3a_settings
from fanout.testing.spark.driver_process import DriverStarted, run_driver
from fanout.testing.spark.session import jvm_pid, short_lived_session

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from fanout.demo.plan import Kill
    from fanout.demo.running_queries import RunningQuery
    from fanout.testing.spark.driver_process import DriverLink

_REPORT_EVERY = 0.25

# None: the demo stops the driver. Only the main thread takes from it and prints.
_Outbox: TypeAlias = "SimpleQueue[QueryMessage | None]"


def main(arguments: str) -> int:
    """Run the query until stdin closes; print messages to stdout.

    Args:
        arguments: QueryOptions as JSON.

    Returns:
        The exit code: 1 if the query has failed.
    """
    options = msgspec.json.decode(arguments, type=QueryOptions)
    outbox: _Outbox = SimpleQueue()
    return run_driver(
        lambda link: _run(options, outbox, link),
        on_stop=lambda: outbox.put(None),
    )


def _run(options: QueryOptions, outbox: _Outbox, link: DriverLink) -> None:
    workspace = Workspace(Path(options.root), options.s3)

    settings = {} if options.s3 is None else _on_s3(options.s3, workspace.scratch)
    # The task of a process that was killed is tried again, as on a cluster.
    retried = ",4" if options.landers or options.dataframe else ""
    master = f"local[{options.landers + 2}{retried}]"
    with short_lived_session("fanout demo", workspace.scratch, master=master, **settings) as spark:
        if options.s3 is not None:
            # Spark's own way to write a checkpoint is slow on a local disk only.
            spark.conf.unset("spark.sql.streaming.checkpointFileManagerClass")
        write = make_write(options, workspace)
        handler = HandlerToKill(write, options.kill, outbox.put, link.stopping)
        query: RunningQuery = (
            DataFrameQuery(spark, options, workspace, handler)
            if options.dataframe
            else BatchQuery(spark, options, workspace, handler, outbox.put)
        )
        link.send(DriverStarted(jvm_pid(spark)))
        _report(query, outbox, link)


def _on_s3(endpoint: str, scratch: Path) -> dict[str, str]:
    """Return the settings of a session that uses S3 through S3A."""
    # A file waits there for its upload.
    s3a = s3a_settings(endpoint) | {"fs.s3a.buffer.dir": str(scratch)}
    hadoop = {f"spark.hadoop.{name}": value for name, value in s3a.items()}
    return {"spark.jars": ",".join(map(str, s3a_jars())), **hadoop}


def _report(query: RunningQuery, outbox: _Outbox, link: DriverLink) -> None:
    """Send messages until the demo stops the driver, then stop the query.

    Args:
        query: The query.
        outbox: The messages of other threads.
        link: Sends messages.

    Raises:
        FanOutError: If the query has failed.
    """
    running, rows = True, 0
    while running and query.keep_running():
        link.send(Reading(query.splits()))
        # Before the driver is killed: that waits for a message which this loop has not sent.
        for killed in query.kill(rows):
            link.send(killed)
        try:
            message = outbox.get(timeout=_REPORT_EVERY)
        except Empty:
            continue
        if message is None:
            running = False
        else:
            link.send(message)
        if isinstance(message, BatchWritten):
            rows += message.rows
    query.stop()
    while not outbox.empty():
        if (message := outbox.get()) is not None:
            link.send(message)
    query.await_end()


Write: TypeAlias = "Callable[[DataFrame, int], int]"
"""Writes a batch with its id, and returns its number of records."""


def make_write(options: QueryOptions, workspace: Workspace) -> Write:
    """Return the function that writes the batches of a query."""
    if (shuffle := options.shuffle) is not None:
        sink = make_shuffle_sink(shuffle)

        def write_by_key(frame: DataFrame, batch_id: int) -> int:
            sink.write(frame, batch_id)
            return frame.count()

        return write_by_key

    def write_parquet(frame: DataFrame, batch_id: int) -> int:
        """Write a batch into a directory of its own; writing it again replaces it."""
        if isinstance(options.source, ShuffleSettings):
            workspace.report(batch_id, current_batch().watermark)
        frame.write.mode("overwrite").parquet(workspace.batch(batch_id))
        return workspace.count(batch_id)

    return write_parquet


@final
class HandlerToKill:
    """Write each batch, and wait in the one in which the driver is to be killed.

    Args:
        write: Writes a batch.
        kill: The batch in which to wait; None for none.
        send: Called with each message.
        stopping: Set when the demo stops the driver, or has died.
    """

    def __init__(
        self,
        write: Write,
        kill: Kill | None,
        send: Callable[[QueryMessage], None],
        stopping: threading.Event,
    ) -> None:
        self._write = write
        self._kill = kill
        self._send = send
        self._stopping = stopping
        self._rows = 0

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Handle one batch."""
        kill = self._kill
        kill_here = kill is not None and self._rows >= kill.after
        if kill_here and kill is not None and not kill.written:
            self._hold(batch_id, written=False)
        rows = self._write(frame, batch_id)
        if kill_here:
            self._hold(batch_id, written=True)
        self._rows += rows
        self._send(BatchWritten(batch_id, rows))

    def _hold(self, batch_id: int, *, written: bool) -> None:
        self._send(Holding(batch_id, written))
        self._stopping.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
