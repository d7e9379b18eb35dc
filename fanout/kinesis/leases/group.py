"""An application that shares a stream by a table of leases, as a value."""

from __future__ import annotations

import re
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from fanout.core.option_checks import check_seconds, check_text
from fanout.core.sentence import Option
from fanout.errors import FanOutError, OptionError
from fanout.kinesis.connection import KinesisConnection
from fanout.kinesis.control_calls import until_answered
from fanout.kinesis.leases.member import LeaseMember
from fanout.kinesis.leases.table import open_table, table_failure
from fanout.kinesis.options import KinesisOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fanout.core.backoff import FullJitter
    from fanout.core.source import Connection, Source

# DynamoDB developer guide, "Naming rules"; an ARN names the table of another account.
_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{3,255}")
_ARN: Final = re.compile(r"arn:aws[a-z0-9-]*:dynamodb:[a-z0-9-]+:[0-9]{12}:table/" + _NAME.pattern)
# The keys of other items, which a worker's must not have.
_RESERVED: Final = re.compile(r"Leader|Migration3\.0|TableMigration3\.x|shardId-.*")
_LEAST_FAILOVER: Final = 1.0
# A call may take this part of the failover time.
_CALL: Final = 1 / 3


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTable:
    """Share the shards of a `KinesisSource` with other processes, by leases in a DynamoDB table.

    The table has the layout of the Kinesis Client Library (KCL) 3.5, and is created unless it
    exists. A member goes on where the leases are; the source's `start` counts for shards that no
    member has read yet. An application of the KCL goes on with fanout on its table when its workers
    are stopped, and the other way round.

    A member that ends without leaving costs the failover time. Where the source consumes by
    enhanced fan-out, all members use its one consumer.

    Args:
        name: The name of the table, or its ARN; in the KCL that is the name of the application.
        worker: The name of this process, unlike all others of the table. None makes one up.
        failover_time: Seconds after which others take the leases of a member that renews them no
            longer; all members need the same.
        handover_timeout: The longest time in seconds from when another member asks for a shard
            until it is given up: the time in which what was delivered can be acknowledged.
        endpoint_url: An endpoint of DynamoDB instead of the region's.

    Raises:
        OptionError: If an option is malformed or out of range.
    """

    name: str
    worker: str | None = None
    failover_time: float = 10.0
    handover_timeout: float = 30.0
    endpoint_url: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not (
            _NAME.fullmatch(self.name) or _ARN.fullmatch(self.name)
        ):
            raise OptionError(
                Option("name", self.name),
                " must be the name of a table of DynamoDB, or its ARN: 3 to 255 letters, digits "
                "or _ . -",
            )
        check_text("worker", self.worker)
        if self.worker is not None and (_RESERVED.fullmatch(self.worker) or ":" in self.worker):
            raise OptionError(
                Option("worker", self.worker), " is the key of another item of the table"
            )
        check_seconds("failover_time", self.failover_time)
        if self.failover_time < _LEAST_FAILOVER:
            raise OptionError(
                Option("failover_time", self.failover_time), " must be at least 1 second"
            )
        check_seconds("handover_timeout", self.handover_timeout)
        check_text("endpoint_url", self.endpoint_url)

    @asynccontextmanager
    async def join(
        self, source: Source, connection: Connection, jitter: FullJitter
    ) -> AsyncIterator[LeaseMember]:
        """Prepare a member; leaving the block stores what is acknowledged, and gives leases back.

        Raises:
            OptionError: If the source is no `KinesisSource`, or reads what a group cannot share.
            ServiceError: If the table cannot be created or used.
        """
        options, stream = _checked(source, connection)
        starts = await stream.resolve(await stream.splits())
        opening = open_table(
            self.name,
            region=options.resolved_region,
            endpoint_url=self.endpoint_url,
            session=options.session,
            role=options.role,
            insecure=options.insecure,
            call_timeout=self.failover_time * _CALL,
        )
        async with opening as table:
            try:
                await until_answered(table.ensure, jitter)
            except FanOutError:
                raise
            except Exception as error:
                raise table_failure(self.name, error) from error
            member = LeaseMember(
                table,
                stream,
                table=self.name,
                worker=self.worker or f"fanout-{uuid.uuid4()}",
                failover_time=self.failover_time,
                handover_timeout=self.handover_timeout,
                starts=starts,
                jitter=jitter,
            )
            try:
                yield member
            finally:
                await member.leave()


def _checked(source: Source, connection: Connection) -> tuple[KinesisOptions, KinesisConnection]:
    if not isinstance(source, KinesisOptions):
        raise OptionError(
            f"a LeaseTable shares the shards of a KinesisSource, not of a {type(source).__name__}"
        )
    if source.shards is not None:
        raise OptionError(
            Option("shards", source.shards),
            " and a group cannot be used together: the group decides who reads which",
        )
    if not isinstance(connection, KinesisConnection):
        raise OptionError(
            Option("stream", source.stream),
            " and a group cannot be used together: a lease table is about one stream; open one "
            "for each, with a table of its own",
        )
    return source, connection
