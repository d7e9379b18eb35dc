"""The protocol of a log by which others read a landing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from fanout.landing.log.entries import BatchEntry


class Projection(Protocol):
    """A log of others, derived from the entries of a landing. Every call blocks.

    It has the files of all entries up to one of them, each once, and no file that no entry names.
    What a run that was killed has left out is added when the next run begins.
    """

    def write(self, entry: BatchEntry, expired: Collection[str], written_at: int, /) -> bool:
        """Add the files of an entry, and what is missing before them.

        Say whether `expired` files have left, and may be deleted. The time is in milliseconds since
        the Unix epoch. An error ends the landing.
        """


def write_all(
    projections: Iterable[Projection],
    entry: BatchEntry,
    expired: Collection[str],
    written_at: int,
) -> bool:
    """Write an entry to each; say whether `expired` files have left all of them."""
    gone = True
    for projection in projections:
        # What one of them keeps leaves the later ones with it, at once and not one by one.
        gone = projection.write(entry, expired if gone else (), written_at) and gone
    return gone
