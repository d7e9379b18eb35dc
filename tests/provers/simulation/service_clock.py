"""When a simulated stream begins, and what its shards are called."""

from __future__ import annotations

import math
from typing import Final

__all__ = ("EPOCH_MILLIS", "millis", "shard_id_of")

EPOCH_MILLIS: Final = 1_800_000_000_000
"""The moment of the service's clock at which virtual time begins."""


def millis(now: float) -> int:
    """Return the service's clock, in milliseconds since the Unix epoch, at a virtual second."""
    return EPOCH_MILLIS + math.floor(now * 1000)


def shard_id_of(index: int) -> str:
    """Return the id of a shard by its number."""
    return f"shardId-{index:012}"
