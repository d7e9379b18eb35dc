"""Tell a group what became of records, and count whether it took the answer."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, final

from confluent_kafka import AcknowledgeType

from fanout.kafka.share.record_sets import count_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.kafka.share.client import Member, Refused
    from fanout.kafka.share.loan import Loan, Rows
    from fanout.kafka.share.record_sets import Piece
    from fanout.kafka.share.tally import Shared

__all__ = ("Answers",)

log = logging.getLogger(__name__)


@final
class Answers:
    """Send the answers of one member.

    Args:
        member: Its client.
        shared: What it has in common with the others.
        notify: Called when an answer is sent, and when it is answered.
    """

    def __init__(self, member: Member, shared: Shared, notify: Callable[[], None]) -> None:
        self._member = member
        self._shared = shared
        self._notify = notify

    def send(self, loan: Loan, rows: Rows, answer: AcknowledgeType) -> asyncio.Future[list[Piece]]:
        """Answer for rows; return those for which the broker did not take the answer.

        The answer is sent and counted whether or not anybody goes on waiting for it.
        """
        done: asyncio.Future[list[Piece]] = asyncio.get_running_loop().create_future()
        failed: list[Piece] = []
        if not len(rows):
            done.set_result(failed)
            return done
        pieces = loan.pieces(rows)
        loan.close(rows)

        def count(told: asyncio.Future[Refused]) -> None:
            refused = told.result()
            for partition, why in refused.items():
                log.warning("%s was not taken for %s: %s", answer.name, partition, why)
            failed.extend(piece for piece in pieces if piece[0] in refused)
            self._count_failed(failed, answer)
            self._count([piece for piece in pieces if piece[0] not in refused], answer)
            self._notify()
            if not done.cancelled():
                done.set_result(failed)

        self._notify()  # first, so that a poll may take the answer along
        self._member.answer(pieces, answer).add_done_callback(count)
        return done

    def _count(self, pieces: list[Piece], answer: AcknowledgeType) -> None:
        tally, claims = self._shared.tally, self._shared.claims
        records = count_records(pieces)
        match answer:
            case AcknowledgeType.ACCEPT:
                tally.accepted += records
                claims.settle(pieces, asyncio.get_running_loop().time())
            case AcknowledgeType.REJECT:
                tally.rejected += records
                claims.let_go(pieces)
            case _:
                tally.released += records

    def _count_failed(self, pieces: list[Piece], answer: AcknowledgeType) -> None:
        claims = self._shared.claims
        # What the broker does not take back is free already, or soon will be.
        if answer is AcknowledgeType.RELEASE and claims.deduplicates:
            return  # what was delivered is on its way to where it is safe
        claims.let_go(pieces)
        if answer is not AcknowledgeType.RELEASE:
            self._shared.tally.expired += count_records(pieces)
