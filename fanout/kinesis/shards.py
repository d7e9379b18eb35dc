"""The shards of a stream: those that are listed, and what is remembered of those that were."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from fanout.core.events import Split
from fanout.errors import ServiceError
from fanout.kinesis.aws.api import MAX_SHARDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.kinesis.aws.api import KinesisClient, ShardDescription

__all__ = ("ShardCatalog",)


@final
class ShardCatalog:
    """List the shards, and remember how each one ended after it is no longer listed.

    Listings may be on their way at once; one that was asked for before another replaces nothing of
    it, however late it comes.

    Args:
        client: The calls.
    """

    def __init__(self, client: KinesisClient) -> None:
        self._client = client
        self._listed: Mapping[str, ShardDescription] = {}
        self._known: dict[str, ShardDescription] = {}
        self._asked = 0
        self._answered = 0

    @property
    def listed(self) -> Mapping[str, ShardDescription]:
        """What the latest listing says, by shard id."""
        return self._listed

    @property
    def known(self) -> Mapping[str, ShardDescription]:
        """The latest description of each shard that was ever listed, as far as there is room."""
        return self._known

    async def refresh(self) -> Sequence[Split]:
        """List the shards within the retention period, with their parents.

        Raises:
            ServiceError: If another stream has taken this one's name, or there are too many shards.
        """
        self._asked += 1
        asked = self._asked
        listed = {shard.shard_id: shard for shard in await self._client.list_shards()}
        for shard_id, shard in listed.items():
            before = self._known.get(shard_id, shard)
            if before.first != shard.first:
                raise ServiceError(
                    f"the stream was deleted, and another one was created by its name: {shard_id} "
                    f"begins at {shard.first} now, and began at {before.first}; read the new "
                    f"stream without the positions of the old one"
                )
        if asked > self._answered:
            self._answered = asked
            self._take_in(listed)
        return [_split(shard) for shard in self._listed.values()]

    def _take_in(self, listed: Mapping[str, ShardDescription]) -> None:
        self._listed = listed
        unlisted = {id_: shard for id_, shard in self._known.items() if id_ not in listed}
        self._known = {**unlisted, **listed}
        while len(self._known) > MAX_SHARDS:
            del self._known[next(iter(self._known))]

    def children(self, shard_id: str) -> tuple[Split, ...]:
        """Return the listed shards that replace one."""
        return tuple(_split(shard) for shard in self._listed.values() if shard_id in shard.parents)


def _split(shard: ShardDescription) -> Split:
    return Split(shard.shard_id, shard.parents)
