"""Partitions of Kafka: their names as splits, and their rows in requests and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from fanout.core.events import Split

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


@final
@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """One partition of a topic.

    Args:
        topic: The topic.
        number: The partition's number in it.
    """

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"

    @property
    def split(self) -> Split:
        """The partition as a split; its id is the name that Kafka's own tools print."""
        return Split(str(self))

    @classmethod
    def of(cls, split_id: str) -> Partition:
        """Return the partition whose split has this id.

        Raises:
            ValueError: If it is no such id.
        """
        # A topic's name may hold dashes and digits; a partition's number holds no dash.
        topic, dash, number = split_id.rpartition("-")
        if not (dash and topic and number.isascii() and number.isdigit()):
            raise ValueError(f"{split_id!r} is not the name of a Kafka partition")
        return cls(topic, int(number))


def by_topic(
    fields: Mapping[Partition, tuple[Any, ...]],
) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """Return the rows of a request by topic: each partition's number, then its fields."""
    topics: dict[str, list[tuple[Any, ...]]] = {}
    for partition, values in fields.items():
        topics.setdefault(partition.topic, []).append((partition.number, *values))
    return list(topics.items())


def numbers_by_topic(partitions: Iterable[Partition]) -> list[tuple[str, list[int]]]:
    """Return the rows of a request that names partitions by their numbers only."""
    topics: dict[str, list[int]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(partition.number)
    return list(topics.items())


def partition_rows(topics: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield each partition in the topics of an answer, with its fields after it."""
    for topic, partitions, *_ in topics:
        for number, *fields in partitions:
            yield Partition(topic, number), *fields
