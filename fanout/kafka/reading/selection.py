"""The topics and partitions that a user chose to read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

from fanout.core.sentence import Option, Sentence, all_of
from fanout.errors import OptionError
from fanout.kafka.partitions import Partition

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
