"""The query of a driver: one of `foreach_batch`, or one of a streaming DataFrame."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias, final

from fanout.core.error_text import text_of
from fanout.demo.options import DemoFailedError
from fanout.demo.plan import SparkProcess
from fanout.demo.queries import ProcessesKilled, Resubscribed
from fanout.demo.sources import make_source
from fanout.landers.failures import LanderCause
from fanout.spark import OnExecutors, foreach_batch
from fanout.spark.dataframe.read_stream import read_stream
from fanout.spark.hadoop.jvm import jvm

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from fanout.core.events import Split
    from fanout.demo.queries import QueryOptions
    from fanout.demo.workspace import Workspace
    from fanout.testing.spark.driver_process import DriverLink

Handler: TypeAlias = "Callable[[DataFrame, int], None]"

# The least number of batches, so that there are some before and after the one that is killed.
_BATCHES: Final = 8
# How long a killed process may take to end.
_DEATH: Final = 10
# A part of the command line of each process of a kind.
_MODULES: Final = {
    SparkProcess.PLANNER: "python_streaming_source_runner",
    SparkProcess.WORKER: "pyspark.daemon pyspark.worker",
}


@final
class BatchQuery:
    """A query of `foreach_batch`, whose landers may be killed."""

    def __init__(
        self,
        spark: SparkSession,
        options: QueryOptions,
        workspace: Workspace,
        handler: Handler,
        link: DriverLink,
    ) -> None:
        def on_resubscribe(split: Split, cause: Exception, delay: float) -> None:
            name = cause.name if isinstance(cause, LanderCause) else type(cause).__name__
            link.send(Resubscribed(split.id, name, delay))

        self._query = foreach_batch(
            spark,
            make_source(options),
            handler,
            checkpoint_location=workspace.checkpoint(options.query),
            max_records=options.demo.records // _BATCHES,
            on_resubscribe=on_resubscribe,
            landing=OnExecutors(landers=options.demo.landers) if options.demo.landers else None,
        )

    def keep_running(self) -> bool:
        """Return whether the query runs."""
        return self._query.is_active

    def splits(self) -> tuple[str, ...]:
        """Return the splits that the query reads."""
        return tuple(self._query.statistics().splits)

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

    def __init__(
        self,
        spark: SparkSession,
        options: QueryOptions,
        workspace: Workspace,
        handler: Handler,
        link: DriverLink,
    ) -> None:
        del link
        self._spark = spark
        self._name = options.query
        self._lost_planner = False
        frame = read_stream(
            spark,
            make_source(options),
            landing=f"{options.root}/landing",
            options={"maxRecordsPerTrigger": options.demo.records // _BATCHES},
        )
        checkpoint = workspace.checkpoint(options.query)
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

    def splits(self) -> tuple[str, ...]:
        """Return none: a planner does not report what it reads."""
        return ()

    def kill(self, process: SparkProcess) -> ProcessesKilled | None:
        """Kill all processes of a kind; return None if Spark is about to start them."""
        handles = jvm(self._spark).java.lang.ProcessHandle.current().descendants().toArray()
        running = [
            each for each in handles if _MODULES[process] in each.info().commandLine().orElse("")
        ]
        if not running:
            return None
        seconds = jvm(self._spark).java.util.concurrent.TimeUnit.SECONDS
        for each in running:
            each.destroyForcibly()  # SIGKILL; false for one that has just ended by itself
        for each in running:
            each.onExit().get(_DEATH, seconds)
        self._lost_planner |= process is SparkProcess.PLANNER
        pids = ", ".join(str(each.pid()) for each in running)
        killed = f"SIGKILL each {process} of the {self._name}: {pids}"
        return ProcessesKilled(process, len(running), killed)

    def end(self) -> None:
        """Stop the query; raise its error."""
        self._query.stop()
        error = self._query.exception()
        if error is not None:
            raise DemoFailedError(text_of(error)) from error
        if self._lost_planner:
            raise DemoFailedError("the planner was killed, and the query has not failed by that")
