"""The answers that a simulated cluster has sent to one process."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from fanout.kafka.partitions import Partition

__all__ = ("SentResponses",)


@final
@dataclass(slots=True, eq=False)
class SentResponses:
    """The responses that one process has received.

    Args:
        since: When it began, in virtual seconds.
        errors: Every error that it was given, of a call or of a partition.
        eras: Which eras of each partition it has seen, the latest last.
        damaged: How often it was given a batch that is damaged, by partition and first offset.
        refused: How often an offset was refused, by partition, offset and name of the error.
        asked: Which offset of each partition it has asked for last.
        unseen: Whether a listing has left a topic out that it has asked for.
        hung: How often it was not answered in time, or only after long.
        calling: Which requests are under way, by their numbers, and when they began.
        committed: What it has committed last, by partition.
        wrongs: What is wrong about what it has asked.
    """

    since: float
    errors: list[Exception] = field(default_factory=list)
    eras: defaultdict[Partition, list[int]] = field(default_factory=lambda: defaultdict(list))
    damaged: Counter[tuple[Partition, int]] = field(default_factory=Counter)
    refused: Counter[tuple[Partition, int, str]] = field(default_factory=Counter)
    asked: dict[Partition, int] = field(default_factory=dict)
    unseen: bool = False
    hung: int = 0
    calling: dict[int, tuple[str, float]] = field(default_factory=dict)
    committed: dict[Partition, int] = field(default_factory=dict)
    wrongs: list[str] = field(default_factory=list)

    def gives(self, error: Exception) -> Exception:
        """Record an error, and return it."""
        self.errors.append(error)
        return error

    def knows(self, error: BaseException | None) -> bool:
        """Return whether an error is one that it was given."""
        return any(error is each for each in self.errors)
