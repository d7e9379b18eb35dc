"""A driver whose JVM is killed under three queries; it prints what each of them says.

Its argument: the directory of the checkpoints.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from fanout.errors import FanOutError
from fanout.spark import foreach_batch
from fanout.spark.hadoop.jvm import jvm
from fanout.testing.spark.class_archive import java_options
from tests.support.manual_source import ManualSource
from tests.support.spark.harness import PATIENCE, Gate, Recorder, eventually

if TYPE_CHECKING:
    from typing import Any

    from fanout.spark import FanOutQuery

STATES = ("between-batches", "waiting-for-records", "in-handler")


def outcome(query: FanOutQuery) -> dict[str, Any]:
    try:
        ended = query.await_termination(PATIENCE)
    except FanOutError as error:
        return {
            "error": type(error).__name__,
            "message": str(error),
            "cause": error.__cause__ is not None,
            "exception": error is query.exception(),
        }
    return {"ended": ended}


def main(directory: Path) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", java_options())
        .getOrCreate()
    )
    gate = Gate()
    handlers = dict(zip(STATES, (Recorder(), Recorder(), gate), strict=True))
    queries = {}
    for state, handler in handlers.items():
        source = ManualSource(identity=state)
        if state != "waiting-for-records":
            source.put(b"one", b"two")
        queries[state] = foreach_batch(
            spark,
            source,
            handler,
            checkpoint_location=str(directory / state),
            processing_time="1 hour" if state == "between-batches" else None,
        )
    eventually(lambda: queries["between-batches"].progress().batches == 1)
    eventually(lambda: not queries["waiting-for-records"]._idle.is_set())
    gate.wait_until_entered()
    os.kill(jvm(spark).java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
    gate.open()
    sys.stdout.write(json.dumps({state: outcome(query) for state, query in queries.items()}))
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
