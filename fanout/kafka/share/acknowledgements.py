"""Tell a group what became of records, and count whether it took the answer."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from confluent_kafka import AcknowledgeType

from fanout.kafka.share.record_sets import count_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.kafka.share.acquired import AcquiredRecords, Rows
    from fanout.kafka.share.dead_letters import DeadLetters
    from fanout.kafka.share.dedup import Dedup
    from fanout.kafka.share.member import Member, Refused
    from fanout.kafka.share.options import ShareOptions
    from fanout.kafka.share.record_sets import Piece
    from fanout.kafka.share.topic_ids import TopicIds

__all__ = (
    "Acknowledgements",
    "MemberCounts",
    "Shared",
)


log = logging.getLogger(__name__)


@final
class Acknowledgements:
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

    def send(
        self, loan: AcquiredRecords, rows: Rows, answer: AcknowledgeType
    ) -> asyncio.Future[list[Piece]]:
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


@final
@dataclass(slots=True)
class MemberCounts:
    """Counters; see `LendingStatistics`."""

    acquired: int = 0
    redelivered: int = 0
    repeated: int = 0
    accepted: int = 0
    released: int = 0
    rejected: int = 0
    expired: int = 0


@final
@dataclass(slots=True)
class Shared:
    """What the members of one stream have in common.

    Args:
        options: What the user asked for.
        seconds: How long a lock lasts.
        topics: The ids of the topics.
        claims: Which records the stream has.
        letters: Where bad records go; None for nowhere.
        tally: The counters.
        open: Whether records are asked for.
    """

    options: ShareOptions
    seconds: float
    topics: TopicIds
    claims: Dedup
    letters: DeadLetters | None
    tally: MemberCounts = field(default_factory=MemberCounts)
    open: asyncio.Event = field(default_factory=asyncio.Event)
