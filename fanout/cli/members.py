"""The command `fanout members`: who has what of a stream that processes share."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from fanout.cli.command import ExitCode, fanout_command
from fanout.cli.common import Json, calling_the_service, print_json, print_table, run_coroutine
from fanout.cli.service_options import AwsOptions, ClusterOptions
from fanout.errors import OptionError

if TYPE_CHECKING:
    from fanout.kafka.cluster import Cluster
    from fanout.kafka.group.describe import ConsumersDescription
    from fanout.kinesis.leases.describe import TableDescription
    from fanout.kinesis.leases.lease import Lease

_GROUP: Final = re.compile(r"(dynamodb|kafka)://(.+)", re.DOTALL)


@fanout_command("members")
def members(
    group: Annotated[
        str,
        typer.Argument(
            help="dynamodb://TABLE, by name or ARN, or kafka://GROUP.", show_default=False
        ),
    ],
    *,
    aws: AwsOptions,
    kafka: ClusterOptions,
    json: Json = False,
) -> None:
    """Show who has which shards or partitions of a stream that processes share.

    It joins nothing and changes nothing. The exit code is 1 if a shard or partition has nobody who
    reads it, and 2 if there is no such table or group. For example:

    `fanout members dynamodb://orders-app --region eu-west-1`

    `fanout members kafka://orders-app --bootstrap-servers broker:9092`
    """
    match _GROUP.fullmatch(group):
        case None:
            raise OptionError(f"{group!r} is no group: write dynamodb://TABLE or kafka://GROUP")
        case found if found[1] == "dynamodb":
            _show_table(found[2], aws, json=json)
        case found:
            _show_group(found[2], kafka.cluster(), json=json)


def _show_table(table: str, aws: AwsOptions, *, json: bool) -> None:
    # Help and usage errors do not load the AWS SDK.
    from fanout.kinesis.leases.describe import describe_table  # noqa: PLC0415

    with calling_the_service():
        found = run_coroutine(describe_table(table, **asdict(aws)))
    if json:
        print_json(_plain_table(table, found))
    else:
        rows = [
            (one.name, str(one.leases), f"{one.rate:.1f}", _ago(one.reported))
            for one in found.members
        ]
        print_table(("member", "shards", "KB/s", "reported"), rows)
        leases = [
            (one.shard_id, one.holder or "", _state(one), f"{one.rate:.1f}") for one in found.leases
        ]
        print_table(("shard", "member", "state", "KB/s"), leases)
    if found.unread:
        raise typer.Exit(ExitCode.FOUND)


def _plain_table(table: str, found: TableDescription) -> dict[str, object]:
    unread = {lease.shard_id for lease in found.unread}
    return {
        "table": table,
        "members": [
            {
                "member": one.name,
                "shards": one.leases,
                "kb_per_second": one.rate,
                "reported_seconds_ago": one.reported,
            }
            for one in found.members
        ],
        "shards": [
            {
                "shard": one.shard_id,
                "member": one.holder,
                "state": _state(one),
                "unread": one.shard_id in unread,
                "kb_per_second": one.rate,
                "position": one.checkpoint,
            }
            for one in found.leases
        ],
    }


def _state(lease: Lease) -> str:
    if lease.ended:
        return "ended"
    if lease.giver is not None:
        return f"goes to {lease.owner}"
    return "free" if lease.owner is None else "read"


def _ago(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.0f} s ago"


def _show_group(group: str, cluster: Cluster, *, json: bool) -> None:
    from fanout.kafka.group.describe import describe_consumers  # noqa: PLC0415 - it loads slowly

    with calling_the_service():
        found = run_coroutine(describe_consumers(cluster, group))
    if json:
        print_json(_plain_group(group, found))
    else:
        typer.echo(f"{group} is {found.state.lower()}")
        rows = [
            (one.id, one.client_id, one.host, _names(one.owned), _names(one.awaited))
            for one in found.members
        ]
        print_table(("member", "client", "host", "partitions", "waits for"), rows)
    if not found.members:
        raise typer.Exit(ExitCode.FOUND)


def _plain_group(group: str, found: ConsumersDescription) -> dict[str, object]:
    return {
        "group": group,
        "state": found.state,
        "members": [
            {
                "member": one.id,
                "instance": one.instance_id,
                "client": one.client_id,
                "host": one.host,
                "partitions": [*map(str, one.owned)],
                "waits_for": [*map(str, one.awaited)],
            }
            for one in found.members
        ],
    }


def _names(partitions: tuple[object, ...]) -> str:
    return ", ".join(map(str, partitions))
