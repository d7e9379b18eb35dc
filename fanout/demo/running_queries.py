"""The query of a driver: one of `foreach_batch`, or one of a streaming DataFrame."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, final

from fanout.core.error_text import text_of
from fanout.core.remote_error import ForeignError
from fanout.demo.options import DemoFailedError
from fanout.demo.plan import SparkProcess
from fanout.demo.queries import LanderKilled, ProcessesKilled, Resubscribed
from fanout.demo.sources import make_source
from fanout.spark import OnExecutors, foreach_batch
from fanout.spark.dataframe.read_stream import read_stream
from fanout.spark.hadoop.jvm import JAVA_ERRORS, jvm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from fanout.core.events import Split
    from fanout.demo.queries import QueryMessage, QueryOptions
    from fanout.demo.workspace import Workspace

Handler: TypeAlias = "Callable[[DataFrame, int], None]"

# How long a killed process may take to end.
_DEATH: Final = 10
# A part of the command line of each process of a kind.
_MODULES: Final[Mapping[SparkProcess, str]] = {
    SparkProcess.PLANNER: "python_streaming_source_runner",
    SparkProcess.WORKER: "pyspark.daemon pyspark.worker",
}


class RunningQuery(Protocol):
    """A query that runs in this driver."""

    def keep_running(self) -> bool:
        """Return whether the query runs; one that has lost its planner is started again."""

    def splits(self) -> tuple[str, ...]:
        """Return the splits that the query reads."""

    def kill(self, rows: int) -> Iterator[QueryMessage]:
        """Kill the processes whose time has come, and yield a message about them.

        Args:
            rows: The number of records that this driver has written.
        """

    def stop(self) -> None:
        """Stop the query."""

    def await_end(self) -> None:
        """Wait until the query has ended.

        Raises:
            FanOutError: If it has failed.
        """


@final
class BatchQuery:
    """A `RunningQuery` of `foreach_batch`, whose landers may be killed.

    Args:
        spark: The session.
        options: The options of the driver.
        workspace: The files of the run.
        handler: Called with each batch.
        send: Called with messages of other threads.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: QueryOptions,
        workspace: Workspace,
        handler: Handler,
        send: Callable[[QueryMessage], None],
    ) -> None:
        def on_resubscribe(split: Split, cause: Exception, delay: float) -> None:
            name = cause.name if isinstance(cause, ForeignError) else type(cause).__name__
            send(Resubscribed(split.id, name, delay))

        self._kill_lander = options.kill_lander
        self._query = foreach_batch(
            spark,
            make_source(options.source),
            handler,
            checkpoint_location=workspace.checkpoint(options.query),
            max_records=options.max_records,
            on_resubscribe=on_resubscribe,
            landing=OnExecutors(landers=options.landers) if options.landers else None,
        )

    def keep_running(self) -> bool:
        """Return whether the query runs."""
        return self._query.is_active

    def splits(self) -> tuple[str, ...]:
        """Return the splits that the query reads."""
        return tuple(self._query.statistics().splits)

    def kill(self, rows: int) -> Iterator[QueryMessage]:
        """Kill the lander that reads most, when its time has come; see `RunningQuery.kill`."""
        landers = self._query.statistics().landers
        if not landers or self._kill_lander is None or rows < self._kill_lander:
            return
        self._kill_lander = None
        lander = max(landers, key=lambda lander: lander.splits)
        with suppress(ProcessLookupError):
            os.kill(lander.pid, signal.SIGKILL)
        yield LanderKilled(lander.lander, lander.pid, lander.splits)

    def stop(self) -> None:
        """Let the query finish its batch and stop."""
        self._query.stop()

    def await_end(self) -> None:
        """Wait until the query has ended; see `RunningQuery.await_end`."""
        self._query.await_termination()


@final
class DataFrameQuery:
    """A `RunningQuery` of a streaming DataFrame, whose planner and workers may be killed.

    Spark runs the tasks of a killed worker again. A query whose planner is killed fails, and is
    started again on its checkpoint.

    Args:
        spark: The session.
        options: The options of the driver.
        workspace: The files of the run.
        handler: Called with each batch.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: QueryOptions,
        workspace: Workspace,
        handler: Handler,
    ) -> None:
        self._spark = spark
        self._workspace = workspace
        self._handler = handler
        self._checkpoint = workspace.checkpoint(options.query)
        self._frame = read_stream(
            spark,
            make_source(options.source),
            landing=workspace.landing,
            options={"maxRecordsPerTrigger": options.max_records},
        )
        self._kills = deque(options.kill_processes)
        self._lost_planner = False
        self._splits: frozenset[str] = frozenset()
        self._query = self._start()

    def keep_running(self) -> bool:
        """Return whether the query runs; one that has lost its planner is started again."""
        if self._lost_planner and not self._query.isActive:
            self._lost_planner = False
            self._query = self._start()
        return self._query.isActive

    def splits(self) -> tuple[str, ...]:
        """Return the splits of which the query has written records."""
        return tuple(self._splits)

    def kill(self, rows: int) -> Iterator[QueryMessage]:
        """Kill all processes of a kind when its time has come; see `RunningQuery.kill`."""
        while self._kills and self._kills[0].after <= rows:
            time.sleep(self._kills[0].delay)  # so that kills come at any moment of a batch
            process = self._kills[0].process
            running = tuple(self._running(process))
            if not running:  # Spark is about to start it
                return
            self._end(running)
            self._lost_planner |= process is SparkProcess.PLANNER
            self._kills.popleft()
            yield ProcessesKilled(process, tuple(int(one.pid()) for one in running))

    def stop(self) -> None:
        """Stop the query."""
        self._query.stop()

    def await_end(self) -> None:
        """Return once the query has ended; see `RunningQuery.await_end`."""
        error = self._query.exception()
        if error is not None:
            raise DemoFailedError(text_of(error)) from error
        if self._lost_planner:
            raise DemoFailedError("the planner was killed, and the query has not failed by that")

    def _start(self) -> StreamingQuery:
        writer = self._frame.writeStream.foreachBatch(self._handle)
        return writer.option("checkpointLocation", self._checkpoint).start()

    def _handle(self, frame: DataFrame, batch_id: int) -> None:
        self._handler(frame, batch_id)
        written = self._workspace.read_output(batch_id)
        self._splits |= {record.split for record in written}

    def _running(self, process: SparkProcess) -> Iterator[Any]:
        """Yield Java's handles of the processes of a kind that this driver's JVM has started."""
        for each in jvm(self._spark).java.lang.ProcessHandle.current().descendants().toArray():
            if _MODULES[process] in each.info().commandLine().orElse(""):
                yield each

    def _end(self, processes: Sequence[Any]) -> None:
        """Kill processes, and return when they are dead."""
        seconds = jvm(self._spark).java.util.concurrent.TimeUnit.SECONDS
        for each in processes:
            each.destroyForcibly()  # SIGKILL; false for one that has just ended by itself
        try:
            for each in processes:
                each.onExit().get(_DEATH, seconds)
        except JAVA_ERRORS as error:
            raise DemoFailedError("a process of Spark did not end by SIGKILL") from error
