"""A Spark driver of the demo: `python -m fanout.demo.driver OPTIONS`, a process to be killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
from pyspark.errors import StreamingQueryException

from fanout.core.error_text import text_of
from fanout.core.remote_error import ForeignError
from fanout.demo.options import DemoFailedError
from fanout.demo.plan import SparkProcess, draw_plan
from fanout.demo.queries import (
    BatchBegun,
    BatchWritten,
    Holding,
    ProcessesKilled,
    QueryName,
    QueryOptions,
    Reading,
    Resubscribed,
)
from fanout.demo.sources import make_shuffle_sink, make_source
from fanout.spark import OnExecutors, foreach_batch
from fanout.spark.dataframe.read_stream import read_stream
from fanout.spark.hadoop.jvm import jvm
from fanout.spark.query.batch_context import current_batch
from fanout.testing.s3_clients import s3a_jars, s3a_settings
from fanout.testing.spark.driver_process import DriverStarted, run_driver
from fanout.testing.spark.session import jvm_pid, short_lived_session

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from fanout.core.events import Split
    from fanout.demo.plan import ProcessKill
    from fanout.testing.spark.driver_process import DriverLink

# The least number of batches, so that there are some before and after the one that is killed.
_BATCHES: Final = 8
_LOOK = 0.01
# How long a killed process may take to end, and a planner that Spark has told to end: that one
# closes its subscriptions first, which is given up after 10 s.
_DEATH: Final = 10
_FAREWELL: Final = 30
# A part of the command line of each process of a kind.
_MODULES: Final = {
    SparkProcess.PLANNER: "python_streaming_source_runner",
    SparkProcess.WORKER: "pyspark.daemon pyspark.worker",
}
_REPORT_EVERY = 0.25


@final
class HandlerToKill:
    """Write each batch of a query, and wait in the one in which the driver is to be killed.

    `kills` has the kills of processes that are still to come.
    """

    def __init__(self, options: QueryOptions, link: DriverLink) -> None:
        plan = draw_plan(options.demo)
        self.kills = deque(plan.kill_processes)
        self._shuffled = options.query is QueryName.READING
        kill = plan.kill_reader if self._shuffled else plan.kill
        self._kill = None if options.restarted else kill
        self._sink = make_shuffle_sink(options) if options.query is QueryName.SHUFFLING else None
        self.options = options
        self.link = link
        self._rows = 0

    def due(self) -> ProcessKill | None:
        """Return the kill of processes whose time has come."""
        return self.kills[0] if self.kills and self.kills[0].after <= self._rows else None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Handle one batch."""
        watermark = current_batch().watermark if self._shuffled else None
        self.link.send(BatchBegun(batch_id, watermark))
        kill = self._kill if self._kill is not None and self._rows >= self._kill.after else None
        if kill is not None and not kill.written:
            self._hold(batch_id, written=False)
        written = self._write(frame, batch_id)
        if kill is not None:
            self._hold(batch_id, written=True)
        self._rows += written.rows
        self.link.send(written)

    def _write(self, frame: DataFrame, batch_id: int) -> BatchWritten:
        """Write a batch into a directory of its own, or by key; writing it again replaces it."""
        if self._sink is not None:
            self._sink.write(frame, batch_id)
            return BatchWritten(batch_id, frame.count())
        frame.write.mode("overwrite").parquet(self.options.workspace.batch(batch_id))
        splits = [record.split for record in self.options.workspace.read_output(batch_id)]
        return BatchWritten(batch_id, len(splits), frozenset(splits))

    def _hold(self, batch_id: int, *, written: bool) -> None:
        while self.kills and not self.link.stopping.wait(_LOOK):
            pass  # other processes are killed before their driver
        self.link.send(Holding(batch_id, written))
        self.link.stopping.wait()


@final
class BatchQuery:
    """A query of `foreach_batch`, whose landers may be killed."""

    def __init__(self, spark: SparkSession, handler: HandlerToKill) -> None:
        options = handler.options

        def on_resubscribe(split: Split, cause: Exception, delay: float) -> None:
            name = cause.name if isinstance(cause, ForeignError) else type(cause).__name__
            handler.link.send(Resubscribed(split.id, name, delay))

        self._link = handler.link
        self._query = foreach_batch(
            spark,
            make_source(options),
            handler,
            checkpoint_location=options.workspace.checkpoint(options.query),
            max_records=options.demo.records // _BATCHES,
            on_resubscribe=on_resubscribe,
            landing=OnExecutors(landers=options.demo.landers) if options.demo.landers else None,
        )

    def keep_running(self) -> bool:
        """Tell which splits the query reads, and return whether it runs."""
        statistics = self._query.statistics()
        left_out = 0 if statistics.lending is None else statistics.lending.repeated
        self._link.send(Reading(tuple(statistics.splits), left_out))
        return self._query.is_active

    def kill(self, process: SparkProcess) -> ProcessesKilled | None:
        """Kill the lander that reads most; return None if there is none yet."""
        landers = self._query.statistics().landers
        if not landers:
            return None
        lander = max(landers, key=lambda lander: lander.splits)
        with suppress(ProcessLookupError):
            os.kill(lander.pid, signal.SIGKILL)
        read = f"process {lander.pid}, which reads {lander.splits} splits"
        return ProcessesKilled(process, 1, f"SIGKILL lander {lander.lander}, {read}")

    def end(self) -> None:
        """Let the query finish its batch and stop; raise its error."""
        self._query.stop()
        self._query.await_termination()


