"""A Spark driver of the demo: `python -m fanout.demo.driver OPTIONS`, a process to be killed."""

from __future__ import annotations

import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, final

import msgspec

from fanout.demo.plan import draw_plan
from fanout.demo.queries import (
    BatchBegun,
    BatchWritten,
    Holding,
    QueryName,
    QueryOptions,
    Reading,
)
from fanout.demo.running_queries import BatchQuery, DataFrameQuery
from fanout.demo.sources import make_shuffle_sink
from fanout.demo.workspace import Workspace
from fanout.spark.current_batch import current_batch
from fanout.testing.s3_clients import s3a_jars, s3a_settings
from fanout.testing.spark.driver_process import DriverStarted, run_driver
from fanout.testing.spark.session import jvm_pid, short_lived_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from fanout.demo.plan import ProcessKill
    from fanout.testing.spark.driver_process import DriverLink

_REPORT_EVERY = 0.25
_LOOK = 0.01


def main(arguments: str) -> int:
    """Run the query until stdin closes, print messages to stdout, and return the exit code."""
    options = msgspec.json.decode(arguments, type=QueryOptions)
    return run_driver(lambda link: _run(options, link))


def _run(options: QueryOptions, link: DriverLink) -> None:
    workspace = Workspace(Path(options.root), options.s3)
    settings = {} if options.s3 is None else _on_s3(options.s3, workspace.scratch)
    # The task of a process that was killed is tried again, as on a cluster.
    landers, dataframe = options.demo.landers, options.demo.dataframe
    master = f"local[{landers + 2}{',4' if landers or dataframe else ''}]"
    with short_lived_session("fanout demo", workspace.scratch, master=master, **settings) as spark:
        if options.s3 is not None:
            # Spark's own way to write a checkpoint is slow on a local disk only.
            spark.conf.unset("spark.sql.streaming.checkpointFileManagerClass")
        handler = HandlerToKill(options, workspace, link)
        running = DataFrameQuery if dataframe else BatchQuery
        query = running(spark, options, workspace, handler, link)
        link.send(DriverStarted(jvm_pid(spark)))
        while not link.stopping.wait(_REPORT_EVERY) and query.keep_running():
            link.send(Reading(query.splits()))
            if (kill := handler.due()) is not None:
                time.sleep(kill.delay)  # so that kills come at any moment of a batch
                if (killed := query.kill(kill.process)) is not None:
                    link.send(killed)
                    handler.kills.popleft()
        query.end()


def _on_s3(endpoint: str, scratch: Path) -> dict[str, str]:
    """Return the settings of a session that uses S3 through S3A."""
    # A file waits there for its upload.
    s3a = s3a_settings(endpoint) | {"fs.s3a.buffer.dir": str(scratch)}
    hadoop = {f"spark.hadoop.{name}": value for name, value in s3a.items()}
    return {"spark.jars": ",".join(map(str, s3a_jars())), **hadoop}


@final
class HandlerToKill:
    """Write each batch, and wait in the one in which the driver is to be killed.

    `kills` has the kills of processes that are still to come.
    """

    def __init__(self, options: QueryOptions, workspace: Workspace, link: DriverLink) -> None:
        plan = draw_plan(options.demo)
        self.kills = deque(plan.kill_processes)
        self._shuffled = options.query is QueryName.READING
        kill = plan.kill_reader if self._shuffled else plan.kill
        self._kill = None if options.restarted else kill
        self._sink = make_shuffle_sink(options) if options.query is QueryName.SHUFFLING else None
        self._workspace = workspace
        self._link = link
        self._rows = 0

    def due(self) -> ProcessKill | None:
        """Return the kill of processes whose time has come."""
        return self.kills[0] if self.kills and self.kills[0].after <= self._rows else None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Handle one batch."""
        watermark = current_batch().watermark if self._shuffled else None
        self._link.send(BatchBegun(batch_id, watermark))
        kill = self._kill
        kill_here = kill is not None and self._rows >= kill.after
        if kill_here and kill is not None and not kill.written:
            self._hold(batch_id, written=False)
        written = self._write(frame, batch_id)
        if kill_here:
            self._hold(batch_id, written=True)
        self._rows += written.rows
        self._link.send(written)

    def _write(self, frame: DataFrame, batch_id: int) -> BatchWritten:
        """Write a batch into a directory of its own, or by key; writing it again replaces it."""
        if self._sink is not None:
            self._sink.write(frame, batch_id)
            return BatchWritten(batch_id, frame.count())
        frame.write.mode("overwrite").parquet(self._workspace.batch(batch_id))
        splits = [record.split for record in self._workspace.read_output(batch_id)]
        return BatchWritten(batch_id, len(splits), frozenset(splits))

    def _hold(self, batch_id: int, *, written: bool) -> None:
        while self.kills and not self._link.stopping.wait(_LOOK):
            pass  # other processes are killed before their driver
        self._link.send(Holding(batch_id, written))
        self._link.stopping.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
