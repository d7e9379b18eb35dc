"""A share group of Kafka as a source, and the connection of one running stream to it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final, TypeVar, final

from aiokafka.errors import UnknownTopicOrPartitionError

from fanout.core.backoff import FullJitter
from fanout.core.events import Split
from fanout.core.lending.acknowledgements import SharedState
from fanout.core.lending.dedup import Dedup
from fanout.core.lending.delivery import MemberDelivery
from fanout.core.lending.member_locks import MemberLocks, delivery_number
from fanout.core.policy import Phase
from fanout.core.positions import Cursor
from fanout.core.source import Capabilities, Terms
from fanout.core.statistics import Origin
from fanout.core.subscription import Tap
from fanout.errors import OptionError, ServiceError
from fanout.kafka.protocol.cluster_metadata import fetch_metadata
from fanout.kafka.protocol.error_codes import raise_if_refused
from fanout.kafka.protocol.first_contact import open_cluster
from fanout.kafka.protocol.retries import with_retries
from fanout.kafka.reading.columns import arrival
from fanout.kafka.share.client_options import security_properties
from fanout.kafka.share.dead_letters import open_dead_letters
from fanout.kafka.share.group_admin import ShareGroupAdmin, TopicIds
from fanout.kafka.share.member import open_member
from fanout.kafka.share.naming import OffsetNaming
from fanout.kafka.share.options import ShareOptions
from fanout.kafka.share.policy import judge
from fanout.kafka.share.poll_columns import SCHEMA

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    import pyarrow as pa

    from fanout.core.backoff import Pacing
    from fanout.core.events import Batch, End
    from fanout.core.policy import Verdict
    from fanout.core.positions import Position
    from fanout.core.source import Reserve
    from fanout.kafka.protocol.connections import Connections
    from fanout.kafka.share.offset_ranges import OffsetRange

    _T = TypeVar("_T")

# Listings in a row without a topic. A broker that has just started may not know a topic yet.
_MAX_MISSING: Final = 3
_PREFIX: Final = "member-"

log = logging.getLogger(__name__)

_LOCK_DURATION: Final = "share.record.lock.duration.ms"
_DELIVERY_LIMIT: Final = "share.delivery.count.limit"


@final
class ShareConnection:
    """Connect one running stream to a share group; its splits are its members."""

    def __init__(
        self,
        options: ShareOptions,
        identity: str,
        *,
        group: ShareGroupAdmin,
        topic_ids: TopicIds,
        naming: OffsetNaming,
        shared: SharedState[OffsetRange],
    ) -> None:
        self._options = options
        self._pacing = options.pacing
        self._identity = identity
        self._group = group
        self._shared = shared
        self._topic_ids = topic_ids
        self._naming = naming
        self._lending = lending = MemberLocks(shared)
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
        await self._naming.forget_replaced(self._shared.dedup)
        self._check_topics()
        if self._shared.dedup.unconfirmed:
            self._naming.set_start_offsets(await self._group.start_offsets())
            self._naming.forget_gone(self._shared.dedup)
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
            missing = topic in self._topic_ids.missing
            self._missing[topic] = self._missing[topic] + 1 if missing else 0
            if self._missing[topic] == _MAX_MISSING:
                raise ServiceError(
                    f"the topic {topic} is gone, and its unread records with it: "
                    f"leave it out of topics, or create it again"
                )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaShareSource(ShareOptions):
    """Read as members of a share group; the arguments are those of ShareOptions.

    Records come in no order. A record that is not acknowledged within `stream.lending.seconds` may
    be delivered again, to any member of the group.
    """

    @property
    def schema(self) -> pa.Schema:
        """The columns of a Kafka source and `deliveryCount`, or those that `decode` returns."""
        decode = self.user_decode
        return SCHEMA if decode is None else decode.schema

    @property
    def event_time(self) -> None:
        """None, as there are no watermarks: a released record comes again, and late."""

    @asynccontextmanager
    async def connect(self, *, available_now: bool = False) -> AsyncIterator[ShareConnection]:
        """Connect, check that the topics exist, and set and read the group's settings.

        Args:
            available_now: Must be False: a share group has no end to read to.

        Raises:
            OptionError: If an option contradicts the group's settings, or `available_now` is True.
            ServiceError: If a topic does not exist or may not be read, the brokers have no share
                groups, or no broker answers.
        """
        if available_now:
            raise OptionError(
                "a share group has no end to read to: records that are locked for other members "
                "may come at any time; read on, and stop when no record has come for a while"
            )
        # It checks what a function returns.
        _ = security_properties(await asyncio.to_thread(self.cluster.load_security))
        jitter = FullJitter(self.pacing.backoff, Random())  # noqa: S311 - jitter, no secret

        async def retried(doing: str, call: Callable[[], Awaitable[_T]]) -> _T:
            return await with_retries(doing, call, jitter)

        async with AsyncExitStack() as stack:
            connections = await stack.enter_async_context(
                open_cluster(self.cluster.named("share"), self.client_options)
            )
            topic = self.dead_letter_topic
            topics = self.topic_names if topic is None else (*self.topic_names, topic)
            cluster = await retried(
                "the topics cannot be listed", lambda: _cluster(connections, topics)
            )
            group = ShareGroupAdmin(connections, self.group_id)
            about = f"the share group {self.group_id}"
            start_offsets = await retried(f"{about} cannot be read", group.start_offsets)
            ids = TopicIds(connections, self.topic_names)
            await retried("the topics cannot be listed", ids.refresh)
            wanted = {name: str(value) for name, value in (self.group_settings or {}).items()}
            if wanted:
                await retried(f"{about} cannot be set up", lambda: group.alter(wanted))
            settings = await retried(
                f"the settings of {about} cannot be read", lambda: group.settings(wanted)
            )
            self._check_limit(settings)
            log.info("%s has the settings %s", about, dict(sorted(settings.items())))
            dead_letters = None
            if topic is not None:
                dead_letters = await retried(
                    "dead letters cannot be written",
                    lambda: stack.enter_async_context(open_dead_letters(self, connections, topic)),
                )
            lock_seconds = int(settings[_LOCK_DURATION]) / 1000
            identity = f"kafka-share:{cluster}:{self.group_id}"
            naming = OffsetNaming(identity, ids)
            naming.set_start_offsets(start_offsets)
            dedup = Dedup(lock_seconds, naming.new_set)
            most = int(settings[_DELIVERY_LIMIT])
            shared = SharedState(self, lock_seconds, naming, dedup, dead_letters, jitter, most)
            stack.callback(shared.log_limit.close)
            yield ShareConnection(
                self, identity, group=group, topic_ids=ids, naming=naming, shared=shared
            )

    def cursor(self, batch: Batch, row: int) -> Cursor:
        """Return the position after one row: the number of records that the member delivered."""
        return Cursor(delivery_number(batch.range.after) + row + 1)

    def arrival(self, records: pa.RecordBatch, row: int) -> int | None:
        """Return the timestamp of a row in milliseconds; None if it has none."""
        return arrival(records, row)

    def _check_limit(self, settings: Mapping[str, str]) -> None:
        limit, most = int(settings[_DELIVERY_LIMIT]), self.max_deliveries
        if most is not None and most >= limit:
            raise OptionError(
                f"max_deliveries={most} must be less than the group's {_DELIVERY_LIMIT}={limit}, "
                f"at which a broker drops a record without an error"
            )


async def _cluster(connections: Connections, topics: tuple[str, ...]) -> str:
    """Return the id of the cluster, if it has the topics."""
    response = await fetch_metadata(connections, list(topics))
    for code, topic, *_ in response.topics:
        if code == UnknownTopicOrPartitionError.errno:
            raise ServiceError(
                f"there is no topic {topic}; check the name and the cluster, and that the "
                f"principal may describe it"
            )
        raise_if_refused(code, topic, topic=topic, operation="READ and DESCRIBE")
    return str(response.cluster_id)
