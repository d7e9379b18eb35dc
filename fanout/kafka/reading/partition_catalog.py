"""List the partitions to read: the existing ones among those that the user chose."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, final

from aiokafka.errors import UnknownTopicOrPartitionError

from fanout.errors import ServiceError
from fanout.kafka.partitions import Partition
from fanout.kafka.protocol.retries import with_retries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.core.backoff import FullJitter
    from fanout.core.events import Split
    from fanout.kafka.reading.selection import Selection
    from fanout.kafka.reading.transport import KafkaTransport

log = logging.getLogger(__name__)


@final
class PartitionCatalog:
    """List the chosen partitions that exist."""

    def __init__(self, transport: KafkaTransport, selection: Selection, jitter: FullJitter) -> None:
        self._transport = transport
        self._selection = selection
        self._jitter = jitter
        self._topics: Mapping[str, Sequence[int]] | None = None

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of partitions of each topic, chosen or not, at the last listing."""
        return {topic: len(numbers) for topic, numbers in (self._topics or {}).items()}

    async def refresh(self) -> Sequence[Split]:
        """List the chosen partitions.

        The first listing must contain every topic and partition that the user named, or it raises
        ServiceError; it is retried for half a minute. Later listings leave out deleted topics; a
        topic with
        another error keeps its partitions.
        """
        if self._topics is None:
            return await with_retries("the topics cannot be listed", self._refresh, self._jitter)
        return await self._refresh()

    async def _refresh(self) -> Sequence[Split]:
        if self._selection.pattern is None:
            answers = await self._transport.describe(sorted(self._selection.names))
        else:
            answers = await self._transport.topics()
        topics = self._usable(answers)
        chosen = sorted(
            partition
            for topic, numbers in topics.items()
            for partition in (Partition(topic, number) for number in numbers)
            if self._selection.includes(partition)
        )
        if self._topics is None:
            self._check_named(topics)
            if not chosen:
                log.warning("no topic matches %s yet", self._selection.pattern)
        self._topics = topics
        return [partition.split for partition in chosen]

    def _usable(self, answers: Mapping[str, Sequence[int] | Exception]) -> dict[str, Sequence[int]]:
        topics: dict[str, Sequence[int]] = {}
        known = self._topics
        for topic, answer in answers.items():
            match answer:
                case UnknownTopicOrPartitionError():
                    # The first listing is checked as a whole.
                    if known is not None and topic in known:
                        log.warning(
                            "the topic %s was deleted, or may no longer be described", topic
                        )
                case Exception() if known is None:
                    raise answer
                case Exception():
                    log.warning("the partitions of %s cannot be listed: %s", topic, answer)
                    if known is not None and topic in known:
                        topics[topic] = known[topic]
                case numbers:
                    topics[topic] = numbers
        return topics

    def _check_named(self, topics: Mapping[str, Sequence[int]]) -> None:
        if missing := sorted(self._selection.names - topics.keys()):
            raise ServiceError(
                f"there is no topic {', '.join(missing)}; check the name and the cluster, and that "
                f"the principal may describe it"
            )
        for partition in sorted(self._selection.partitions):
            if partition.number not in topics[partition.topic]:
                raise ServiceError(
                    f"there is no partition {partition}: {partition.topic} has "
                    f"{len(topics[partition.topic])} partitions"
                )
