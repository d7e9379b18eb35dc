"""A Kafka partition, and its name as a split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from fanout.core.events import Split

__all__ = ("Partition",)


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
