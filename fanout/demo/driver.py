"""A Spark driver of the demo: `python -m fanout.demo.driver OPTIONS`, a process to be killed."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import msgspec

from fanout.demo.queries import (
    QueryOptions,
)
from fanout.demo.running_queries import BatchQuery, DataFrameQuery, HandlerToKill
from fanout.testing.s3_clients import s3a_jars, s3a_settings
from fanout.testing.spark.driver_process import DriverStarted, run_driver
from fanout.testing.spark.session import jvm_pid, short_lived_session

if TYPE_CHECKING:
    from fanout.testing.spark.driver_process import DriverLink

_REPORT_EVERY = 0.25


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
