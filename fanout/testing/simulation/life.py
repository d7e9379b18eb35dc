"""One run of the process that reads a simulated stream, as the service knows it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import final

__all__ = ("Life",)


@final
@dataclass(slots=True)
class Life:
    """One run of the reader's process.

    Args:
        number: Its number, from 1.
        dead: Whether the process has died; what its remains do reaches nobody.
        opened: Whether its stream has been opened.
        settled: Whether it has listed, subscribed and read: what is refused from now on has worked.
        passed_over: The newest number of each shard that had expired when the process asked for the
            oldest record.
        damage: How often the bytes at one place of a shard were damaged.
        unknown: How often a place of a shard was refused by an error that nobody knows.
    """

    number: int
    dead: bool = False
    opened: bool = False
    settled: bool = False
    passed_over: dict[str, int] = field(default_factory=dict)
    damage: Counter[tuple[str, int]] = field(default_factory=Counter)
    unknown: Counter[tuple[str, int]] = field(default_factory=Counter)