@final
class DataFrameQuery:
    """A query of a streaming DataFrame, whose planner and workers may be killed.

    Spark runs the tasks of a killed worker again. A query whose planner is killed fails, and is
    started again on its checkpoint.
    """

    def __init__(self, spark: SparkSession, handler: HandlerToKill) -> None:
        options = handler.options
        self._spark = spark
        self._name = options.query
        self._lost_planner = False
        frame = read_stream(
            spark,
            make_source(options),
            landing=f"{options.workspace.root}/landing",
            options={"maxRecordsPerTrigger": options.demo.records // _BATCHES},
        )
        checkpoint = options.workspace.checkpoint(options.query)
        self._writer = frame.writeStream.foreachBatch(handler).option(
            "checkpointLocation", checkpoint
        )
        self._query: StreamingQuery = self._writer.start()

    def keep_running(self) -> bool:
        """Return whether the query runs; one that has lost its planner is started again."""
        if self._lost_planner and not self._query.isActive:
            self._lost_planner = False
            self._query = self._writer.start()
        return self._query.isActive

    def kill(self, process: SparkProcess) -> ProcessesKilled | None:
        """Kill all processes of a kind; return None if Spark is about to start them."""
        running = self._processes(process)
        if not running:
            return None
        for each in running:
            each.destroyForcibly()  # SIGKILL; false for one that has just ended by itself
        self._await_end(running, _DEATH)
        self._lost_planner |= process is SparkProcess.PLANNER
        pids = ", ".join(str(each.pid()) for each in running)
        killed = f"SIGKILL each {process} of the {self._name}: {pids}"
        return ProcessesKilled(process, len(running), killed)

    def end(self) -> None:
        """Stop the query, and wait until its planner has ended; raise the query's error.

        A query whose planner was killed when all was read fails by that, and is not started again.
        """
        if self._lost_planner:
            self._await_failure()
            return
        planners = self._processes(SparkProcess.PLANNER)
        self._query.stop()
        # Spark does not wait for it. It may still write to the landing, which the demo deletes.
        self._await_end(planners, _FAREWELL)
        error = self._query.exception()
        if error is not None:
            raise DemoFailedError(text_of(error)) from error

    def _await_failure(self) -> None:
        """Wait until the query has failed, because its planner was killed."""
        with suppress(StreamingQueryException):
            self._query.awaitTermination(_DEATH)
        if self._query.isActive:
            raise DemoFailedError("the planner was killed, and the query has not failed by that")

    def _processes(self, process: SparkProcess) -> list[Any]:
        """Return Java's handles of the processes of a kind that Spark runs."""
        handles = jvm(self._spark).java.lang.ProcessHandle.current().descendants().toArray()
        return [
            each for each in handles if _MODULES[process] in each.info().commandLine().orElse("")
        ]

    def _await_end(self, processes: Iterable[Any], patience: int) -> None:
        """Wait until processes have ended."""
        seconds = jvm(self._spark).java.util.concurrent.TimeUnit.SECONDS
        for each in processes:
            each.onExit().get(patience, seconds)


def main(arguments: str) -> int:
    """Run the query until stdin closes, print messages to stdout, and return the exit code."""
    options = msgspec.json.decode(arguments, type=QueryOptions)
    return run_driver(lambda link: _run(options, link))


def _run(options: QueryOptions, link: DriverLink) -> None:
    workspace = options.workspace
    settings = {} if workspace.s3 is None else _on_s3(workspace.s3, str(workspace.scratch))
    # The task of a process that was killed is tried again, as on a cluster.
    landers, dataframe = options.demo.landers, options.demo.dataframe
    master = f"local[{landers + 2}{',4' if landers or dataframe else ''}]"
    with short_lived_session("fanout demo", workspace.scratch, master=master, **settings) as spark:
        if workspace.s3 is not None:
            # Spark's own way to write a checkpoint is slow on a local disk only.
            spark.conf.unset("spark.sql.streaming.checkpointFileManagerClass")
        handler = HandlerToKill(options, link)
        query = (DataFrameQuery if dataframe else BatchQuery)(spark, handler)
        link.send(DriverStarted(jvm_pid(spark)))
        while not link.stopping.wait(_REPORT_EVERY) and query.keep_running():
            if (kill := handler.due()) is not None:
                time.sleep(kill.delay)  # so that kills come at any moment of a batch
                if (killed := query.kill(kill.process)) is not None:
                    link.send(killed)
                    handler.kills.popleft()
        query.end()


def _on_s3(endpoint: str, scratch: str) -> dict[str, str]:
    """Return the settings of a session that uses S3 through S3A, where a file waits in scratch."""
    s3a = s3a_settings(endpoint) | {"fs.s3a.buffer.dir": scratch}
    hadoop = {f"spark.hadoop.{name}": value for name, value in s3a.items()}
    return {"spark.jars": ",".join(map(str, s3a_jars())), **hadoop}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
