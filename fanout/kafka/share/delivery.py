"""Lend the records of one member: deliver them, and answer for each of them in time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

import numpy as np
import pyarrow as pa
from confluent_kafka import AcknowledgeType

from fanout.core.events import Batch
from fanout.core.positions import Cursor, Range
from fanout.errors import BadRecordError
from fanout.kafka.share.acknowledgements import Acknowledgements
from fanout.kafka.share.acquired import AcquiredRecords, describe
from fanout.kafka.share.decode import decode, rows_of
from fanout.kafka.share.dedup import RepeatedRecords

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from numpy.typing import NDArray

    from fanout.core.events import Split
    from fanout.core.source import Reserve
    from fanout.kafka.share.acknowledgements import Shared
    from fanout.kafka.share.acquired import Expired, Rows
    from fanout.kafka.share.member import Member
    from fanout.kafka.share.record_sets import Piece

__all__ = ("Delivery",)

# Memory that is reserved before a poll. A member keeps it for as long as no records come, so it is
# little: what they take beyond it is reserved when they are there.
_ROOM: Final = 64 * 1024
_UNREADABLE: Final = "a header has a key that is not UTF-8, and the client cannot read any of them"
# The part of a lock that may have passed before its record is delivered: the other half is for
# whoever acknowledges it.
_FRESH: Final = 0.5
_PAUSE: Final = 1.0  # several polls that bring nothing
_NONE: Final = 0  # beside the values of RepeatedRecords, which begin with 1


@final
class Delivery:
    """Deliver what a member gets, poll by poll, and tell the group what became of it.

    A member polls again when every record of its last poll is answered for: acknowledged, given
    back or refused, or when its lock has expired.

    Args:
        split: The member, as a split.
        delivered: How many records it has delivered before.
        member: Its client.
        lapsed: Which of its records were taken back before.
        shared: What it has in common with the others.
    """

    def __init__(
        self, split: Split, delivered: int, member: Member, lapsed: Expired, shared: Shared
    ) -> None:
        self.loan: AcquiredRecords | None = None
        self._split = split
        self._delivered = delivered
        self._member = member
        self._answers = Acknowledgements(member, shared, self.notice)
        self._lapsed = lapsed
        self._shared = shared
        self._decode = shared.options.user_decode
        self._changed = asyncio.Event()

    def notice(self) -> None:
        """Look again at what waits for others."""
        self._changed.set()

    async def batches(self, reserve: Reserve) -> AsyncGenerator[Batch]:
        """Yield what is delivered.

        Raises:
            KafkaException: If the client fails.
            FanOutError: If a record is bad, and that is an error.
        """
        while True:
            await self._answered()
            await reserve(_ROOM)
            while (batch := await self._ask()) is None:
                await self._answered()
            if batch.nbytes > _ROOM:
                await reserve(batch.nbytes - _ROOM)
            yield batch

    def close(self) -> None:
        """Say that the client is closed, which has given back what is open."""
        if self.loan is not None:
            self._lapse(self.loan)

    def accept(self, until: int) -> asyncio.Future[list[Piece]]:
        """Acknowledge what was delivered up to a number, and is locked.

        It is on its way when this returns; the result is what was not acknowledged.
        """
        if self.loan is None:
            nothing: asyncio.Future[list[Piece]] = asyncio.get_running_loop().create_future()
            nothing.set_result([])
            return nothing
        rows = self.loan.between(0, until)
        self._shared.claims.secure(self.loan.pieces(rows))
        return self._answers.send(self.loan, rows, AcknowledgeType.ACCEPT)

    async def release(self, after: int, until: int) -> None:
        """Give back what was delivered from one number to another."""
        if self.loan is not None:
            rows = self.loan.between(after, until)
            self._shared.claims.let_go(self.loan.pieces(rows))
            await self._answers.send(self.loan, rows, AcknowledgeType.RELEASE)

    async def reject(self, numbers: Sequence[int], reason: str) -> list[Piece]:
        """Refuse records by their numbers; return what was not refused."""
        late = self._lapsed.find(numbers)
        if self.loan is None:
            return late
        rows = self.loan.numbered(numbers)
        return late + await self._refuse(self.loan, rows, [reason] * len(rows))

    def pieces(self, until: int) -> list[Piece]:
        """Return what was delivered up to a number, is locked, and is not acknowledged."""
        return [] if self.loan is None else self.loan.pieces(self.loan.between(0, until))

    async def _answered(self) -> None:
        """Wait until every record of the last poll is answered for."""
        while (loan := self.loan) is not None and loan.open:
            self._changed.clear()
            await self._settle_echoes(loan)
            if not loan.open:
                break
            try:
                async with asyncio.timeout_at(loan.deadline):
                    await self._changed.wait()
            except TimeoutError:
                self._shared.tally.expired += loan.open
                await self._take_back()

    async def _ask(self) -> Batch | None:
        """Poll once; None where nothing is to be delivered."""
        shared, loop = self._shared, asyncio.get_running_loop()
        if not self._member.asking:
            await shared.open.wait()
        polled = await self._member.poll()
        if polled is None:
            return None
        self.loan = loan = AcquiredRecords(polled, polled.since + shared.seconds)
        shared.tally.acquired += loan.open
        shared.tally.redelivered += int(np.count_nonzero(loan.deliveries > 1))
        stale = loop.time() > polled.since + _FRESH * shared.seconds
        if stale:
            # Those that lay in the client for too long may be with somebody else by now. Where the
            # whole process stood still, the next member would take them for stale as well, and the
            # one after it, until the broker drops them; not so when it has polled in between.
            await asyncio.sleep(_PAUSE)
            await self._take_back()
            return None
        return await self._lend(loan)

    async def _lend(self, loan: AcquiredRecords) -> Batch | None:
        """Sort out what is not delivered, and make a batch of the rest."""
        rows = await self._fresh(loan)
        # At once: what is awaited below may take longer than a lock.
        self._shared.claims.hold(loan.pieces(rows))
        if len(loan.unreadable) and len(unreadable := np.intersect1d(rows, loan.unreadable)):
            await self._judge_bad(loan, unreadable, [_UNREADABLE] * len(unreadable))
            rows = np.setdiff1d(rows, unreadable)
        most, deliveries = self._shared.options.max_deliveries, loan.deliveries
        if most is not None and len(often := rows[deliveries[rows] > most]):
            counts = deliveries[often].tolist()
            reasons = [f"delivered {count} times, max_deliveries={most}" for count in counts]
            await self._judge_bad(loan, often, reasons)
            rows = rows[deliveries[rows] <= most]
        records, rows = await self._decoded(loan, rows)
        loan.number(rows, self._delivered)
        position, self._delivered = self._delivered, self._delivered + len(rows)
        await self._settle_echoes(loan)
        if not len(rows):
            return None
        return Batch(self._split, records, Range(Cursor(position), Cursor(self._delivered)))

    async def _fresh(self, loan: AcquiredRecords) -> Rows:
        """Return the rows that the stream does not have already."""
        if not self._echoes(loan, loan.all_rows).any():
            return loan.all_rows
        # A topic that was created again has other records at the same offsets.
        self._shared.claims.forget_topics(await self._shared.topics.ask())
        fresh = self._echoes(loan, loan.all_rows) == _NONE
        self._shared.tally.repeated += int(np.count_nonzero(~fresh))
        return np.flatnonzero(fresh)

    def _echoes(self, loan: AcquiredRecords, rows: Rows) -> NDArray[np.int8]:
        """Return for each row of a poll whether it is an echo, and of what; of some rows alone."""
        echoes = np.full(len(loan.all_rows), _NONE, np.int8)
        for piece in loan.pieces(rows):
            for begin, end, echo in self._shared.claims.echoes(piece):
                echoes[loan.at(piece[0], begin, end)] = echo.value
        return echoes

    async def _decoded(self, loan: AcquiredRecords, rows: Rows) -> tuple[pa.RecordBatch, Rows]:
        """Apply the user's own step, where there is one, and accept what it leaves out."""
        if self._decode is None or not len(rows):
            return rows_of(loan.records, rows), rows
        sort_out = self._shared.options.on_bad_record == "dead_letter"
        decoded = decode(self._decode, loan, rows, sort_out=sort_out)
        if decoded.bad:
            await self._refuse(loan, np.array([*decoded.bad]), [*decoded.bad.values()])
        kept = np.concatenate([np.empty(0, np.int64), *decoded.rows])
        left_out = np.setdiff1d(rows, np.concatenate([kept, [*decoded.bad]]).astype(np.int64))
        await self._answers.send(loan, left_out, AcknowledgeType.ACCEPT)
        whole = pa.Table.from_batches(decoded.batches, self._decode.schema).combine_chunks()
        return (whole.to_batches() or [self._decode.no_records])[0], kept

    async def _judge_bad(self, loan: AcquiredRecords, rows: Rows, reasons: list[str]) -> None:
        if self._shared.options.on_bad_record == "dead_letter":
            await self._refuse(loan, rows, reasons)
            return
        raise BadRecordError(
            f"{', '.join(describe(loan.pieces(rows)))}: {reasons[0]}; say "
            f"on_bad_record='dead_letter' to go on without such records"
        )

    async def _settle_echoes(self, loan: AcquiredRecords) -> None:
        """Accept the echoes of what is safe, and give back those that nobody has any more."""
        rows = loan.unnumbered
        if not len(rows):
            return
        echoes = self._echoes(loan, rows)[rows]
        accepted, free = rows[echoes == RepeatedRecords.ACCEPT.value], rows[echoes == _NONE]
        await self._answers.send(loan, accepted, AcknowledgeType.ACCEPT)
        await self._answers.send(loan, free, AcknowledgeType.RELEASE)

    async def _refuse(self, loan: AcquiredRecords, rows: Rows, reasons: list[str]) -> list[Piece]:
        """Refuse rows, after they were written to where bad records go."""
        if not len(rows):
            return []
        if self._shared.letters is not None:
            await self._shared.letters.write(rows_of(loan.records, rows), reasons)
        return await self._answers.send(loan, rows, AcknowledgeType.REJECT)

    async def _take_back(self) -> None:
        """Give back whatever is open of the last poll."""
        loan = self.loan
        assert loan is not None
        rows = loan.open_rows
        self._lapse(loan)
        await self._answers.send(loan, rows, AcknowledgeType.RELEASE)

    def _lapse(self, loan: AcquiredRecords) -> None:
        """Note what was delivered and cannot be acknowledged any more.

        Whoever makes records safe goes on doing so with these; for everybody else they come again.
        """
        rows = loan.between(0, self._delivered)
        if not len(rows):
            return
        loan.lapse(rows)
        self._lapsed.add(loan)
        if not self._shared.claims.deduplicates:
            self._shared.claims.let_go(loan.pieces(rows))
