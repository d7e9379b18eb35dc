"""The job of a campaign: `python -m tests.provers.crash.driver OPTIONS`, a process to be killed.

It reads what its options say, transforms it and writes it to a sink, until its stdin closes.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from fanout.kafka import Security
from fanout.kafka.cluster import Cluster
from fanout.spark import KafkaSink, OnExecutors, foreach_batch
from fanout.testing.spark.class_archive import java_options
from fanout.testing.spark.driver_process import DriverStarted, run_driver
from fanout.testing.spark.session import jvm_pid, short_lived_session
from tests.provers.crash.control import CONTROL, Control
from tests.provers.crash.hooks import install_in_driver
from tests.provers.crash.job_options import CLUSTER_CORES, JobOptions
from tests.provers.crash.moments import Pipeline, Sink, input_of, output_of
from tests.provers.crash.sinks.handlers import make_handler, transformed
from tests.provers.crash.watched_files import watch_files
from tests.provers.planted.crash_bugs import CRASH_BUGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fanout.core.source import Source
    from fanout.spark import FanOutQuery
    from fanout.spark.query.batch_runner import Handler
    from fanout.testing.spark.driver_process import DriverLink

__all__ = ("main",)

_LOOK = 0.1
# As on a cluster: a task that fails is tried again, which the sink has to refuse.
_MASTER = "local[2,4]"
_LANDERS = 2
_CLUSTER = {
    "spark.executor.cores": str(CLUSTER_CORES),
    "spark.executor.memory": "512m",
    # The check of the cores waits for executors that the settings promise.
    "spark.cores.max": str(2 * CLUSTER_CORES),
}
_PLAINTEXT = Security(protocol="PLAINTEXT")


def main(arguments: str) -> int:
    """Run the queries until stdin closes; print messages to stdout.

    Args:
        arguments: JobOptions as JSON.

    Returns:
        The exit code: 1 if a query has failed.
    """
    options = msgspec.json.decode(arguments, type=JobOptions)
    control = Control(Path(os.environ[CONTROL]))
    install_in_driver(control)
    with ExitStack() as planted:
        for edit in CRASH_BUGS[options.planted].change if options.planted else ():
            planted.enter_context(edit.made())
        return run_driver(lambda link: _run(options, control, link))


def _run(options: JobOptions, control: Control, link: DriverLink) -> None:
    settings = {
        "spark.python.daemon.module": "tests.provers.crash.daemon",
        "spark.sql.shuffle.partitions": "2",
    }
    if options.master:
        settings |= _CLUSTER | {"spark.executor.extraJavaOptions": java_options()}
    scratch = Path(options.root, "scratch")
    with (
        short_lived_session(
            "python -m tests.provers crash",
            scratch,
            master=options.master or _MASTER,
            **{name.replace(".", "_"): value for name, value in settings.items()},
        ) as spark,
        ExitStack() as running,
    ):
        control.write_pids(pid := jvm_pid(spark), os.getpid())
        if options.sink is not Sink.KAFKA:
            watch_files(spark, control)
        queries = []
        for pipeline in options.pipelines:
            queries.append(query := _start(spark, pipeline, options))
            running.callback(query.stop)
        link.send(DriverStarted(pid))
        while not link.stopping.wait(_LOOK) and all(query.is_active for query in queries):
            pass
        for query in queries:
            query.stop()
            query.await_termination()


def _start(spark: SparkSession, pipeline: Pipeline, options: JobOptions) -> FanOutQuery:
    return foreach_batch(
        spark,
        _source(pipeline, options),
        _handler(pipeline, options),
        checkpoint_location=str(Path(options.root, pipeline)),
        max_records=options.max_records,
        landing=OnExecutors(landers=_LANDERS) if pipeline.by_landers else None,
    )


def _handler(pipeline: Pipeline, options: JobOptions) -> Handler:
    if options.sink is not Sink.KAFKA:
        return make_handler(options.sink, options.location, options.endpoint_url)
    repeats = pipeline in options.at_least_once
    return KafkaSink(
        cluster=Cluster(options.bootstrap_servers, security=_PLAINTEXT),
        topic=output_of(pipeline),
        delivery_guarantee="at_least_once" if repeats else "exactly_once",
        transform=_TRANSFORMS[pipeline],
    )


def _source(pipeline: Pipeline, options: JobOptions) -> Source:
    match pipeline:
        case Pipeline.KINESIS | Pipeline.KINESIS_LANDERS:
            from fanout.kinesis import KinesisSource  # noqa: PLC0415 - for readers of this example

            return KinesisSource(
                stream=input_of(pipeline),
                consumer="fanout-crash",
                start="TRIM_HORIZON",
                endpoint_url=options.endpoint_url,
            )
        case Pipeline.KAFKA | Pipeline.KAFKA_LANDERS:
            from fanout.kafka import KafkaSource  # noqa: PLC0415 - the same

            return KafkaSource(
                cluster=Cluster(options.bootstrap_servers, security=_PLAINTEXT),
                topics=input_of(pipeline),
            )


def _from_kinesis(frame: DataFrame) -> DataFrame:
    return frame.select(F.col("partitionKey").alias("key"), transformed("data"))


def _from_kafka(frame: DataFrame) -> DataFrame:
    return frame.select("key", transformed("value"))


_TRANSFORMS = {
    pipeline: _from_kinesis if pipeline.of_kinesis else _from_kafka for pipeline in Pipeline
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
