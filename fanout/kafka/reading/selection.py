"""The topics and partitions that a user chose to read, and those of them that exist."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from aiokafka.errors import UnknownTopicOrPartitionError

from fanout.core.sentence import Option, Sentence, all_of
from fanout.errors import OptionError, ServiceError
from fanout.kafka.partitions import Partition
from fanout.kafka.protocol.retries import with_retries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.core.backoff import FullJitter
    from fanout.core.events import Split
    from fanout.kafka.reading.transport import KafkaTransport

log = logging.getLogger(__name__)

# Kafka's rule for the names of topics, and its internal topics, which a pattern such as ".*" does
# not match (org.apache.kafka.common.internals.Topic).
_TOPIC: Final = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


@final
@dataclass(frozen=True, slots=True)
class Selection:
    """A choice of partitions: whole topics, a pattern of whole names, or single partitions."""

    topics: frozenset[str] = frozenset()
    pattern: re.Pattern[str] | None = None
    partitions: frozenset[Partition] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        """The topics chosen by name; empty where a pattern chooses them."""
        return self.topics | {partition.topic for partition in self.partitions}

    @property
    def text(self) -> str:
        """The topics with commas between them, or the pattern."""
        return ",".join(sorted(self.names)) if self.pattern is None else self.pattern.pattern

    def includes(self, partition: Partition) -> bool:
        """Return whether a partition is chosen, existing or not."""
        topic = partition.topic
        if self.pattern is None:
            return topic in self.topics or partition in self.partitions
        return self.includes_some(topic)

    def includes_some(self, topic: str) -> bool:
        """Return whether a topic is chosen, or a partition of it, existing or not."""
        if self.pattern is None:
            return topic in self.names
        return topic not in _INTERNAL and self.pattern.fullmatch(topic) is not None


def select(topics: object, pattern: object, partitions: object) -> Selection:
    """Parse a user's choice, which is exactly one of the three; a partition is `"orders-0"`."""
    options = {"topics": topics, "pattern": pattern, "partitions": partitions}
    given = [name for name, value in options.items() if value is not None]
    if len(given) != 1:
        raise OptionError(
            Sentence.of(
                "say what to read by exactly one of {topics}, {pattern} and {partitions}, not by "
            ),
            all_of(given) or "none of them",
        )
    if topics is not None:
        return Selection(topics=frozenset(_topic(topic) for topic in _several("topics", topics)))
    if pattern is not None:
        return Selection(pattern=_pattern(pattern))
    named = _several("partitions", partitions)
    return Selection(partitions=frozenset(_partition(partition) for partition in named))


def _several(option: str, given: object) -> list[object]:
    several = (
        [given]
        if isinstance(given, str | Partition) or not isinstance(given, Iterable)
        else list(given)
    )
    if not several:
        raise OptionError(Option(option), " is empty; name at least one")
    return several


def _topic(topic: object) -> str:
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
        raise OptionError(f"{topic!r} cannot be the name of a topic: 1 to 249 of a-z A-Z 0-9 . _ -")
    return topic


def _pattern(pattern: object) -> re.Pattern[str]:
    if isinstance(pattern, re.Pattern) and isinstance(pattern.pattern, str):
        return pattern
    if not isinstance(pattern, str) or not pattern:
        raise OptionError(
            Option("pattern", pattern), " must be a regular expression, as text or compiled"
        )
    try:
        return re.compile(pattern)
    except re.error as error:
        raise OptionError(
            Option("pattern", pattern), f" is no regular expression: {error}"
        ) from error


def _partition(partition: object) -> Partition:
    if isinstance(partition, Partition):
        return Partition(_topic(partition.topic), partition.number)
    try:
        named = Partition.of(partition) if isinstance(partition, str) else None
    except ValueError:
        named = None
    if named is None:
        raise OptionError(
            Option("partitions"), f" holds {partition!r}; name a partition like 'orders-0'"
        )
    return Partition(_topic(named.topic), named.number)


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
        topic with another error keeps its partitions.
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
