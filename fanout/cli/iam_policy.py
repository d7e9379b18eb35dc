"""The command `fanout iam-policy`: print the least policy of a reader or a writer."""

from __future__ import annotations

from json import dumps
from typing import Annotated

import typer

from fanout.cli.command import fanout_command
from fanout.cli.common import Json, print_json
from fanout.errors import OptionError

Arn = Annotated[str, typer.Argument(help="The stream's ARN.", show_default=False)]
Consumer = Annotated[
    str | None,
    typer.Argument(
        help="The consumer's ARN, or the ARN without its creation time for any consumer of that "
        "name; all consumers of the stream if left out.",
        show_default=False,
    ),
]


@fanout_command("iam-policy")
def iam_policy(
    stream_arn: Arn,
    consumer_arn: Consumer = None,
    *,
    polling: Annotated[
        bool, typer.Option("--polling", help="Allow polling, and no action on consumers.")
    ] = False,
    write: Annotated[bool, typer.Option("--write", help="Allow writing, and no reading.")] = False,
    deploy: Annotated[
        bool,
        typer.Option(
            "--deploy",
            help="Also allow to register and deregister consumers, or to restore dead letters.",
        ),
    ] = False,
    kms_key_arn: Annotated[
        str | None, typer.Option(help="The KMS key of the stream, if it is one of your own.")
    ] = None,
    queue_arn: Annotated[
        str | None, typer.Option(help="A queue of the stream, to read its records from there.")
    ] = None,
    table_arn: Annotated[
        str | None, typer.Option(help="A lease table, to share the stream with other processes.")
    ] = None,
    json: Json = False,
) -> None:
    """Print the least IAM policy that reading a stream needs, or writing to it, as JSON.

    No call is made, so no credentials are needed. For example:

    `fanout iam-policy arn:aws:kinesis:eu-west-1:111122223333:stream/orders --deploy`
    """
    from fanout.kinesis.iam import iam_policy as policy  # noqa: PLC0415 - loads the AWS SDK

    if polling and write:
        raise OptionError("--polling and --write exclude each other: a role reads or writes")

    document = policy(
        stream_arn,
        consumer_arn,
        mode="write" if write else "polling" if polling else "efo",
        deploy=deploy,
        kms_key_arn=kms_key_arn,
        queue_arn=queue_arn,
        table_arn=table_arn,
    )
    if json:
        print_json(document)
    else:
        typer.echo(dumps(document, indent=2))
