"""The command `fanout share`: describe a share group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fanout.cli.command import fanout_command
from fanout.cli.common import Json, calling_the_service, print_json, print_table, run_coroutine
from fanout.cli.service_options import ClusterOptions
from fanout.errors import ServiceError

if TYPE_CHECKING:
    from fanout.kafka.cluster import Cluster
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
@fanout_command("share")
def describe(
    group: Annotated[str, typer.Argument(help="The share group.")],
    *,
    kafka: ClusterOptions,
    json: Json = False,
) -> None:
    """Show the members of a share group, its start offset in each partition, and its settings.

    It joins nothing and reads no record. Records before the start offset are finished for good; the
    lag counts the unfinished ones after it. The exit code is 2 if there is no such share group.
    """
    cluster = kafka.cluster()
    with calling_the_service():
        found = run_coroutine(_describe(cluster, group))
    if found.state == "Unknown":
        raise ServiceError(
            f"there is no share group {group!r}: it begins when its first member joins"
        )
    if json:
        print_json(_plain(group, found))
        return
    typer.echo(f"{group} is {found.state.lower()}")
    print_table(("member", "client", "host", "partitions"), [*_members(found)])
    print_table(("partition", "start offset", "lag"), [*_partitions(found)])
    print_table(("setting", "value"), sorted(found.settings.items()))


async def _describe(cluster: Cluster, group: str) -> GroupDescription:
    from fanout.kafka.share.group_admin import describe_group  # noqa: PLC0415 - it loads slowly

    return await describe_group(cluster, group)


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
