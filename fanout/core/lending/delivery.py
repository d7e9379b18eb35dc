"""Deliver the records of one member, and acknowledge, release or reject each of them."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, Final, Generic, final

import numpy as np
import pyarrow as pa

from fanout.core.backoff import until_ready
from fanout.core.events import Batch
from fanout.core.lending.acknowledgements import LAST, Acknowledgements
from fanout.core.lending.acquired import AcquiredRecords, acknowledge_within
from fanout.core.lending.decode import decode, take_rows
from fanout.core.lending.dedup import DuplicateAction
from fanout.core.lending.seam import P, Settlement
from fanout.core.positions import Cursor, Range
from fanout.core.sentence import Suggestion
from fanout.errors import BadRecordError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from numpy.typing import NDArray

    from fanout.core.events import Split
    from fanout.core.lending.acknowledgements import SharedState
    from fanout.core.lending.acquired import ExpiredRecords
    from fanout.core.lending.decode import DecodedRows
    from fanout.core.lending.seam import LendingMember, Rows
    from fanout.core.source import Reserve
    from fanout.core.user_decode import UserDecode
    from fanout.errors import RetryLaterError

log = logging.getLogger(__name__)

# Bytes that are reserved before a poll. A member holds them while no records come, so they are few;
# larger polls reserve the rest when they are there.
_RESERVED: Final = 64 * 1024
_STALE_PAUSE: Final = 1.0  # seconds; several polls that bring nothing
_NEW: Final = 0  # beside the values of DuplicateAction, which begin with 1


@final
class MemberDelivery(Generic[P]):
    """Deliver the records of a member, poll by poll.

    A member polls again when every record of its last poll is acknowledged, released or rejected,
    or its lock has expired. It has `delivered` so many records before; `expired` are those of them
    whose locks expired.
    """

    def __init__(
        self,
        split: Split,
        delivered: int,
        member: LendingMember[P],
        expired: ExpiredRecords[P],
        shared: SharedState[P],
    ) -> None:
        self.acquired: AcquiredRecords[P] | None = None
        self._split = split
        self._delivered = delivered
        self._member = member
        self._acknowledgements = Acknowledgements(member, shared, self.notify)
        self._expired = expired
        self._shared = shared
        self._decode = shared.options.user_decode
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Look again at what is waited for."""
        self._changed.set()

    async def batches(self, reserve: Reserve) -> AsyncGenerator[Batch]:
        """Yield the member's batches; a bad record raises where `on_bad_record` is `"fail"`."""
        while True:
            await self._last_poll_done()
            await self._answered()
            await reserve(_RESERVED)
            while (batch := await self._poll()) is None:
                await self._last_poll_done()
            if batch.nbytes > _RESERVED:
                await reserve(batch.nbytes - _RESERVED)
            yield batch

    def close(self) -> None:
        """Note that the client is closed, which has released the pending records."""
        if self.acquired is not None:
            self._mark_expired(self.acquired)

    def accept(self, until: int) -> asyncio.Future[list[P]]:
        """Accept the pending records up to a delivery number.

        The acknowledgement is under way when this returns; the result is what was not confirmed.
        """
        if self.acquired is None:
            nothing: asyncio.Future[list[P]] = asyncio.get_running_loop().create_future()
            nothing.set_result([])
            return nothing
        rows = self.acquired.delivered_between(0, until)
        self._shared.dedup.mark_stored(self.acquired.pieces(rows))
        return self._acknowledgements.send(self.acquired, rows, Settlement.ACCEPT)

    async def release(self, after: int, until: int) -> None:
        """Release the pending records with delivery numbers above `after` and up to `until`."""
        if self.acquired is not None:
            rows = self.acquired.delivered_between(after, until)
            self._shared.dedup.forget_delivered(self.acquired.pieces(rows))
            await self._acknowledgements.send(self.acquired, rows, Settlement.RELEASE)

    def keeps(self, after: int, until: int) -> bool:
        """Release records whose locks have too little left; return whether they have enough."""
        acquired, now = self.acquired, asyncio.get_running_loop().time()
        if acquired is None or now <= self._latest_delivery(acquired):
            return True
        rows = acquired.delivered_between(after, until)
        if not len(rows):
            return True
        expired = now >= acquired.lock_deadline
        if expired:
            self._shared.counts.expired += len(rows)
        self._shared.dedup.forget_delivered(acquired.pieces(rows))
        self._acknowledgements.send(acquired, rows, Settlement.RELEASE, counted=expired)
        return False

    def _latest_delivery(self, acquired: AcquiredRecords[P]) -> float:
        """Return until when records may be delivered, so that the rest of their locks is left.

        A last delivery is never too late: what is released then is dropped by the service.
        """
        if len(acquired.last):
            return math.inf
        return acquired.lock_deadline - acknowledge_within(self._shared.lock_seconds)

    async def reject(self, numbers: Sequence[int], reason: str) -> list[P]:
        """Reject records by their delivery numbers; return those that were not rejected."""
        late = self._expired.take(numbers)
        if self.acquired is None:
            return late
        rows = self.acquired.delivered_as(numbers)
        return late + await self._reject(self.acquired, rows, [reason] * len(rows))

    def pending_pieces(self, until: int) -> list[P]:
        """Return the pending records up to a delivery number."""
        if self.acquired is None:
            return []
        return self.acquired.pieces(self.acquired.delivered_between(0, until))

    async def _last_poll_done(self) -> None:
        """Wait until no record of the last poll is pending; release them when a lock expires."""
        while (acquired := self.acquired) is not None and acquired.pending:
            self._changed.clear()
            await self._settle_duplicates(acquired)
            if not acquired.pending:
                break
            try:
                async with asyncio.timeout_at(acquired.lock_deadline):
                    await self._changed.wait()
            except TimeoutError:
                if asyncio.get_running_loop().time() < acquired.lock_deadline:
                    continue  # the locks were extended meanwhile
                self._shared.counts.expired += acquired.pending
                await self._release_pending(expired=True)
                if not self._shared.dedup.enabled:
                    # Each poll counts as a delivery, and the broker drops what was delivered too
                    # often: who works on these records still lets the next locks expire, too.
                    await self._shared.consumer_waits.wait()

    async def _answered(self) -> None:
        """Wait for the answers to acknowledgements, unless the consumer waits for records.

        A consumer that waits for an answer would let the locks of these records pass meanwhile.
        """
        while self._acknowledgements.unanswered and not self._member.polls_ahead:
            if self._shared.consumer_waits.is_set():
                break
            self._changed.clear()
            await self._changed.wait()

    async def _poll(self) -> Batch | None:
        """Poll once; return None if there is nothing to deliver."""
        shared, loop = self._shared, asyncio.get_running_loop()
        if not self._member.fetching:
            await shared.fetching.wait()
        polled = await self._member.poll()
        if polled is None:
            return None
        self.acquired = acquired = AcquiredRecords(polled, shared.lock_seconds, shared.most)
        shared.counts.acquired += acquired.pending
        shared.counts.redelivered += int(np.count_nonzero(acquired.delivery_counts > 1))
        self._count_last(acquired)
        if loop.time() > self._latest_delivery(acquired):
            # Another member may have these records by now. If the whole process was stopped, the
            # next member would find them stale as well, and so on, until the broker drops them.
            # The pause lets that member poll in between, so that its records are not stale.
            await asyncio.sleep(_STALE_PAUSE)
            await self._release_pending()
            return None
        return await self._deliver(acquired)

    def _count_last(self, acquired: AcquiredRecords[P]) -> None:
        last, shared = acquired.last, self._shared
        shared.counts.last_deliveries += len(last)
        if len(last) and shared.log_limit.admits(LAST, ""):
            log.warning(
                "%s gets %d records for the last time, beginning with %s: after %s deliveries the "
                "service drops a record that is not accepted",
                self._split,
                len(last),
                shared.naming.describe(acquired.pieces(last))[0],
                shared.most,
            )

    async def _deliver(self, acquired: AcquiredRecords[P]) -> Batch | None:
        """Make a batch of the records that are neither duplicate nor bad."""
        rows = await self._drop_duplicates(acquired)
        # Before anything is awaited: that may take longer than a lock.
        self._shared.dedup.add_delivered(acquired.pieces(rows))
        if len(acquired.unreadable) and len(
            unreadable := np.intersect1d(rows, acquired.unreadable)
        ):
            await self._handle_bad(
                acquired, unreadable, [self._shared.naming.unreadable] * len(unreadable)
            )
            rows = np.setdiff1d(rows, unreadable)
        most, counts = self._shared.options.max_deliveries, acquired.delivery_counts
        if most is not None and len(often := rows[counts[rows] > most]):
            reasons = [
                f"delivered {count} times, max_deliveries={most}"
                for count in counts[often].tolist()
            ]
            await self._handle_bad(acquired, often, reasons)
            rows = rows[counts[rows] <= most]
        records, rows = await self._decoded(acquired, rows)
        acquired.mark_delivered(rows, self._delivered)
        position, self._delivered = self._delivered, self._delivered + len(rows)
        await self._settle_duplicates(acquired)
        if not len(rows):
            return None
        return Batch(self._split, records, Range(Cursor(position), Cursor(self._delivered)))

    async def _drop_duplicates(self, acquired: AcquiredRecords[P]) -> Rows:
        """Return the rows that the stream does not have already."""
        if not self._duplicates(acquired, acquired.all_rows).any():
            return acquired.all_rows
        # A topic that was created again has other records at the same offsets, for example.
        await self._shared.naming.forget_replaced(self._shared.dedup)
        new = self._duplicates(acquired, acquired.all_rows) == _NEW
        self._shared.counts.repeated += int(np.count_nonzero(~new))
        return np.flatnonzero(new)

    def _duplicates(self, acquired: AcquiredRecords[P], rows: Rows) -> NDArray[np.int8]:
        """Return the DuplicateAction of each row of a poll, looking at some rows alone."""
        actions = np.full(len(acquired.all_rows), _NEW, np.int8)
        for piece in acquired.pieces(rows):
            for part, action in self._shared.dedup.duplicates(piece):
                actions[acquired.rows_of(part)] = action.value
        return actions

    async def _decoded(
        self, acquired: AcquiredRecords[P], rows: Rows
    ) -> tuple[pa.RecordBatch, Rows]:
        """Apply the user's `decode`, if there is one, and accept the rows that it leaves out."""
        if self._decode is None or not len(rows):
            return take_rows(acquired.records, rows), rows
        decoded = await self._decode_when_ready(self._decode, acquired, rows)
        if decoded is None:
            return self._decode.no_records, rows[:0]
        if decoded.bad:
            await self._reject(acquired, np.array([*decoded.bad]), [*decoded.bad.values()])
        kept = np.concatenate([np.empty(0, np.int64), *decoded.rows])
        left_out = np.setdiff1d(rows, np.concatenate([kept, [*decoded.bad]]).astype(np.int64))
        await self._acknowledgements.send(acquired, left_out, Settlement.ACCEPT)
        whole = pa.Table.from_batches(decoded.batches, self._decode.schema).combine_chunks()
        return (whole.to_batches() or [self._decode.no_records])[0], kept

    async def _decode_when_ready(
        self, function: UserDecode, acquired: AcquiredRecords[P], rows: Rows
    ) -> DecodedRows | None:
        """Call the user's `decode` until it does not ask to be called later.

        Nothing is polled meanwhile: each delivery counts towards the limit after which the broker
        drops a record. Returns None where the wait has left too little of the locks; the records
        are released then, and come again.
        """
        find_bad = self._shared.options.on_bad_record == "dead_letter"
        waited = False

        async def attempt() -> DecodedRows:
            await function.prepare(acquired.records)
            column = self._shared.naming.row_column
            return decode(function, acquired, rows, row_column=column, find_bad=find_bad)

        def on_wait(cause: RetryLaterError, delay: float) -> None:
            nonlocal waited
            waited = True
            self._log_wait(cause, delay)

        decoded = await until_ready(attempt, self._shared.jitter, on_wait)
        # A function that is only slow would be as slow the next time, until the broker drops them.
        if not waited or asyncio.get_running_loop().time() <= self._latest_delivery(acquired):
            return decoded
        self._shared.dedup.forget_delivered(acquired.pieces(rows))
        await self._release_pending()
        return None

    def _log_wait(self, cause: RetryLaterError, delay: float) -> None:
        log.warning(
            "%s waits until its records can be decoded, again in %.1f s: %s",
            self._split,
            delay,
            type(cause.__cause__ or cause).__name__,
        )

    async def _handle_bad(
        self, acquired: AcquiredRecords[P], rows: Rows, reasons: list[str]
    ) -> None:
        if self._shared.options.on_bad_record == "dead_letter":
            await self._reject(acquired, rows, reasons)
            return
        raise BadRecordError(
            f"{', '.join(self._shared.naming.describe(acquired.pieces(rows)))}: {reasons[0]}",
            Suggestion.of("; {on_bad_record='dead_letter'} goes on without such records"),
        )

    async def _settle_duplicates(self, acquired: AcquiredRecords[P]) -> None:
        """Accept the duplicates of stored records; release those that the stream lost again."""
        rows = acquired.undelivered
        if not len(rows):
            return
        actions = self._duplicates(acquired, rows)[rows]
        stored, lost = rows[actions == DuplicateAction.ACCEPT.value], rows[actions == _NEW]
        await self._acknowledgements.send(acquired, stored, Settlement.ACCEPT)
        await self._acknowledgements.send(acquired, lost, Settlement.RELEASE)

    async def _reject(
        self, acquired: AcquiredRecords[P], rows: Rows, reasons: list[str]
    ) -> list[P]:
        """Reject rows, after the dead letter topic has them."""
        if not len(rows):
            return []
        if self._shared.dead_letters is not None:
            await self._shared.dead_letters.write(take_rows(acquired.records, rows), reasons)
        return await self._acknowledgements.send(acquired, rows, Settlement.REJECT)

    async def _release_pending(self, *, expired: bool = False) -> None:
        """Release all pending records of the last poll; the delivered ones are expired.

        With `expired` all are counted as expired, and not as released.
        """
        acquired = self.acquired
        assert acquired is not None
        rows = acquired.pending_rows
        self._mark_expired(acquired)
        kind = Settlement.RELEASE
        await self._acknowledgements.send(acquired, rows, kind, counted=expired)

    def _mark_expired(self, acquired: AcquiredRecords[P]) -> None:
        """Note the delivered records that cannot be acknowledged any more.

        A stream with dedup still stores them. For any other stream they come again.
        """
        rows = acquired.delivered_between(0, self._delivered)
        if not len(rows):
            return
        acquired.mark_expired(rows)
        self._expired.add(acquired)
        if not self._shared.dedup.enabled:
            self._shared.dedup.forget_delivered(acquired.pieces(rows))
