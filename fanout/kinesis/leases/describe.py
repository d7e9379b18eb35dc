"""Describe a lease table for people: who has which shard, and which members there are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, final

from fanout.errors import ServiceError
from fanout.kinesis.aws.error_hints import code_of
from fanout.kinesis.aws.role import AssumedRole
from fanout.kinesis.leases.lease import KEY, KIND, LEASE_KIND, REPORTED, WORKER_KIND, Lease
from fanout.kinesis.leases.table import open_table, table_failure

if TYPE_CHECKING:
    from collections.abc import Sequence

# Seconds after which the KCL takes a worker for dead that has not reported.
_DEAD: Final = 60.0
_TIMEOUT: Final = 15.0


@final
@dataclass(frozen=True, slots=True)
class MemberRow:
    """A member: its leases and their KB a second, and how long ago it has reported."""

    name: str
    leases: int
    rate: float
    reported: float | None

    @property
    def lives(self) -> bool:
        """Whether it has reported within a minute, by the clocks of both machines."""
        return self.reported is not None and self.reported < _DEAD


@final
@dataclass(frozen=True, slots=True)
class TableDescription:
    """What a lease table has."""

    leases: Sequence[Lease]
    members: Sequence[MemberRow]

    @property
    def unread(self) -> Sequence[Lease]:
        """The shards that are not ended, and that nobody has who lives."""
        living = {member.name for member in self.members if member.lives}
        return [each for each in self.leases if not each.ended and each.holder not in living]


async def describe_table(
    name: str,
    *,
    region: str | None = None,
    endpoint_url: str | None = None,
    role_arn: str | None = None,
    external_id: str | None = None,
    role_session_name: str | None = None,
) -> TableDescription:
    """Read a lease table once.

    Raises:
        ServiceError: If there is no such table, or it may not be read.
    """
    opening = open_table(
        name,
        region=region,
        endpoint_url=endpoint_url,
        session=None,
        role=AssumedRole.parse(role_arn, external_id, role_session_name),
        insecure=False,
        call_timeout=_TIMEOUT,
    )
    async with opening as table:
        try:
            items = await table.scan()
        except Exception as error:
            if code_of(error) == "ResourceNotFoundException":
                raise ServiceError(
                    f"there is no lease table {name!r}: the first member creates it"
                ) from error
            raise table_failure(name, error) from error
    leases = [Lease.of(item) for item in items if item.get(KIND, LEASE_KIND) == LEASE_KIND]
    reports = {
        str(item[KEY]): item.get(REPORTED) for item in items if item.get(KIND) == WORKER_KIND
    }
    return TableDescription(
        sorted(leases, key=lambda lease: lease.shard_id), _members(leases, reports)
    )


def _members(leases: Sequence[Lease], reports: dict[str, Any]) -> Sequence[MemberRow]:
    now = datetime.now(UTC).timestamp()
    held = [lease for lease in leases if not lease.ended]
    names = {*reports, *(lease.holder for lease in held if lease.holder is not None)}
    return [
        MemberRow(
            name,
            len([lease for lease in held if lease.holder == name]),
            sum(lease.rate for lease in held if lease.holder == name),
            None if reports.get(name) is None else max(now - float(reports[name]), 0.0),
        )
        for name in sorted(names)
    ]
