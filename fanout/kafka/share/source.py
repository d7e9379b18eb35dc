"""A share group of Kafka as a source of the fan-out."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from aiokafka.errors import UnknownTopicOrPartitionError

from fanout.core.backoff import FullJitter
from fanout.core.positions import Cursor
from fanout.errors import OptionError, ServiceError
from fanout.kafka.protocol.connections import open_connections
from fanout.kafka.protocol.fields import check_permitted
from fanout.kafka.protocol.metadata import ask_metadata
from fanout.kafka.protocol.startup_calls import asked
from fanout.kafka.reading.columns import arrival
from fanout.kafka.share.acknowledgements import Shared
from fanout.kafka.share.connection import ShareConnection
from fanout.kafka.share.dead_letters import open_dead_letters
from fanout.kafka.share.dedup import Dedup
from fanout.kafka.share.group_lending import GroupLending, number_of
from fanout.kafka.share.groups import GroupCalls
from fanout.kafka.share.options import ShareOptions
from fanout.kafka.share.poll_columns import SCHEMA
from fanout.kafka.share.topic_ids import TopicIds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    import pyarrow as pa

    from fanout.core.events import Batch
    from fanout.kafka.protocol.connections import Connections

    _T = TypeVar("_T")

__all__ = ("KafkaShareSource",)

log = logging.getLogger(__name__)

_LOCK: Final = "share.record.lock.duration.ms"
_LIMIT: Final = "share.delivery.count.limit"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaShareSource(ShareOptions):
    """Read records that a share group hands out; the arguments are those of ShareOptions.

    Records come in no order. Each has to be acknowledged within `stream.lending.seconds`, or it
    comes again, to any member of the group.
    """

    @property
    def schema(self) -> pa.Schema:
        """The columns of a Kafka source, and `deliveryCount`; with `decode` what it returns."""
        decode = self.user_decode
        return SCHEMA if decode is None else decode.schema

    @property
    def event_time(self) -> None:
        """Say that there are no watermarks: a record that is given back comes late again."""

    @asynccontextmanager
    async def connect(self, *, available_now: bool = False) -> AsyncIterator[ShareConnection]:
        """Connect, check that what is named exists, and read and set the group's settings.

        Args:
            available_now: Not for a share group: records that others hold may come at any time.

        Raises:
            OptionError: If an option contradicts the group's settings, or `available_now` is asked
                for.
            ServiceError: If a topic does not exist or may not be read, the brokers have no share
                groups, or no broker answers.
        """
        if available_now:
            raise OptionError(
                "a share group has no end to read to: what others hold may come back at any time; "
                "read on, and stop when nothing has come for a while"
            )
        jitter = FullJitter(self.pacing.backoff, Random())  # noqa: S311 - jitter, no secret

        async def ask(doing: str, call: Callable[[], Awaitable[_T]]) -> _T:
            return await asked(doing, call, jitter)

        async with AsyncExitStack() as stack:
            connections = await stack.enter_async_context(
                open_connections(
                    self.servers,
                    security=self.security,
                    client_id=f"{self.client_id_prefix}-share",
                    options=self.client_options,
                )
            )
            topic = self.dead_letter_topic
            topics = self.topic_names if topic is None else (*self.topic_names, topic)
            cluster = await ask(
                "the topics cannot be listed", lambda: _cluster(connections, topics)
            )
            group = GroupCalls(connections, self.group_id)
            about = f"the share group {self.group_id}"
            beginnings = await ask(f"{about} cannot be read", group.beginnings)
            ids = TopicIds(connections, self.topic_names)
            await ask("the topics cannot be listed", ids.ask)
            wanted = {name: str(value) for name, value in (self.group_settings or {}).items()}
            if wanted:
                await ask(f"{about} cannot be set up", lambda: group.alter(wanted))
            settings = await ask(
                f"the settings of {about} cannot be read", lambda: group.settings(wanted)
            )
            self._check_limit(settings)
            log.info("%s has the settings %s", about, dict(sorted(settings.items())))
            letters = None
            if topic is not None:
                letters = await ask(
                    "dead letters cannot be written",
                    lambda: stack.enter_async_context(open_dead_letters(self, connections, topic)),
                )
            seconds = int(settings[_LOCK]) / 1000
            shared = Shared(self, seconds, ids, Dedup(seconds), letters)
            identity = f"kafka-share:{cluster}:{self.group_id}"
            lending = GroupLending(identity, shared)
            lending.learn(beginnings)
            yield ShareConnection(self, identity, group=group, shared=shared, lending=lending)

    def cursor(self, batch: Batch, row: int) -> Cursor:
        """Return the position after one row, which counts what the member has delivered."""
        return Cursor(number_of(batch.range.after) + row + 1)

    def arrival(self, records: pa.RecordBatch, row: int) -> int | None:
        """Return the timestamp of a row in milliseconds; None where there is none."""
        return arrival(records, row)

    def _check_limit(self, settings: Mapping[str, str]) -> None:
        limit, most = int(settings[_LIMIT]), self.max_deliveries
        if most is not None and most >= limit:
            raise OptionError(
                f"max_deliveries={most} must be less than the group's {_LIMIT}={limit}, at which a "
                f"broker drops a record without a word"
            )


async def _cluster(connections: Connections, topics: tuple[str, ...]) -> str:
    """Return the id of the cluster, if it has the topics."""
    response: Any = await ask_metadata(connections, list(topics))
    for code, topic, *_ in response.topics:
        if code == UnknownTopicOrPartitionError.errno:
            raise ServiceError(
                f"there is no topic {topic}; check the name and the cluster, and that the "
                f"principal may describe it"
            )
        check_permitted(code, topic, topic=topic, operation="READ and DESCRIBE")
    return str(response.cluster_id)
