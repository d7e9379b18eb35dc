"""The command line: the root of all commands of `fanout`."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from fanout.cli.consumers import consumers
from fanout.cli.demo import demo
from fanout.cli.doctor import doctor
from fanout.cli.iam_policy import iam_policy
from fanout.cli.land import land
from fanout.cli.members import members
from fanout.cli.queue import queue
from fanout.cli.servers import kafka_broker, kinesis_server
from fanout.cli.share import share
from fanout.cli.shuffle import shuffle
from fanout.cli.status import status
from fanout.cli.tail import tail
from fanout.cli.transactions import transactions

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # paragraphs are filled, not broken where the source is
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - help needs no version

        typer.echo(f"fanout {version('fanout-streams')}")
        raise typer.Exit


@app.callback()
def fanout(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Fan Kinesis and Kafka out into asyncio and Spark: nothing lost, nothing repeated.

    Exit codes: 0 done and nothing wrong, 1 something wrong found, 2 nothing could be done,
    130 interrupted. A server that is told to end exits with 0.
    """
    # The clients also raise the errors that they log with a traceback; one line of it is enough.
    for sdk in ("aiobotocore", "botocore", "aiokafka"):
        logging.getLogger(sdk).addHandler(logging.NullHandler())


# In the order in which a new user needs them.
app.command()(demo)
app.command()(tail)
app.command()(doctor)
app.command()(land)
app.command()(status)
app.command()(iam_policy)
app.command()(members)
app.add_typer(consumers)
app.add_typer(transactions)
app.add_typer(shuffle)
app.add_typer(share)
app.add_typer(queue)
app.command()(kinesis_server)
app.command()(kafka_broker)
