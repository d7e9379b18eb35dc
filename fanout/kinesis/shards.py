"""List the shards of a stream, and keep the descriptions of those that are no longer listed."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from fanout.core.events import Split
from fanout.errors import ServiceError
from fanout.kinesis.aws.api import MAX_SHARDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.kinesis.aws.api import KinesisClient, ShardDescription


@final
class ShardCatalog:
    """List the shards, and keep the description of each one after it is no longer listed.

    Listings may run concurrently. The result of a later request is never replaced by that of an
    earlier one, whichever answer arrives last.
    """

    def __init__(self, client: KinesisClient) -> None:
        self._client = client
        self._listed: Mapping[str, ShardDescription] = {}
        self._known: dict[str, ShardDescription] = {}
        self._requested = 0
        self._answered = 0

    @property
    def listed(self) -> Mapping[str, ShardDescription]:
        """The shards of the latest listing, by shard id."""
        return self._listed

    @property
    def known(self) -> Mapping[str, ShardDescription]:
        """The last description of each shard that was ever listed, of MAX_SHARDS at most."""
        return self._known

    async def refresh(self) -> Sequence[Split]:
        """List the shards within the retention period, with their parents."""
        self._requested += 1
        requested = self._requested
        listed = {shard.shard_id: shard for shard in await self._client.list_shards()}
        for shard_id, shard in listed.items():
            before = self._known.get(shard_id, shard)
            if before.first != shard.first:
                raise ServiceError(
                    f"the stream was deleted, and another one was created by its name: {shard_id} "
                    f"begins at {shard.first} now, and began at {before.first}; read the new "
                    f"stream without the positions of the old one"
                )
        if requested > self._answered:
            self._answered = requested
            self._store(listed)
        return [_split(shard) for shard in self._listed.values()]

    def _store(self, listed: Mapping[str, ShardDescription]) -> None:
        self._listed = listed
        unlisted = {id_: shard for id_, shard in self._known.items() if id_ not in listed}
        self._known = {**unlisted, **listed}
        while len(self._known) > MAX_SHARDS:
            del self._known[next(iter(self._known))]

    def children(self, shard_id: str) -> tuple[Split, ...]:
        """Return the listed children of a shard."""
        return tuple(_split(shard) for shard in self._listed.values() if shard_id in shard.parents)


def _split(shard: ShardDescription) -> Split:
    return Split(shard.shard_id, shard.parents)
