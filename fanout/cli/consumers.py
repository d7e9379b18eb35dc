"""The command `fanout consumers`: list, register and deregister consumers, and their cost."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer

from fanout.cli.command import ExitCode, fanout_command, in_words_of_options
from fanout.cli.common import (
    Json,
    Stream,
    age,
    calling_the_service,
    print_json,
    print_table,
    run_coroutine,
)
from fanout.cli.service_options import AwsOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from fanout.errors import FanOutError
    from fanout.kinesis.aws.api import ConsumerDescription
    from fanout.kinesis.consumers import ConsumerPrice, StreamConsumers

    Listing: TypeAlias = tuple[str, Sequence[ConsumerDescription]]
    Deletion: TypeAlias = tuple[str, Sequence[ConsumerDescription], Mapping[str, FanOutError]]

Answer = TypeVar("Answer")

# The most of a price or of GB: more is a typing error, and infinity has no JSON.
_MOST = 1_000_000_000

_COLUMNS = ("consumer", "status", "registered (UTC)", "ARN")

consumers = typer.Typer(
    name="consumers",
    no_args_is_help=True,
    help="List, register and deregister the consumers of a stream, and calculate their cost.\n\n"
    "The exit code is 2 if nothing could be done, and 1 if a part failed.",
    rich_markup_mode="markdown",
)


Yes = Annotated[bool, typer.Option("--yes", help="Do it, rather than print what would be done.")]


@consumers.command("list")
@fanout_command("consumers")
def list_(
    stream: Stream,
    *,
    aws: AwsOptions,
    json: Json = False,
) -> None:
    """List the consumers of a stream, the oldest first."""

    async def command(opened: StreamConsumers) -> Listing:
        return opened.stream.name, await opened.describe_all()

    name, found = _run(command, aws, stream)
    _show(found, {"stream": name, "consumers": _to_json(found)}, json=json)


@consumers.command()
@fanout_command("consumers")
def register(
    stream: Stream,
    consumer: Annotated[str, typer.Argument(help="The consumer's name.")],
    *,
    aws: AwsOptions,
    json: Json = False,
) -> None:
    """Register a consumer unless it exists, and wait until it is ACTIVE, for a minute at most."""

    async def command(opened: StreamConsumers) -> tuple[str, ConsumerDescription, bool]:
        return opened.stream.name, *await opened.register(consumer)

    name, registered, new = _run(command, aws, stream, consumer)
    answer = {"stream": name, "registered": new, "consumers": _to_json([registered])}
    _show([registered], answer, json=json)


@consumers.command()
@fanout_command("consumers")
def deregister(
    stream: Stream,
    consumer: Annotated[str, typer.Argument(help="The consumer's name or ARN.")],
    *,
    yes: Yes = False,
    aws: AwsOptions,
    json: Json = False,
) -> None:
    """Deregister a consumer, which ends its subscriptions; without --yes, only print that."""

    async def command(opened: StreamConsumers) -> Deletion:
        return await _deregister(opened, [await opened.find(consumer)], yes=yes)

    _report(_run(command, aws, stream, consumer), yes=yes, json=json)


@consumers.command()
@fanout_command("consumers")
def gc(
    stream: Stream,
    *,
    older_than: Annotated[
        timedelta,
        typer.Option(parser=age, metavar="AGE", help="The age, such as 90m, 12h, 7d or 2w."),
    ],
    yes: Yes = False,
    aws: AwsOptions,
    json: Json = False,
) -> None:
    """Deregister the consumers that were registered longer ago; without --yes, only list them.

    The service does not report whether a consumer is in use: check the list before you pass --yes.
    """

    async def command(opened: StreamConsumers) -> Deletion:
        return await _deregister(opened, await opened.older_than(older_than), yes=yes)

    _report(_run(command, aws, stream), yes=yes, json=json)


@consumers.command()
@fanout_command("consumers")
def cost(
    stream: Stream,
    *,
    shard_hour_price: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=_MOST,
            help="The price of a consumer on a shard for an hour. Left out, it is 0.015, the list "
            "price of us-east-1, and 0 for a stream in on-demand mode.",
            show_default=False,
        ),
    ] = None,
    gb_price: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=_MOST,
            help="The price of a GB that a consumer retrieves. Left out, it is 0.013, the list "
            "price of us-east-1, and 0.05 for a stream in on-demand mode.",
            show_default=False,
        ),
    ] = None,
    gb_per_month: Annotated[
        float,
        typer.Option(
            min=0, max=_MOST, help="The GB that the stream receives; each consumer retrieves them."
        ),
    ] = 0.0,
    aws: AwsOptions,
    json: Json = False,
) -> None:
    """Calculate the cost of a stream's consumers in a month of 730 hours, in US dollars."""

    async def command(opened: StreamConsumers) -> tuple[str, ConsumerPrice]:
        price = await opened.price(
            shard_hour_price=shard_hour_price, gb_price=gb_price, gb_per_month=gb_per_month
        )
        return opened.stream.name, price

    name, price = _run(command, aws, stream)
    sums = {"per_consumer": round(price.per_consumer, 2), "total": round(price.total, 2)}
    if json:
        print_json({"stream": name, **asdict(price), **sums})
        return
    rows = (
        ("consumers", f"{price.consumers}"),
        ("open shards", f"{price.shards:,}"),
        ("a consumer on a shard for an hour", f"${price.shard_hour_price}"),
        ("a GB that a consumer retrieves", f"${price.gb_price}"),
        ("GB that each consumer retrieves", f"{price.gb_per_month:,}"),
        ("one consumer costs in a month", f"${price.per_consumer:,.2f}"),
        ("all of them cost in a month", f"${price.total:,.2f}"),
    )
    print_table((name, ""), rows)


