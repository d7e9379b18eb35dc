"""What a stream's members count together, and where they wait for each other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from fanout.kafka.share.claims import Claims
    from fanout.kafka.share.dead_letters import DeadLetters
    from fanout.kafka.share.options import ShareOptions
    from fanout.kafka.share.topic_ids import TopicIds

__all__ = ("Shared", "Tally")


@final
@dataclass(slots=True)
class Tally:
    """Counters; see `LendingStatistics`."""

    acquired: int = 0
    redelivered: int = 0
    repeated: int = 0
    accepted: int = 0
    released: int = 0
    rejected: int = 0
    expired: int = 0


@final
@dataclass(slots=True)
class Shared:
    """What the members of one stream have in common.

    Args:
        options: What the user asked for.
        seconds: How long a lock lasts.
        topics: The ids of the topics.
        claims: Which records the stream has.
        letters: Where bad records go; None for nowhere.
        tally: The counters.
        open: Whether records are asked for.
    """

    options: ShareOptions
    seconds: float
    topics: TopicIds
    claims: Claims
    letters: DeadLetters | None
    tally: Tally = field(default_factory=Tally)
    open: asyncio.Event = field(default_factory=asyncio.Event)
