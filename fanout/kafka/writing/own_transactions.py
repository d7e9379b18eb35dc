"""Transactions that one writer begins, fills and ends, one after the other."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, final

from fanout.core.error_text import text_of
from fanout.core.positions import reaches
from fanout.core.statistics import TransactionStatistics
from fanout.errors import (
    BatchNotWrittenError,
    FanOutError,
    FencedError,
    SplitLostError,
    StreamStateError,
)
from fanout.kafka.group.calls import GroupOffsets
from fanout.kafka.reading.commits import STORED_AGAIN
from fanout.kafka.reading.offsets import next_offset
from fanout.kafka.transactions.calls import MemberRefusedError
from fanout.kafka.transactions.outcome import TransactionOutcome
from fanout.kafka.writing.policy import FORGOTTEN

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import pyarrow as pa

    from fanout.core.positions import Cursor
    from fanout.kafka.group.transactional import MemberPositions
    from fanout.kafka.partitions import Partition
    from fanout.kafka.transactions.transactions import Transactions
    from fanout.kafka.writing.delivery import Delivery
    from fanout.kafka.writing.producer_id import Transactional
    from fanout.kafka.writing.writer import KafkaWriter

log = logging.getLogger(__name__)

# Seconds that leaving a writer waits for records that are under way, and for the abort.
_CLOSING_TIMEOUT: Final = 5.0


@final
class OwnTransactions:
    """Write in transactions that nobody else writes in.

    The offsets of a consumer group may be part of a transaction. The group has the name of the
    transactional id. Brokers abort a transaction after `timeout` seconds.
    """

    def __init__(
        self,
        writer: KafkaWriter,
        transactions: Transactions,
        joined: Transactional,
        *,
        timeout: float,
    ) -> None:
        self._writer = writer
        self._transactions = transactions
        self._joined = joined
        self._timeout = timeout
        self._open = False
        self._torn = False
        # From here on a commit may be done, so that nothing may be added to the transaction.
        self._ending = False
        self._stored: dict[Partition, Cursor] = {}
        # What was stored when the writer began; None while that is not known.
        self._before: Mapping[Partition, Cursor] | None = None
        # What a commit that was cancelled was to store, and maybe has.
        self._wanted: dict[Partition, Cursor] = {}
        self._store_again_at = 0.0
        # The offsets that are being added to the open transaction, or were.
        self._new: GroupOffsets | None = None
        self._delivered: MemberPositions | None = None  # whose they are
        # Why the open transaction has to be aborted, and whose records come again then.
        self._lost: tuple[MemberPositions, SplitLostError] | None = None
        self._begun = self._committed = self._aborted = 0

    def statistics(self) -> TransactionStatistics:
        """Return how many transactions were begun and ended."""
        return TransactionStatistics(self._begun, self._committed, self._aborted)

    async def positions(self) -> Mapping[Partition, Cursor]:
        """Return the positions of the last committed transaction that had any.

        StreamStateError is raised if a transaction is open, whose offsets are not known to be
        valid.
        """
        if self._ending:
            await self._end()
        if self._open:
            raise StreamStateError(
                "a transaction is open, so that its records would be read again: commit or abort it"
            )
        self._before = await self._transactions.stored_positions(self._joined.transactional_id)
        # Brokers show the first offset of a partition a moment after the commit that stored it.
        return {**self._before, **self._stored}

    async def write(self, rows: pa.RecordBatch, delivery: Delivery) -> None:
        """Write rows, in a transaction that begins with the first of them."""
        if self._ending:
            await self._end()
        await self._undo()
        before = self._writer.queued
        try:
            await self._writer.write(rows, delivery)
        except asyncio.CancelledError:
            self._torn = self._torn or self._writer.queued > before
            raise
        finally:
            if self._writer.queued > before:
                self._begin()

    async def commit(
        self, positions: Mapping[Partition, Cursor], *, anew: Collection[Partition] = ()
    ) -> None:
        """Commit the rows since the last commit, and the offsets behind positions with them.

        Offsets that are stored already are stored again now and then: brokers forget each of them
        a time after its own last commit. Where it is cancelled, the rows may be committed; another
        call finishes the commit. Only partitions that have begun `anew` may go back.

        Raises:
            StreamStateError: If a write was cancelled in the middle, or positions are before what
                is stored.
            FencedError: If a newer writer has taken over.
            BatchNotWrittenError: If brokers have aborted the transaction.
            FanOutError: As `KafkaWriter.flush` and `Transactions.end`.
        """
        await self._check()
        if self._delivered is not None:
            await self.commit_delivered(self._delivered)
        await self._check_order({p: at for p, at in positions.items() if p not in anew})
        again = asyncio.get_running_loop().time() >= self._store_again_at
        known = self._stored | self._wanted | dict(positions)
        new = {p: at for p, at in known.items() if again or not self._has(p, at)}
        if not self._open and not new:
            return
        self._wanted = new
        await self._writer.flush()
        if new:
            self._begin()
            self._new = GroupOffsets.behind(new, self._joined.transactional_id, {})
            await self._store(self._new)
        self._ending = True
        await self._end()

    async def commit_delivered(self, positions: MemberPositions) -> None:
        """Commit the rows since the last commit, and what a member of a group has delivered.

        Raises:
            SplitLostError: If one of its partitions went to another member; the transaction is
                aborted.
            FanOutError: As `commit`.
        """
        await self._check()
        try:
            claim = await positions.claim()
            if not self._open and not claim.positions:
                return
            self._delivered = positions
            await self._writer.flush()
            self._begin()
            if claim.positions:
                await self._store_delivered(positions)
        except SplitLostError as error:
            self._lost = positions, error
            await self._undo()
        self._ending = True
        await self._end()

    async def _undo(self) -> None:
        """Abort the transaction of which a part was lost, and raise why."""
        if self._lost is not None:
            positions, error = self._lost
            await self.abort()
            self._lost = None
            await positions.aborted()
            raise error

    async def _store_delivered(self, positions: MemberPositions) -> None:
        """Add to the open transaction what a member has delivered, by its newest epoch."""
        while True:
            self._new, self._delivered = await positions.claim(), positions
            try:
                return await self._store(self._new)
            except MemberRefusedError:
                await positions.refused(self._new)

    async def _check(self) -> None:
        if self._ending:
            await self._end()
        await self._undo()
        if self._torn:
            raise StreamStateError(
                "a write was cancelled in the middle, so that a part of its records may be in the "
                "transaction: abort it, or leave the block of the writer"
            )

    async def _check_order(self, positions: Mapping[Partition, Cursor]) -> None:
        """Refuse positions before those that are stored: their records would be read again."""
        name = self._joined.transactional_id
        if positions and self._before is None:
            self._before = await self._transactions.stored_positions(name)
        stored = {**(self._before or {}), **self._stored, **self._wanted}
        for partition, position in sorted(positions.items()):
            if partition in stored and not reaches(position, stored[partition]):
                raise StreamStateError(
                    f"{name} has committed {partition} up to offset "
                    f"{next_offset(stored[partition])}, and these positions are at offset "
                    f"{next_offset(position)}, so that its records would be written twice: commit "
                    f"what is drained in its order, and open the stream with "
                    f"resume=await writer.positions(source); to write all of it again, use another "
                    f"transactional_id"
                )

    def _has(self, partition: Partition, position: Cursor) -> bool:
        """Return whether a position is stored, with the same state: another topic has another."""
        stored = self._stored.get(partition)
        return stored is not None and (stored, stored.state) == (position, position.state)

    async def abort(self) -> None:
        """Abort the open transaction, if there is one."""
        if self._ending:
            await self._end()
        if not self._open:
            self._wanted, self._delivered = {}, None
            return
        # Rows that are under way would begin another transaction if they arrived after the abort.
        await self._writer.flush()
        await self._abort()

    async def close(self, calls: asyncio.Lock) -> None:
        """Abort the open transaction, so that readers do not wait for it; for a few seconds.

        The call that holds the lock of all calls ends before, as it may add to the transaction.
        """
        try:
            async with asyncio.timeout(_CLOSING_TIMEOUT), calls:
                if not self._open or self._ending:
                    return
                log.warning(
                    "records of %s were written and not committed, and are aborted",
                    self._joined.transactional_id,
                )
                try:
                    await self._writer.flush()
                except FanOutError:
                    log.debug("nothing more of the transaction is sent", exc_info=True)
                await self._abort()
        except (TimeoutError, FanOutError) as error:
            log.warning("a transaction could not be aborted: %s", text_of(error))

    def _begin(self) -> None:
        self._begun += not self._open
        self._open = True

    async def _store(self, offsets: GroupOffsets) -> None:
        """Add offsets to the open transaction."""
        joined = self._joined
        await self._transactions.store_offsets(joined.transactional_id, joined.incarnation, offsets)

    async def _abort(self) -> None:
        if self._new is not None:
            # A cancelled call may still be under way. It would begin another transaction if it
            # arrived after the abort; it arrives before this one.
            with suppress(MemberRefusedError):
                await self._store(self._new)
        await self._transactions.abort(self._joined.transactional_id, self._joined.incarnation)
        self._aborted += 1
        self._open, self._torn, self._new, self._delivered = False, False, None, None
        self._wanted = {}
        self._writer.next_transaction()

    async def _end(self) -> None:
        name = self._joined.transactional_id
        outcome = await self._transactions.end(
            name, self._joined.incarnation, patience=self._timeout
        )
        if outcome is not TransactionOutcome.COMMITTED:
            self._aborted += self._open
            self._open = False
        match outcome:
            case TransactionOutcome.COMMITTED:
                self._committed += 1
                if self._new is not None:
                    self._take_in(self._new)
                self._open, self._ending, self._new, self._delivered = False, False, None, None
                self._wanted = {}
                self._writer.next_transaction()
            case TransactionOutcome.FENCED:
                raise FencedError(
                    f"a newer writer has taken over {name}; what was not committed is aborted"
                )
            case TransactionOutcome.FORGOTTEN:
                raise BatchNotWrittenError(f"{name}: {FORGOTTEN}")
            case TransactionOutcome.ABORTED:
                raise BatchNotWrittenError(
                    f"another process has aborted the transaction of {name}, so none of it is "
                    "seen: open the writer again, and write what follows the last commit"
                )
            case _:
                raise BatchNotWrittenError(
                    f"the transaction was {outcome.value} before it was committed, so none of it "
                    f"is seen: commit within {self._timeout:g} s, or raise transaction_timeout"
                )

    def _take_in(self, new: GroupOffsets) -> None:
        """Take in offsets that are stored."""
        if self._delivered is not None:
            self._delivered.stored(new)
            return
        self._stored |= new.positions
        if new.offsets.keys() == self._stored.keys():
            self._store_again_at = asyncio.get_running_loop().time() + STORED_AGAIN
