"""The command line: `python -m tests.provers tables`."""

from __future__ import annotations

import json as json_module
from typing import Annotated

import typer

from fanout.cli.command import ExitCode
from fanout.cli.common import end_like_ctrl_c
from fanout.errors import FanOutError

__all__ = ("tables",)

_WRONG = 1


def tables(
    *,
    kills: Annotated[int, typer.Option(min=1, help="How often a process is killed.")] = 100,
    seed: Annotated[int, typer.Option(help="What the steps are drawn from.")] = 1,
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object, in the last line.")
    ] = False,
) -> None:
    """Kill `fanout land` while it writes to tables, and count the records of each.

    It lands on the local disk, on moto's S3 and on Adobe's S3Mock. Each landing has a Delta table,
    an Iceberg table in SQLite and one in a REST catalog. Each run writes to one of them, and is
    killed before or after a step of it. The last run completes all of them. Nothing may be lost
    or repeated.

    The exit code is 0 if nothing is, else 1; 2 if it cannot run here.
    """
    end_like_ctrl_c()
    # Help and mistakes are answered without loading what the campaign is made of.
    from tests.provers.tables.campaign import run_tables_campaign  # noqa: PLC0415

    try:
        report = run_tables_campaign(kills, seed, lambda line: typer.echo(line, err=json))
    except FanOutError as error:
        typer.echo(f"python -m tests.provers tables: {error}", err=True)
        raise typer.Exit(ExitCode.UNUSABLE) from error
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    text = report.to_json()
    typer.echo(text if json else json_module.dumps(json_module.loads(text), indent=2))
    if not report.holds:
        raise typer.Exit(_WRONG)
