"""The command `fanout iam-policy`: print the least policy of a reader."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fanout.cli.common import errors_printed

Arn = Annotated[str, typer.Argument(help="The stream's ARN.", show_default=False)]
Consumer = Annotated[
    str | None,
    typer.Argument(
        help="The consumer's ARN, or the ARN without its creation time for any consumer of that "
        "name; all consumers of the stream if left out.",
        show_default=False,
    ),
]


def iam_policy(
    stream_arn: Arn,
    consumer_arn: Consumer = None,
    *,
    polling: Annotated[
        bool, typer.Option("--polling", help="Allow polling, and no action on consumers.")
    ] = False,
    deploy: Annotated[
        bool, typer.Option("--deploy", help="Also allow to register and deregister consumers.")
    ] = False,
    kms_key_arn: Annotated[
        str | None, typer.Option(help="The KMS key of the stream, if it is one of your own.")
    ] = None,
) -> None:
    """Print the least IAM policy that reading a stream needs, as JSON.

    No call is made, so no credentials are needed. For example:

    `fanout iam-policy arn:aws:kinesis:eu-west-1:111122223333:stream/orders --deploy`
    """
    with errors_printed("iam-policy"):
        from fanout.kinesis.iam import iam_policy as policy  # noqa: PLC0415 - loads the AWS SDK

        document = policy(
            stream_arn,
            consumer_arn,
            mode="polling" if polling else "efo",
            deploy=deploy,
            kms_key_arn=kms_key_arn,
        )
    typer.echo(json.dumps(document, indent=2))
