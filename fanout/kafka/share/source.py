"""A share group of Kafka as a source."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from aiokafka.errors import UnknownTopicOrPartitionError

from fanout.core.backoff import FullJitter
from fanout.core.positions import Cursor
from fanout.errors import OptionError, ServiceError
from fanout.kafka.protocol.cluster_metadata import fetch_metadata
from fanout.kafka.protocol.error_codes import raise_if_refused
from fanout.kafka.protocol.first_contact import open_cluster
from fanout.kafka.protocol.retries import with_retries
from fanout.kafka.reading.columns import arrival
from fanout.kafka.share.acknowledgements import SharedState
from fanout.kafka.share.client_options import security_properties
from fanout.kafka.share.connection import ShareConnection
from fanout.kafka.share.dead_letters import open_dead_letters
from fanout.kafka.share.dedup import Dedup
from fanout.kafka.share.group_admin import ShareGroupAdmin
from fanout.kafka.share.lending import GroupLending, delivery_number
from fanout.kafka.share.options import ShareOptions
from fanout.kafka.share.poll_columns import SCHEMA
from fanout.kafka.share.topic_ids import TopicIds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    import pyarrow as pa

    from fanout.core.events import Batch
    from fanout.kafka.protocol.connections import Connections

    _T = TypeVar("_T")

log = logging.getLogger(__name__)

_LOCK_DURATION: Final = "share.record.lock.duration.ms"
_DELIVERY_LIMIT: Final = "share.delivery.count.limit"


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
            shared = SharedState(
                self, lock_seconds, ids, Dedup(lock_seconds), dead_letters, jitter=jitter
            )
            stack.callback(shared.log_limit.close)
            identity = f"kafka-share:{cluster}:{self.group_id}"
            lending = GroupLending(identity, shared)
            lending.set_start_offsets(start_offsets)
            yield ShareConnection(self, identity, group=group, shared=shared, lending=lending)

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
    response: Any = await fetch_metadata(connections, list(topics))
    for code, topic, *_ in response.topics:
        if code == UnknownTopicOrPartitionError.errno:
            raise ServiceError(
                f"there is no topic {topic}; check the name and the cluster, and that the "
                f"principal may describe it"
            )
        raise_if_refused(code, topic, topic=topic, operation="READ and DESCRIBE")
    return str(response.cluster_id)
