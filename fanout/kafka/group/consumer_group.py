"""A consumer group of Kafka, as a value: what `fanout.open(..., group=...)` takes."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from fanout.core.option_checks import check_seconds, check_text
from fanout.core.positions import Latest
from fanout.core.sentence import Option, Sentence
from fanout.core.starts import PerSplit
from fanout.errors import OptionError
from fanout.kafka.group.calls import GroupCalls
from fanout.kafka.group.member import ConsumerMember
from fanout.kafka.protocol.first_contact import open_cluster
from fanout.kafka.reading.kafka_options import KafkaOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fanout.core.backoff import FullJitter
    from fanout.core.source import Connection, Source


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroup:
    """Share the partitions of a `KafkaSource` with other members of a consumer group.

    The group is one of Kafka's new protocol (KIP-848, Kafka 4.0 and later). The broker assigns the
    partitions; members of other clients, also of the classic protocol, may be in the group. A
    member goes on where the group's offsets are; the source's `start` counts for partitions that
    have none, and a partition that is added to a topic later is read from its beginning.

    A member that ends without leaving costs the session timeout of the group: 45 seconds by
    default, by the broker's `group.consumer.session.timeout.ms` or the group's
    `consumer.session.timeout.ms`. Its principal needs READ and DESCRIBE_CONFIGS on the group.

    Args:
        group_id: The name of the group.
        instance_id: The static id of this process (`group.instance.id`), unlike all others of the
            group. It keeps its partitions for a restart within the session timeout. None lets the
            others have them at once when it leaves.
        handover_timeout: The longest time in seconds from a partition's revocation until it is
            given up: the time in which what was delivered can be acknowledged.

    Raises:
        OptionError: If an option is malformed or out of range.
    """

    group_id: str
    instance_id: str | None = None
    handover_timeout: float = 30.0

    def __post_init__(self) -> None:
        if not isinstance(self.group_id, str) or not self.group_id:
            raise OptionError(Option("group_id", self.group_id), " must be the name of a group")
        check_text("instance_id", self.instance_id)
        check_seconds("handover_timeout", self.handover_timeout)

    @asynccontextmanager
    async def join(
        self, source: Source, connection: Connection, jitter: FullJitter
    ) -> AsyncIterator[ConsumerMember]:
        """Prepare a member; leaving the block commits what is acknowledged, and leaves the group.

        Raises:
            OptionError: If the source is no `KafkaSource`, or reads what a group cannot share.
            ServiceError: If no broker answers, or they offer no such groups.
        """
        if not isinstance(source, KafkaOptions):
            raise OptionError(
                f"a ConsumerGroup shares the partitions of a KafkaSource, not of a "
                f"{type(source).__name__}"
            )
        _check_source(source, self.group_id)
        starts = await connection.resolve(await connection.splits())
        async with open_cluster(source.cluster.named("member"), source.fetching) as connections:
            calls = GroupCalls(connections, self.group_id)
            member = ConsumerMember(
                calls,
                connection,
                instance_id=self.instance_id,
                handover_timeout=self.handover_timeout,
                starts=starts,
                jitter=jitter,
            )
            try:
                yield member
            finally:
                await member.leave()


def _check_source(source: KafkaOptions, group: str) -> None:
    if source.partitions is not None:
        raise OptionError(
            Sentence.of("{partitions} and a group cannot be used together: "),
            "the group decides who reads which; name topics",
        )
    if source.group_id is not None:
        raise OptionError(
            Option("group_id", source.group_id),
            f" of the source commits without members, which the group {group} does itself: leave "
            f"it out",
        )
    starts: list[object] = [source.start]
    if isinstance(source.start, PerSplit):
        starts = [source.start.others, *dict(source.start.named).values()]
    if source.pattern is not None and any(isinstance(start, Latest) for start in starts):
        raise OptionError(
            Sentence.of("{pattern} with {start='latest'} and a group would skip records: "),
            "those of a topic that appears later; name topics, or another start",
        )
