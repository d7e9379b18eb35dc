"""What the partitions of a shuffle know of its producers, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fanout.core.opening import open_stream
from fanout.kafka.shuffle.reader import producers_at

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.kafka.shuffle.producers import Producers
    from fanout.kafka.shuffle.source import ShuffleSource

__all__ = ("describe",)


async def describe(source: ShuffleSource) -> Mapping[str, Producers]:
    """Read a shuffle to its end and return what is known there, by partition.

    Args:
        source: The shuffle. What producers said before its start is not known, and it reads all
            records from there on.

    Raises:
        FanOutError: If the topic cannot be read, or holds what is no frame.
    """
    async with open_stream(source, available_now=True) as stream:
        async for batch in stream:
            await stream.acknowledge(batch)
        splits = stream.statistics().splits
        return {name: producers_at(split.position) for name, split in sorted(splits.items())}
