"""The command `fanout share`: describe a share group."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fanout.cli.common import (
    Brokers,
    CaFile,
    Json,
    Protocol,
    Username,
    calling_the_service,
    errors_printed,
    kafka_security,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from fanout.kafka.security import Security
    from fanout.kafka.share.group_admin import GroupDescription

share = typer.Typer(
    name="share",
    no_args_is_help=True,
    help="Inspect a share group of Kafka: its members, and how far they have read.",
    rich_markup_mode="markdown",
)


@share.callback()
def _share() -> None:
    """Keep `describe` a subcommand, although it is the only one."""


@share.command()
def describe(
    group: Annotated[str, typer.Argument(help="The share group.")],
    *,
    bootstrap_servers: Brokers,
    protocol: Protocol = "SASL_SSL",
    username: Username = None,
    ca_file: CaFile = None,
    json: Json = False,
) -> None:
    """Show the members of a share group, its start offset in each partition, and its settings.

    It joins nothing and reads no record. Records before the start offset are finished for good; the
    lag counts the unfinished ones after it.
    """
    with errors_printed("share"):
        security = kafka_security(protocol, username, ca_file)
        with calling_the_service():
            found = asyncio.run(_describe(bootstrap_servers, group, security))
    if json:
        print_json(_plain(group, found))
        return
    typer.echo(f"{group} is {found.state.lower()}")
    print_table(("member", "client", "host", "partitions"), [*_members(found)])
    print_table(("partition", "start offset", "lag"), [*_partitions(found)])
    print_table(("setting", "value"), sorted(found.settings.items()))


async def _describe(servers: str, group: str, security: Security) -> GroupDescription:
    from fanout.kafka.cluster import Cluster  # noqa: PLC0415 - it loads slowly
    from fanout.kafka.share.group_admin import describe_group  # noqa: PLC0415 - it loads slowly

    return await describe_group(Cluster(servers, security=security), group)


def _plain(group: str, found: GroupDescription) -> dict[str, Any]:
    return {
        "group": group,
        "state": found.state,
        "members": [
            {
                "member": member.id,
                "client": member.client_id,
                "host": member.host,
                "partitions": [*map(str, member.partitions)],
            }
            for member in found.members
        ],
        "partitions": [
            {"partition": str(partition), "begins_at": at.offset, "lag": at.lag}
            for partition, at in sorted(found.start_offsets.items())
        ],
        "settings": dict(sorted(found.settings.items())),
    }


def _members(found: GroupDescription) -> list[tuple[str, ...]]:
    return [
        (member.id, member.client_id, member.host, ", ".join(map(str, member.partitions)))
        for member in found.members
    ]


def _partitions(found: GroupDescription) -> list[tuple[str, ...]]:
    return [
        (str(partition), _number(at.offset), _number(at.lag))
        for partition, at in sorted(found.start_offsets.items())
    ]


def _number(number: int | None) -> str:
    return "" if number is None else str(number)