def _run(
    command: Callable[[StreamConsumers], Awaitable[Answer]],
    aws: AwsOptions,
    stream: str,
    consumer: str | None = None,
) -> Answer:
    """Run the calls of a command; printing may block, so it comes after the event loop."""

    async def main() -> Answer:
        async with open_consumers(options) as opened:
            return await command(opened)

    # Help and usage errors do not load the AWS SDK.
    from fanout.kinesis.consumers import open_consumers  # noqa: PLC0415

    options = aws.stream(stream, consumer)
    with calling_the_service():
        return run_coroutine(main())


async def _deregister(
    opened: StreamConsumers, chosen: Sequence[ConsumerDescription], *, yes: bool
) -> Deletion:
    failed = await opened.deregister(chosen) if yes else {}
    return opened.stream.name, chosen, failed


def _report(deletion: Deletion, *, yes: bool, json: bool) -> None:
    """Print the consumers that were deregistered, or would be; exit with 1 if a part failed."""
    name, chosen, failed = deletion
    done = [consumer for consumer in chosen if consumer.name not in failed]
    reasons = {consumer: in_words_of_options(error) for consumer, error in failed.items()}
    for reason in reasons.values():
        typer.echo(f"fanout consumers: {reason}", err=True)
    answer = {"stream": name, "dry_run": not yes, "consumers": _to_json(done), "failed": reasons}
    if json:
        print_json(answer)
    elif chosen:
        print_table(_COLUMNS, _rows(done))
        verb = "deregistered" if yes else "would be deregistered; pass --yes to do it"
        typer.echo(f"{len(done)} of {len(chosen)} {verb}")
    else:
        typer.echo(f"{name} has no consumer of that age")
    if failed:
        raise typer.Exit(ExitCode.FOUND)


def _to_json(described: Sequence[ConsumerDescription]) -> list[dict[str, str]]:
    return [
        {
            "name": each.name,
            "status": each.status,
            "created": each.created.isoformat(timespec="seconds"),
            "arn": each.arn,
        }
        for each in described
    ]


def _show(described: Sequence[ConsumerDescription], answer: dict[str, Any], *, json: bool) -> None:
    if json:
        print_json(answer)
    elif described:
        print_table(_COLUMNS, _rows(described))
    else:
        typer.echo(f"{answer['stream']} has no consumers")


def _rows(described: Sequence[ConsumerDescription]) -> list[tuple[str, ...]]:
    return [
        (each.name, each.status, f"{each.created.astimezone(UTC):%Y-%m-%d %H:%M}", each.arn)
        for each in described
    ]
