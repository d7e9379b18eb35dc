"""One running stream's hold on a share group."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Final, final

from fanout.core.events import Split
from fanout.core.policy import Phase
from fanout.core.positions import Cursor
from fanout.core.source import Capabilities
from fanout.core.subscription import Tap
from fanout.errors import ServiceError
from fanout.kafka.share.delivery import Delivery
from fanout.kafka.share.group_lending import number_of
from fanout.kafka.share.member import open_member
from fanout.kafka.share.policy import judge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from fanout.core.backoff import Pacing
    from fanout.core.events import Batch, End
    from fanout.core.policy import Verdict
    from fanout.core.positions import Position
    from fanout.core.source import Reserve
    from fanout.kafka.share.acknowledgements import Shared
    from fanout.kafka.share.group_lending import GroupLending
    from fanout.kafka.share.groups import GroupCalls
    from fanout.kafka.share.options import ShareOptions

__all__ = ("ShareConnection",)

# A broker that has just started may not have heard of a topic yet.
_ABSENCES: Final = 3
_PREFIX: Final = "member-"


@final
class ShareConnection:
    """One running stream's hold on a share group; its splits are its members.

    Args:
        options: What the user asked for.
        identity: The name of the source.
        group: The calls about the group.
        shared: What the members have in common.
        lending: The hold on what is lent.
    """

    def __init__(
        self,
        options: ShareOptions,
        identity: str,
        *,
        group: GroupCalls,
        shared: Shared,
        lending: GroupLending,
    ) -> None:
        self._options = options
        self._pacing = options.pacing
        self._identity = identity
        self._group = group
        self._shared = shared
        self._lending = lending
        self.capabilities = Capabilities(
            reads=lambda split: split in self._members,
            lending=lending,
            settlement=lending,
            spooling=lending,
        )
        self._absences = dict.fromkeys(options.topic_names, 0)
        self._worked: set[Phase] = {Phase.DISCOVER}

    @property
    def identity(self) -> str:
        """Name the cluster and the group, which is whose deliveries the positions count."""
        return self._identity

    @property
    def pacing(self) -> Pacing:
        """Say how brokers want to be asked."""
        return self._pacing

    async def splits(self) -> Sequence[Split]:
        """List the members, and check that the topics are still there; clients do not notice.

        Raises:
            ServiceError: If one is gone.
            KafkaError: If the cluster cannot be asked.
        """
        self._shared.claims.forget_topics(await self._shared.topics.ask())
        self._check_topics()
        if self._shared.claims.doubts:
            self._lending.learn(await self._group.beginnings())
        return self._members

    async def resolve(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Say that nothing is delivered yet; where the group stands, the group knows."""
        return {split.id: Cursor(0) for split in splits}

    @asynccontextmanager
    async def subscribe(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AsyncIterator[AsyncIterator[Batch | End]]:
        """Join the group with one member; leaving the context gives back what it holds."""
        properties = self._options.client_properties(self._members.index(split))
        opening = open_member(properties, self._options.topic_names, split.id)
        lapsed = self._lending.lapsed(split.id)
        try:
            async with opening as member:
                lender = Delivery(split, number_of(position), member, lapsed, self._shared)
                self._lending.begin(split.id, lender)
                self._worked.add(Phase.SUBSCRIBE)
                async with aclosing(lender.batches(reserve)) as batches:
                    yield Tap(batches, lambda _: self._worked.add(Phase.STREAM))
        finally:
            self._lending.end(split.id)

    async def verdict(
        self,
        error: Exception,
        phase: Phase,
        split: Split | None = None,
        position: Position | None = None,
    ) -> Verdict:
        """Say what an error means, by the table in `fanout.kafka.share.policy`."""
        del split, position
        return judge(error, first=phase not in self._worked)

    @property
    def _members(self) -> list[Split]:
        return [Split(f"{_PREFIX}{number}") for number in range(self._options.consumers)]

    def _check_topics(self) -> None:
        for topic in self._absences:
            missing = topic in self._shared.topics.missing
            self._absences[topic] = self._absences[topic] + 1 if missing else 0
            if self._absences[topic] == _ABSENCES:
                raise ServiceError(
                    f"the topic {topic} is gone, and with it the records that nobody had read yet: "
                    f"leave it out of topics, or create it again"
                )
