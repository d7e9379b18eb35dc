"""Acknowledge records to the service, and count which acknowledgements it confirmed."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, final

from fanout.core.error_text import text_of
from fanout.core.lending.seam import P, Settlement
from fanout.core.limits import WINDOW, LogLimit

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping

    from fanout.core.backoff import FullJitter
    from fanout.core.lending.acquired import AcquiredRecords
    from fanout.core.lending.dedup import Dedup
    from fanout.core.lending.naming import Naming
    from fanout.core.lending.seam import DeadLetterWriter, LendingMember, LendingOptions, Rows

log = logging.getLogger(__name__)


@final
@dataclass(slots=True)
class MemberCounts:
    """Counts of records, of all members together; see `LendingStatistics`."""

    acquired: int = 0
    redelivered: int = 0
    repeated: int = 0
    accepted: int = 0
    released: int = 0
    rejected: int = 0
    expired: int = 0
    refused: int = 0
    last_deliveries: int = 0
    dead_letters: int = 0


LAST: Final = "last deliveries"
"""The kind of the lines about records that come for the last time."""


def _summarize(kind: str, left_out: Counter[str]) -> None:
    what = f"acknowledgements ({kind}) were not confirmed"
    if kind == LAST:
        what = "polls brought records for the last time"
    log.warning("%d more %s within %.0f s", left_out.total(), what, WINDOW)


@final
@dataclass(slots=True)
class SharedState(Generic[P]):
    """The state that all members of one stream share.

    After `most` deliveries the service drops a record that is not accepted; None where it keeps
    such a record. `fetching` is set while members may fetch records, and `consumer_waits` while the
    consumer waits for some; `log_limit` bounds the lines about acknowledgements that are not
    confirmed, and about last deliveries.
    """

    options: LendingOptions
    lock_seconds: float
    naming: Naming[P]
    dedup: Dedup[P]
    dead_letters: DeadLetterWriter | None
    jitter: FullJitter
    most: int | None = None
    counts: MemberCounts = field(default_factory=MemberCounts)
    fetching: asyncio.Event = field(default_factory=asyncio.Event)
    consumer_waits: asyncio.Event = field(default_factory=asyncio.Event)
    log_limit: LogLimit = field(default_factory=lambda: LogLimit(_summarize))


@final
class Acknowledgements(Generic[P]):
    """Send the acknowledgements of one member; `notify` hears of each, and of its response."""

    def __init__(
        self, member: LendingMember[P], shared: SharedState[P], notify: Callable[[], None]
    ) -> None:
        self._member = member
        self._shared = shared
        self._notify = notify
        self.unanswered = 0

    def send(
        self,
        acquired: AcquiredRecords[P],
        rows: Rows,
        kind: Settlement,
        *,
        counted: bool = False,
    ) -> asyncio.Future[list[P]]:
        """Acknowledge rows; return those whose acknowledgement the service did not confirm.

        The acknowledgement is sent and counted even if the future is cancelled or dropped.
        `counted` rows are released ones that have been counted as expired.
        """
        done: asyncio.Future[list[P]] = asyncio.get_running_loop().create_future()
        failed: list[P] = []
        if not len(rows):
            done.set_result(failed)
            return done
        pieces, naming = acquired.pieces(rows), self._shared.naming
        acquired.mark_done(rows)

        def count(response: asyncio.Future[Mapping[Any, Exception]]) -> None:
            errors = response.result()
            self.unanswered -= 1
            if errors and self._shared.log_limit.admits(kind.name, ""):
                first, error = next(iter(errors.items()))
                log.warning(
                    "%s was not confirmed for %d %s, the first is %s: %s",
                    kind.name,
                    len(errors),
                    naming.owners,
                    first,
                    text_of(error),
                )
            failed.extend(piece for piece in pieces if naming.owner(piece) in errors)
            self._count_failed(failed, kind)
            if not counted:
                confirmed = [piece for piece in pieces if naming.owner(piece) not in errors]
                self._count(confirmed, kind)
            self._notify()
            if not done.cancelled():
                done.set_result(failed)

        self.unanswered += 1
        self._notify()  # first, so that the next poll can carry the acknowledgement
        self._member.acknowledge(pieces, kind).add_done_callback(count)
        return done

    def _count(self, pieces: list[P], kind: Settlement) -> None:
        counts, dedup = self._shared.counts, self._shared.dedup
        records = self._shared.naming.count(pieces)
        match kind:
            case Settlement.ACCEPT:
                counts.accepted += records
                dedup.mark_confirmed(pieces, asyncio.get_running_loop().time())
            case Settlement.REJECT:
                counts.rejected += records
                dedup.forget_delivered(pieces)
            case _:
                counts.released += records

    def _count_failed(self, pieces: list[P], kind: Settlement) -> None:
        dedup = self._shared.dedup
        # A record that could not be released is available already, or will be soon.
        if kind is Settlement.RELEASE and dedup.enabled:
            return  # a delivered record is still going to be stored
        dedup.forget_delivered(pieces)
        if kind is not Settlement.RELEASE:
            records = self._shared.naming.count(pieces)
            self._shared.counts.expired += records
            self._shared.counts.refused += records
