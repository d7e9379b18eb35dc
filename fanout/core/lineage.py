"""Parents before children: which splits may be read now.

Resharding replaces a split by its children. A record of a key that was written before the reshard
is in the parent, one written after it is in a child; so a child may only be read once all its
parents have been read to their end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

__all__ = ("Split", "startable")


@final
@dataclass(frozen=True, slots=True)
class Split:
    """One independently ordered piece of a source: a Kinesis shard or a Kafka partition.

    Args:
        id: The service's own name of the piece, unique within its source.
        parents: The ids of the splits that this one replaced, none for an original split.
    """

    id: str
    parents: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.id


def startable(
    splits: Mapping[str, Split], finished: Container[str], listed: Container[str]
) -> Iterator[Split]:
    """Yield the splits that are not finished and whose parents are all out of the way.

    A parent is out of the way when it is finished, or when it is unknown although the service has
    listed the child: then the parent's records have expired. A child that is known only from its
    parent's end must be listed first, because its other parent may be a split that nobody has
    seen yet.

    Args:
        splits: Every known split by id.
        finished: Ids of the splits that were read to their end.
        listed: Ids that the service's latest listing has named.
    """
    for split in splits.values():
        if split.id in finished:
            continue
        if all(
            parent in finished or (parent not in splits and split.id in listed)
            for parent in split.parents
        ):
            yield split
