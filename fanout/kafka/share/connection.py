"""The connection of one running stream to a share group."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Final, final

from fanout.core.events import Split
from fanout.core.policy import Phase
from fanout.core.positions import Cursor
from fanout.core.source import Capabilities, Terms
from fanout.core.statistics import Origin
from fanout.core.subscription import Tap
from fanout.errors import ServiceError
from fanout.kafka.share.delivery import MemberDelivery
from fanout.kafka.share.lending import delivery_number
from fanout.kafka.share.member import open_member
from fanout.kafka.share.policy import judge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from fanout.core.backoff import Pacing
    from fanout.core.events import Batch, End
    from fanout.core.policy import Verdict
    from fanout.core.positions import Position
    from fanout.core.source import Reserve
    from fanout.kafka.share.acknowledgements import SharedState
    from fanout.kafka.share.group_admin import ShareGroupAdmin
    from fanout.kafka.share.lending import GroupLending
    from fanout.kafka.share.options import ShareOptions

# Listings in a row without a topic. A broker that has just started may not know a topic yet.
_MAX_MISSING: Final = 3
_PREFIX: Final = "member-"


@final
class ShareConnection:
    """Connect one running stream to a share group; its splits are its members."""

    def __init__(
        self,
        options: ShareOptions,
        identity: str,
        *,
        group: ShareGroupAdmin,
        shared: SharedState,
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
            terms=Terms("member", lambda _: ""),  # the group knows its offsets
            origin=Origin("kafka", ",".join(options.topic_names), options.group_id),
        )
        self._missing = dict.fromkeys(options.topic_names, 0)
        self._succeeded: set[Phase] = {Phase.DISCOVER}

    @property
    def identity(self) -> str:
        """The cluster and the group: positions count the deliveries of this group alone."""
        return self._identity

    @property
    def pacing(self) -> Pacing:
        """The limits on calls, and the timeouts."""
        return self._pacing

    async def splits(self) -> Sequence[Split]:
        """List the members, and check that the topics still exist, which the client does not."""
        self._shared.dedup.forget_topics(await self._shared.topic_ids.refresh())
        self._check_topics()
        if self._shared.dedup.unconfirmed:
            self._lending.set_start_offsets(await self._group.start_offsets())
        return self._members

    async def resolve(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Return 0 delivered records for each member; the group itself knows where it stands."""
        return {split.id: Cursor(0) for split in splits}

    @asynccontextmanager
    async def subscribe(
        self, split: Split, position: Position, reserve: Reserve
    ) -> AsyncIterator[AsyncIterator[Batch | End]]:
        """Join the group with one member; leaving the context releases its pending records."""
        number = self._members.index(split)
        # The user's function for the security may block.
        security = await asyncio.to_thread(self._options.cluster.load_security)
        properties = self._options.client_properties(number, security)
        opening = open_member(properties, self._options.topic_names, split.id, token=security.token)
        expired = self._lending.expired(split.id)
        try:
            async with opening as member:
                delivery = MemberDelivery(
                    split, delivery_number(position), member, expired, self._shared
                )
                self._lending.begin_delivery(split.id, delivery)
                self._succeeded.add(Phase.SUBSCRIBE)
                async with aclosing(delivery.batches(reserve)) as batches:
                    yield Tap(batches, lambda _: self._succeeded.add(Phase.STREAM))
        finally:
            self._lending.end_delivery(split.id)

    async def verdict(
        self,
        error: Exception,
        phase: Phase,
        split: Split | None = None,
        position: Position | None = None,
    ) -> Verdict:
        """Judge an error by the table in `fanout.kafka.share.policy`."""
        del split, position
        return judge(error, first=phase not in self._succeeded)

    @property
    def _members(self) -> list[Split]:
        return [Split(f"{_PREFIX}{number}") for number in range(self._options.consumers)]

    def _check_topics(self) -> None:
        for topic in self._missing:
            missing = topic in self._shared.topic_ids.missing
            self._missing[topic] = self._missing[topic] + 1 if missing else 0
            if self._missing[topic] == _MAX_MISSING:
                raise ServiceError(
                    f"the topic {topic} is gone, and its unread records with it: "
                    f"leave it out of topics, or create it again"
                )
