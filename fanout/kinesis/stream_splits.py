"""Name the shards of several streams: ids of shards repeat, so a split is `stream/shard`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, final

from fanout.core.events import End, Split

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fanout.core.events import Batch


def stream_of(split_id: str) -> str:
    """Return the stream of a split, such as `orders/shardId-000000000000`."""
    return split_id.partition("/")[0]


@final
class StreamSplits:
    """Translate between the shards of one stream and the splits of a source of several."""

    def __init__(self, stream: str) -> None:
        self._prefix = f"{stream}/"

    def split_id(self, shard_id: str) -> str:
        """Return the id of the split of a shard."""
        return self._prefix + shard_id

    def split(self, shard: Split) -> Split:
        """Return the split of a shard."""
        return Split(self.split_id(shard.id), tuple(map(self.split_id, shard.parents)))

    def splits(self, shards: Iterable[Split]) -> tuple[Split, ...]:
        """Return the splits of shards."""
        return tuple(map(self.split, shards))

    def shard(self, split: Split) -> Split:
        """Return the shard of a split."""
        parents = tuple(parent.removeprefix(self._prefix) for parent in split.parents)
        return Split(split.id.removeprefix(self._prefix), parents)

    def event(self, event: Batch | End, split: Split) -> Batch | End:
        """Return an event of a shard as one of its split."""
        if isinstance(event, End):
            return replace(event, split=split, children=self.splits(event.children))
        return replace(event, split=split)
