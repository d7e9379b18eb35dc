"""A stream's hold on the records of a share group, all members together."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, final

from fanout.core.positions import Cursor
from fanout.core.statistics import LendingStatistics
from fanout.errors import AcknowledgementError
from fanout.kafka.share.acquired import Expired, describe
from fanout.kafka.share.unconfirmed import read_unconfirmed, write_unconfirmed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.core.positions import Position, Range
    from fanout.kafka.partitions import Partition
    from fanout.kafka.share.acknowledgements import Shared
    from fanout.kafka.share.delivery import Delivery
    from fanout.kafka.share.groups import Beginning
    from fanout.kafka.share.record_sets import Piece

__all__ = ("GroupLending", "number_of")

# A record is delivered while the other half of its lock is left at the least.
_PART: Final = 0.5


def number_of(position: Position) -> int:
    """Return how many records of a member were delivered up to a position."""
    return position.sequence if isinstance(position, Cursor) else 0


@final
class GroupLending:
    """Acknowledge, release and reject; see `Lending`, `Settlement`, `Spooling` of the core.

    Args:
        source: The identity of the source.
        shared: What the members have in common.
    """

    def __init__(self, source: str, shared: Shared) -> None:
        self._source = source
        self._shared = shared
        self._clock = asyncio.get_running_loop().time
        self._lenders: dict[str, Delivery] = {}
        self._lapsed: dict[str, Expired] = {}
        self._starts: dict[Partition, int] = {}
        shared.open.set()

    def lapsed(self, split_id: str) -> Expired:
        """Return which records of a member were taken back, in all its subscriptions."""
        return self._lapsed.setdefault(split_id, Expired())

    def begin(self, split_id: str, lender: Delivery) -> None:
        """Go by this lender from now on."""
        self._lenders[split_id] = lender

    def end(self, split_id: str) -> None:
        """Note that a member's subscription has ended."""
        if (lender := self._lenders.pop(split_id, None)) is not None:
            lender.close()
            self._notify()

    @property
    def seconds(self) -> float:
        """Half of the time that a lock lasts."""
        return _PART * self._shared.seconds

    @property
    def statistics(self) -> LendingStatistics:
        """Say what became of the records that were lent so far; from any thread."""
        loans = [lender.loan for lender in list(self._lenders.values())]
        open_ = [loan for loan in loans if loan is not None and loan.open]
        deadline = min((loan.deadline for loan in open_), default=None)
        now = self._clock()
        return LendingStatistics(
            **asdict(self._shared.tally),
            pending_records=sum(loan.open for loan in open_),
            pending_bytes=sum(loan.records.nbytes for loan in open_),
            oldest=None if deadline is None else now - deadline + self._shared.seconds,
            unconfirmed=len(self._shared.claims.doubts),
        )

    def pause(self) -> None:
        """Ask for no more records; what a fetch brings that is under way already is delivered.

        To give it back would cost it a delivery for each member that had asked before, and a record
        that was delivered too often is dropped by the broker.
        """
        self._shared.open.clear()

    def resume(self) -> None:
        """Ask for records again."""
        self._shared.open.set()

    async def acknowledge(self, positions: Mapping[str, Position]) -> None:
        """Accept what was delivered up to these positions.

        Raises:
            AcknowledgementError: If the group did not take the acknowledgement of some records.
        """
        failed: list[Piece] = []
        answers: list[asyncio.Future[list[Piece]]] = []
        # Everything is on its way before anything is waited for: whoever is cancelled here has
        # acknowledged.
        for id_, position in positions.items():
            late = self.lapsed(id_).take(number_of(position))
            self._shared.claims.secure(late)
            failed += late
            if id_ in self._lenders:
                answers.append(self._lenders[id_].accept(number_of(position)))
        self._notify()
        for answer in answers:
            failed += await answer
        _check(failed, "acknowledged")

    async def release(self, split_id: str, piece: Range) -> None:
        """Give back a piece of what a member delivered."""
        after, until = number_of(piece.after), number_of(piece.until)
        self._shared.claims.let_go(self.lapsed(split_id).find(range(after + 1, until + 1)))
        if split_id in self._lenders:
            await self._lenders[split_id].release(after, until)

    async def reject(self, split_id: str, piece: Range, rows: Sequence[int], reason: str) -> None:
        """Refuse rows of a piece, after they were written to where bad records go.

        Raises:
            AcknowledgementError: If the group did not take the refusal of some of them.
            ServiceError: If they cannot be written there.
        """
        numbers = [number_of(piece.after) + 1 + row for row in rows]
        if split_id in self._lenders:
            late = await self._lenders[split_id].reject(numbers, reason)
        else:
            late = self.lapsed(split_id).find(numbers)
        _check(late, "rejected")

    def unconfirmed(self, positions: Mapping[str, Position]) -> str:
        """Name the records up to these positions that the group may deliver again."""
        claims = self._shared.claims
        for id_, position in positions.items():
            until = number_of(position)
            claims.doubt(self.lapsed(id_).look(until))
            if id_ in self._lenders:
                claims.doubt(self._lenders[id_].pieces(until))
        return write_unconfirmed(self._source, claims.doubts, self._shared.topics.known)

    def remember(self, unconfirmed: str) -> None:
        """Take in what an earlier run has stored, and deliver nothing twice from now on.

        Raises:
            PositionError: If it is damaged, of another version, or of another source.
        """
        claims = self._shared.claims
        pieces = read_unconfirmed(unconfirmed, self._source, self._shared.topics.known)
        claims.doubt(pieces)
        claims.secure(pieces)
        claims.forget_below(self._starts)

    def learn(self, beginnings: Mapping[Partition, Beginning]) -> None:
        """Forget unconfirmed records that cannot come again, because the group begins behind it."""
        ids = self._shared.topics.known
        self._starts = {
            partition: at.offset
            for partition, at in beginnings.items()
            if at.offset is not None and at.topic_id == ids.get(partition.topic)
        }
        self._shared.claims.forget_below(self._starts)

    def _notify(self) -> None:
        for lender in self._lenders.values():
            lender.notice()


def _check(pieces: list[Piece], what: str) -> None:
    if pieces:
        records = describe(pieces)
        raise AcknowledgementError(
            f"these records were {what} too late, after their locks had expired, or without the "
            f"broker's word, and may come again to anybody: {', '.join(records)}",
            records,
        )
