"""The command line: `python -m tests.provers cluster`."""

from __future__ import annotations

from typing import Annotated

import typer

from fanout.cli.command import ExitCode
from fanout.cli.common import end_like_ctrl_c
from fanout.errors import FanOutError

__all__ = ("cluster",)

_WRONG = 1


def cluster(
    *,
    minutes: Annotated[
        float,
        typer.Option(min=0, help="For how long faults begin; all of them come once at least."),
    ] = 15.0,
    seed: Annotated[int, typer.Option(help="What the order and the nodes are drawn from.")] = 1,
    spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="Whether a query of Spark writes as well.")
    ] = True,
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object, in the last line.")
    ] = False,
) -> None:
    """Let three nodes of Kafka fail while all that fanout has reads and writes, and count.

    A source, a transactional writer, a share group, a shuffle and a sink of Spark run beside a
    consumer, transactions and a share group of librdkafka. In each round every fault strikes once:
    nodes are killed, the active controller too; they hang and are restarted; leaders move; a quota
    throttles; two of three are dead. At the end confluent-kafka counts by key what was lost,
    repeated or out of order. The table has the longest time without progress of each, in seconds,
    by fault.

    The exit code is 0 if nothing of ours is wrong or stuck, else 1; 2 if it cannot run here.
    """
    end_like_ctrl_c()
    # Help and mistakes are answered without loading what the campaign is made of.
    from tests.provers.cluster.campaign import run_cluster_campaign  # noqa: PLC0415

    try:
        report = run_cluster_campaign(
            minutes, seed, spark=spark, note=lambda line: typer.echo(line, err=json)
        )
    except FanOutError as error:
        typer.echo(f"python -m tests.provers cluster: {error}", err=True)
        raise typer.Exit(ExitCode.UNUSABLE) from error
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    typer.echo(report.table(), err=json)
    for name, counts in report.counts.items():
        typer.echo(f"{name}: {counts} {report.failures.get(name, '')}", err=json)
    for name, gaps in report.gaps.items():
        typer.echo("\n".join(f"{name}: {gap}" for gap in gaps), err=json, nl=bool(gaps))
    if json:
        typer.echo(report.to_json())
    if not report.holds:
        raise typer.Exit(_WRONG)
