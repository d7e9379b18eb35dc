"""The command `fanout demo`: read a stream under faults, and compare the output."""

from __future__ import annotations

from typing import Annotated

import typer

from fanout.cli.command import ExitCode, fanout_command
from fanout.demo.options import (
    MAX_LANDERS,
    MAX_NODES,
    MAX_RECORDS,
    MAX_SHARDS,
    MIN_RECORDS,
    DemoFailedError,
    DemoOptions,
    ServiceName,
    StorageName,
    check_environment,
)

_DEFAULTS = DemoOptions()


@fanout_command("demo")
def demo(
    *,
    source: Annotated[
        ServiceName,
        typer.Option(
            help="The service: an embedded Kinesis, Apache Kafka, a share group of Kafka, or a "
            "queue of Kinesis."
        ),
    ] = _DEFAULTS.source,
    records: Annotated[
        int, typer.Option(min=MIN_RECORDS, max=MAX_RECORDS, help="The number of records to send.")
    ] = _DEFAULTS.records,
    shards: Annotated[
        int,
        typer.Option(
            min=1, max=MAX_SHARDS, help="The number of shards, or partitions, at the start."
        ),
    ] = _DEFAULTS.shards,
    seed: Annotated[
        int, typer.Option(help="The seed of the records, the faults and their times.")
    ] = _DEFAULTS.seed,
    kill: Annotated[
        bool,
        typer.Option(
            "--kill",
            help="Kill the Spark driver in the middle of a batch, split and merge shards, or add "
            "partitions, while it is down, and start another one; with --shuffle, each of the two "
            "in turn; with --dataframe, also the planner and the Python workers of each driver.",
        ),
    ] = False,
    shuffle: Annotated[
        bool,
        typer.Option(
            "--shuffle",
            help="Distribute the records by key over the partitions of another topic, and let a "
            "second query read that; with --source kafka.",
        ),
    ] = False,
    storage: Annotated[
        StorageName,
        typer.Option(
            help="Where the checkpoint and the output are: a local disk, or an embedded S3; with "
            "--source kinesis or kafka."
        ),
    ] = _DEFAULTS.storage,
    landers: Annotated[
        int,
        typer.Option(
            min=0,
            max=MAX_LANDERS,
            help="How many landers read, each in a task of Spark, instead of the driver; with "
            "--kill one of each driver is killed; with --source kinesis or kafka.",
        ),
    ] = _DEFAULTS.landers,
    dataframe: Annotated[
        bool,
        typer.Option(
            "--dataframe",
            help='Read a streaming DataFrame of format("fanout") whose query lands the stream; '
            "with --source kinesis or kafka, and pyspark 4.",
        ),
    ] = False,
    nodes: Annotated[
        int,
        typer.Option(
            min=1,
            max=MAX_NODES,
            help="How many nodes the cluster of Kafka has; with three, one is killed, one hangs, "
            "and leaders move; with --source kafka or kafka-share.",
        ),
    ] = _DEFAULTS.nodes,
    json: Annotated[
        bool, typer.Option("--json", help="Print only the result, as one JSON object.")
    ] = False,
) -> None:
    """Inject faults into a stream while Spark reads it, and prove that no record is lost.

    An embedded Kinesis, a producer and a Spark query run on this machine; no account, no service
    and no network is needed. While records flow, a shard is split, two are merged, connections
    are cut, a shard falls silent and a subscription ends in an error. At the end another process
    compares every record that the query wrote with the records that were sent.

    With `--source kafka` the demo runs on a broker of Apache Kafka, which is downloaded once. Its
    topic grows while records flow, the broker is killed and restarted, one transaction is committed
    and two are aborted. With `--source kafka-share` a share group reads that topic: each record is
    delivered once, in no order.

    With `--source kinesis-queue` a queue of an on-demand stream is read. Calls that receive and
    acknowledge records are throttled, refused and cut. `redelivered` of `--json` counts records
    that were read after the queue had delivered them before, and `left_out` those that it delivered
    again although the output had them.

    With `--nodes 3` the topic has three replicas: a node is killed and restarted, all leaders and
    coordinators move, and a node answers nothing for six seconds, until others lead.

    With `--shuffle` two queries run, each in a driver of its own. The first writes each record by
    its key to a second topic, exactly once, and the second reads that. The proof also counts
    records whose event time an earlier watermark had excluded, and watermarks that went back.

    With `--storage s3` the checkpoint and the output are on an embedded S3, which Spark uses
    through Hadoop's own S3A. Its jars are downloaded once; pyspark 3.5 has too old a Hadoop.

    With `--landers 2` the driver only coordinates, and two tasks of Spark read. `--kill` then also
    kills the process of a lander while records flow.

    With `--dataframe` the query is one of a streaming DataFrame, and its planner lands the stream
    on the disk. `--kill` then also kills the planner and the Python workers while records flow.

    The exit code is 0 if no record was lost, duplicated, altered or out of order, and no watermark
    was violated. It is 1 if that was not proven, and 2 if the demo cannot run on this machine.
    """
    options = DemoOptions(
        source=source,
        records=records,
        shards=shards,
        seed=seed,
        kill=kill,
        shuffle=shuffle,
        storage=storage,
        landers=landers,
        dataframe=dataframe,
        nodes=nodes,
    )
    try:
        proven = _run_demo(options, json=json)
    except DemoFailedError as error:
        typer.echo(f"fanout demo: {error}", err=True)
        raise typer.Exit(ExitCode.FOUND) from error
    if not proven:
        raise typer.Exit(ExitCode.FOUND)


def _run_demo(options: DemoOptions, *, json: bool) -> bool:
    # Help and usage errors do not load the modules of the demo.
    from rich.console import Console  # noqa: PLC0415

    check_environment(options.source, options.storage, dataframe=options.dataframe)
    from fanout.demo.report import faults_table, proof_table  # noqa: PLC0415
    from fanout.demo.run import run_demo  # noqa: PLC0415

    console = Console(quiet=json)
    report = run_demo(options, console)
    if json:
        typer.echo(report.to_json())
    else:
        console.print(faults_table(report), proof_table(report))
        console.print(f"seed {options.seed}, {report.seconds:.1f} s")
    return report.proof.holds
