"""The command `fanout doctor`: check what reading a stream of Kinesis needs."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from fanout.cli.command import ExitCode, fanout_command
from fanout.cli.common import (
    Endpoint,
    Json,
    Region,
    Role,
    Stream,
    calling_the_service,
    print_json,
    stream_options,
)
from fanout.errors import CheckpointError, OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.core.findings import Finding
    from fanout.kinesis.options import KinesisOptions

_COLORS = {"ok": "green", "warning": "yellow", "problem": "bold red", "unknown": "dim"}


@fanout_command("doctor")
def doctor(
    stream: Stream,
    consumer: Annotated[
        str | None,
        typer.Argument(
            help="The consumer's name or ARN; without one, reading by polling is checked.",
            show_default=False,
        ),
    ] = None,
    *,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Compare stored positions with the retention period: the checkpoint location of a "
            "query, or a file with the value of `stream.positions`; on a local disk.",
        ),
    ] = None,
    subscribe: Annotated[
        bool,
        typer.Option(
            "--subscribe",
            help="Subscribe to one shard for a moment, which interrupts a running reader of this "
            "consumer.",
        ),
    ] = False,
    region: Region = None,
    endpoint_url: Endpoint = None,
    role_arn: Role = None,
    json: Json = False,
) -> None:
    """Check what reading a stream needs, with advice for each finding.

    The checks cover credentials, permissions, clock, consumer, stream, key, limits of this machine,
    and the time until the unread records of a checkpoint expire. Nothing is registered or changed.
    For example, before a deployment and when a job is behind:

    `fanout doctor orders orders-etl --checkpoint /var/lib/orders/checkpoint`

    The exit code is 1 if there is a problem, and 2 if a path or an option cannot be used; warnings
    and unknown findings leave it at 0.
    """
    options = stream_options(
        stream, consumer, region=region, endpoint_url=endpoint_url, role_arn=role_arn
    )
    if subscribe and consumer is None:
        raise OptionError("--subscribe needs a consumer: name one, or leave --subscribe out")
    with calling_the_service():
        findings = _examine(options, checkpoint, subscribe=subscribe)
    healthy = all(finding.status != "problem" for finding in findings)
    if json:
        answer = {"stream": stream, "healthy": healthy, "findings": list(map(asdict, findings))}
        print_json(answer)
    else:
        _print(findings)
    if not healthy:
        raise typer.Exit(ExitCode.FOUND)


def _examine(options: KinesisOptions, location: str | None, *, subscribe: bool) -> list[Finding]:
    from fanout.core.findings import problem  # noqa: PLC0415 - the same
    from fanout.kinesis.doctor.diagnose import diagnose  # noqa: PLC0415 - loads the AWS SDK
    from fanout.landing.stored_positions import read_positions  # noqa: PLC0415 - only for a checkpoint

    checkpoint, damaged = None, []
    if location is not None:
        try:
            checkpoint = read_positions(location)
        except CheckpointError as error:
            damaged = [problem("checkpoint", str(error), "do not start a reader on it as it is")]
    return asyncio.run(diagnose(options, checkpoint=checkpoint, subscribe=subscribe)) + damaged


def _print(findings: Sequence[Finding]) -> None:
    from rich.console import Console  # noqa: PLC0415 - help needs no tables
    from rich.table import Column, Table  # noqa: PLC0415 - help needs no tables
    from rich.text import Text  # noqa: PLC0415 - help needs no tables

    table = Table("", Column("check", overflow="fold"), Column("found", overflow="fold"))
    for finding in findings:
        found = Text(finding.detail)
        if finding.advice:
            found.append(f"\n→ {finding.advice}", style="bold")
        table.add_row(
            Text(finding.status, style=_COLORS[finding.status]), Text(finding.check), found
        )
    Console().print(table)
    counts = {status: sum(each.status == status for each in findings) for status in _COLORS}
    typer.echo(", ".join(f"{count} {status}" for status, count in counts.items() if count))
