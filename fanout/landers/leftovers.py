"""What the landers of sessions that are over have left in the checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from fanout.landing.segments.segment_file import SEGMENTS
from fanout.landing.segments.segments import session_of

if TYPE_CHECKING:
    from fanout.landing.storage.storage import Storage


@final
class Leftovers:
    """Know the sessions that are over, and delete what they have published and nothing counts.

    A lander is killed after it has published a segment and before it has told of it, or it goes on
    for a while after its session. Nothing of a session that is over is accepted any more, and what
    was accepted of it has smaller numbers.
    """

    def __init__(self) -> None:
        self._last: dict[int, str] = {}

    def ended(self, session: int, last: str) -> None:
        """Take in that a session is over; `last` is its last accepted segment, empty for none."""
        self._last[session] = last

    def sweep(self, storage: Storage, run: int) -> None:
        """Delete the segments of this run, and what is left of unfinished files. It blocks."""
        last = dict(self._last)  # this is another thread
        if not last:
            return
        for file in storage.list(SEGMENTS):
            place = session_of(file.name)
            if place is None or place[0] != run or place[1] not in last:
                continue
            name = f"{SEGMENTS}/{file.name}"
            if name > last[place[1]]:
                storage.delete(name)
        for path in storage.scratch().iterdir():
            place = session_of(path.name)
            if place is not None and place[0] == run and place[1] in last:
                path.unlink(missing_ok=True)
