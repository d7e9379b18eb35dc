"""How often frames of a shard were damaged at one position, and how many of them are given up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, final

from fanout.core.verdicts import Retry

if TYPE_CHECKING:
    from fanout.core.positions import Position

__all__ = ("BadFrames",)

# A frame that was damaged on the wire comes whole when it is sent again; one that is damaged in
# each of three answers is damaged at the service.
_TRIES: Final = 3


@final
class BadFrames:
    """Count the damaged frames of each shard.

    Args:
        on_bad_frame: Whether a frame that is damaged in three answers ends the stream, or is
            dropped.
    """

    def __init__(self, on_bad_frame: Literal["fail", "gap"]) -> None:
        self._droppable = on_bad_frame == "gap"
        self._damaged: dict[str, tuple[Position, int]] = {}

    def droppable(self, shard_id: str, position: Position) -> int:
        """Return how many frames in a row, from its first on, a new subscription may drop.

        Each of them has been damaged in two answers before: after the first frame has used up its
        tries it is dropped each time, and the one behind it begins to use up its own.
        """
        return self._count(shard_id, position) // (_TRIES - 1) if self._droppable else 0

    def found(self, shard_id: str, position: Position) -> Retry:
        """Count a subscription that ended at a damaged frame; return what to do about it."""
        self._damaged[shard_id] = position, self._count(shard_id, position) + 1
        return Retry() if self._droppable else Retry(limit=_TRIES)

    def _count(self, shard_id: str, position: Position) -> int:
        at, count = self._damaged.get(shard_id, (position, 0))
        return count if at == position else 0
