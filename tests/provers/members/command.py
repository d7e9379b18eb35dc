"""The command line: `python -m tests.provers members`."""

from __future__ import annotations

import asyncio
import json as json_module
from enum import StrEnum
from typing import Annotated

import typer

from fanout.cli.command import ExitCode
from fanout.cli.common import end_like_ctrl_c
from fanout.errors import FanOutError

__all__ = ("members",)

_WRONG = 1


class ServiceName(StrEnum):
    """Where the stream is."""

    KINESIS = "kinesis"
    KAFKA = "kafka"


def members(
    *,
    source: Annotated[ServiceName, typer.Option(help="Where the stream is.")] = ServiceName.KINESIS,
    minutes: Annotated[
        float,
        typer.Option(min=0, help="For how long faults begin; all of them come once at least."),
    ] = 20.0,
    seed: Annotated[int, typer.Option(help="What the order of faults is drawn from.")] = 1,
    count: Annotated[int, typer.Option("--members", min=2, help="How many processes share.")] = 12,
    splits: Annotated[int, typer.Option(min=2, help="Shards or partitions.")] = 48,
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object, in the last line.")
    ] = False,
) -> None:
    """Let processes that share a stream fail, with their services, and judge what they got.

    Members are killed, stand still for longer than others wait for them, come, leave, and are all
    replaced in turn. Shards are split and merged and DynamoDB is away, or nodes of Kafka are killed
    and leaders move. Each member writes down what it gets. At the end all of it is compared with
    what was put: nothing may be lost, come again although it was stored or given up in order, or
    come to two members at one time.

    The exit code is 0 if all rules hold and nothing is stuck, else 1; 2 if it cannot run here.
    """
    end_like_ctrl_c()
    # Help and mistakes are answered without loading what the campaign is made of.
    from tests.provers.members.campaign import run_members_campaign  # noqa: PLC0415

    campaign = run_members_campaign(
        source,
        minutes,
        seed,
        members=count,
        splits=splits,
        note=lambda line: typer.echo(line, err=json),
    )
    try:
        report = asyncio.run(campaign)
    except FanOutError as error:
        typer.echo(f"python -m tests.provers members: {error}", err=True)
        raise typer.Exit(ExitCode.UNUSABLE) from error
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    text = report.to_json()
    typer.echo(text if json else json_module.dumps(json_module.loads(text), indent=2))
    if not report.holds:
        raise typer.Exit(_WRONG)
