"""The command line: `python -m tests.provers crash`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from fanout.cli.command import ExitCode
from fanout.cli.common import end_like_ctrl_c
from fanout.errors import FanOutError, SetupError
from tests.provers.crash.moments import Pipeline, Sink
from tests.provers.crash.plan import MAX_ROUNDS, CampaignFailedError, CrashOptions

if TYPE_CHECKING:
    from tests.provers.crash.report import CrashReport, RoundResult

__all__ = ("crash",)

_WRONG = 1
_EXTRAS = {
    "pyspark": "spark",
    "aioboto3": "kinesis",
    "aiokafka": "kafka",
    "confluent_kafka": "testing",
    "moto": "testing",
}
_DEFAULTS = CrashOptions()


def crash(
    *,
    rounds: Annotated[
        int, typer.Option(min=1, max=MAX_ROUNDS, help="How often something strikes.")
    ] = _DEFAULTS.rounds,
    seed: Annotated[
        int, typer.Option(help="What the strikes, their order and the records are drawn from.")
    ] = _DEFAULTS.seed,
    sink: Annotated[Sink, typer.Option(help="What the job writes to.")] = _DEFAULTS.sink,
    pipeline: Annotated[
        list[Pipeline] | None,
        typer.Option(
            help="What runs; name it several times for several.",
            show_default="all into Kafka, or the one into another sink",
        ),
    ] = None,
    nodes: Annotated[
        int,
        typer.Option(
            min=1,
            max=5,
            help="How many nodes Kafka has; with three, one is killed or paused at a time, and "
            "leaders move.",
        ),
    ] = _DEFAULTS.nodes,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print the result as one JSON object, in the last line."),
    ] = False,
) -> None:
    """Kill a Spark job at every step of its batches, and prove that its sink has each record once.

    On this machine, a Spark job reads an embedded Kinesis and a topic of Apache Kafka, which is
    downloaded once, transforms the records and writes them to other topics exactly once, while
    producers go on writing. In each round something strikes: the driver dies at the next of 23
    steps, such as after the commit token and before EndTxn, or at a random moment, or twice in a
    row; a Python worker dies; the broker dies or hangs; Kinesis goes away. Then the job is started
    again on its checkpoint, and a round ends when its output has caught up.

    Two of the pipelines are read by landers on a Spark cluster of separate processes: a lander, its
    executor, or the Spark worker of both dies as it publishes a segment or tells of it.

    With `--nodes 3` topics have three replicas. A node that is killed or paused is missed after
    three seconds, and is away for two to twelve.

    Another client reads the output, read_committed, all the time, and a second one at the end. Both
    must find exactly what was produced: by key, order and count. For example, one round for each
    strike of the catalogue, and what struck:

    `python -m tests.provers crash --rounds 40 --seed 7`

    With another sink than Kafka, the job reads Kinesis alone and writes with a ParquetSink, a
    PostgresSink, a JdbcSink, a DeltaSink, an IcebergSink or a KinesisSink. It dies at each step of
    the sink, also at those in Spark's JVM: before and after a file, a marker or a commit is there.
    Where a sink can merge, it also keeps a table with the newest record of each key. Records that
    Kinesis has twice have to be found by their id. Delta and Iceberg need the oldest pyspark:

    `.venv-oldest/bin/python -m tests.provers crash --sink delta --rounds 30`

    The exit code is 0 if every output is exactly its input, 1 if it is not, or the job ended by
    itself, was stuck or left a transaction open: then its checkpoints and its log are kept. It is
    2 if the campaign cannot run here.
    """
    end_like_ctrl_c()
    try:
        every = Pipeline if sink is Sink.KAFKA else (Pipeline.KINESIS,)
        pipelines = tuple(dict.fromkeys(pipeline or every))
        options = CrashOptions(
            rounds=rounds, seed=seed, sink=sink, pipelines=pipelines, nodes=nodes
        )
        report = _run(options, json=json)
    except FanOutError as error:
        typer.echo(f"python -m tests.provers crash: {error}", err=True)
        code = _WRONG if isinstance(error, CampaignFailedError) else ExitCode.UNUSABLE
        raise typer.Exit(code) from error
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if not report.holds:
        raise typer.Exit(_WRONG)


def _run(options: CrashOptions, *, json: bool) -> CrashReport:
    missing = {extra for module, extra in _EXTRAS.items() if find_spec(module) is None}
    if missing:
        extras = ",".join(sorted(missing))
        raise SetupError(f"the campaign needs more: pip install 'fanout-streams[{extras}]'")
    # Help and mistakes are answered without loading what the campaign is made of.
    from rich.console import Console  # noqa: PLC0415

    from fanout.spark.hadoop.session_checks import require_java  # noqa: PLC0415
    from tests.provers.crash.campaign import run_campaign  # noqa: PLC0415
    from tests.provers.crash.report import moments_table, round_line, verdicts_table  # noqa: PLC0415

    require_java()
    # With --json the table and the rounds are printed to stderr.
    console = Console(stderr=json)

    def on_round(result: RoundResult) -> None:
        console.print(round_line(result, options.rounds), soft_wrap=True, highlight=False)

    report = run_campaign(options, on_round=on_round)
    console.print(moments_table(report), verdicts_table(report))
    if report.kept is not None:
        console.print(f"kept for a look: {report.kept}", soft_wrap=True, highlight=False)
    if json:
        typer.echo(report.to_json())
    else:
        console.print(f"seed {report.seed}, {report.seconds:.1f} s", highlight=False)
    return report
