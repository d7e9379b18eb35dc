"""The locks of one stream: acknowledge, release and reject, over all members together."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Generic, final

from fanout.core.lending.acquired import ExpiredRecords, acknowledge_within
from fanout.core.lending.seam import P
from fanout.core.positions import Cursor
from fanout.core.statistics import LendingStatistics
from fanout.errors import AcknowledgementError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.core.events import Batch
    from fanout.core.lending.acknowledgements import SharedState
    from fanout.core.lending.delivery import MemberDelivery
    from fanout.core.positions import Position, Range


def delivery_number(position: Position) -> int:
    """Return how many records a member has delivered up to a position."""
    return position.sequence if isinstance(position, Cursor) else 0


@final
class MemberLocks(Generic[P]):
    """The records that the service has locked for one stream.

    It implements `RecordLocks` of `fanout.core.source`.
    """

    def __init__(self, shared: SharedState[P]) -> None:
        self._shared = shared
        self._clock = asyncio.get_running_loop().time
        self._deliveries: dict[str, MemberDelivery[P]] = {}
        self._expired: dict[str, ExpiredRecords[P]] = {}
        shared.fetching.set()

    def expired(self, split_id: str) -> ExpiredRecords[P]:
        """Return the expired records of a member, of all its subscriptions."""
        return self._expired.setdefault(split_id, ExpiredRecords())

    def begin_delivery(self, split_id: str, delivery: MemberDelivery[P]) -> None:
        """Note that a member's subscription has begun."""
        self._deliveries[split_id] = delivery

    def end_delivery(self, split_id: str) -> None:
        """Note that a member's subscription has ended."""
        if (delivery := self._deliveries.pop(split_id, None)) is not None:
            delivery.close()
            self._notify()

    @property
    def seconds(self) -> float:
        """Seconds within which a delivered record has to be acknowledged: half of its lock."""
        return acknowledge_within(self._shared.lock_seconds)

    @property
    def statistics(self) -> LendingStatistics:
        """Return the counts of records so far; any thread may call this."""
        polls = [delivery.acquired for delivery in list(self._deliveries.values())]
        pending = [acquired for acquired in polls if acquired is not None and acquired.pending]
        deadline = min((acquired.lock_deadline for acquired in pending), default=None)
        now = self._clock()
        return LendingStatistics(
            **asdict(self._shared.counts),
            pending_records=sum(acquired.pending for acquired in pending),
            pending_bytes=sum(acquired.records.nbytes for acquired in pending),
            oldest=None if deadline is None else now - deadline + self._shared.lock_seconds,
            unconfirmed=len(self._shared.dedup.unconfirmed),
        )

    def pause(self) -> None:
        """Fetch no more records; those of a fetch that is under way are still delivered.

        To release them would count as a delivery for each pause, and the broker drops a record that
        was delivered too often.
        """
        self._shared.fetching.clear()

    def resume(self) -> None:
        """Fetch records again."""
        self._shared.fetching.set()

    def keeps(self, batch: Batch) -> bool:
        """Return whether enough is left of the locks of a batch; it comes again if not.

        A last delivery is kept, however late: it does not come again.
        A stream with dedup stores the records all the same, and accepts them when they come again.
        """
        if self._shared.dedup.enabled:
            return True
        after, until = delivery_number(batch.range.after), delivery_number(batch.range.until)
        if self.expired(batch.split.id).take(range(after + 1, until + 1), last=False):
            return False
        delivery = self._deliveries.get(batch.split.id)
        return delivery is None or delivery.keeps(after, until)

    def begin_wait(self) -> None:
        """Let members poll whose locks expired while the consumer worked on their records."""
        self._shared.consumer_waits.set()
        self._notify()

    def end_wait(self) -> None:
        """Let such members wait."""
        self._shared.consumer_waits.clear()

    async def acknowledge(self, positions: Mapping[str, Position]) -> None:
        """Accept the records that were delivered up to these positions, even if it is cancelled.

        Raises:
            AcknowledgementError: If the service did not confirm the acknowledgement of some of
                the records.
        """
        failed: list[P] = []
        responses: list[asyncio.Future[list[P]]] = []
        # All acknowledgements are under way before the first await, so that none depends on a
        # cancellation.
        for id_, position in positions.items():
            late = self.expired(id_).take_up_to(delivery_number(position))
            self._shared.dedup.mark_stored(late)
            self._shared.dedup.forget_delivered(late)  # who has not stored them gets them again
            failed += late
            if id_ in self._deliveries:
                responses.append(self._deliveries[id_].accept(delivery_number(position)))
        self._notify()
        for response in responses:
            failed += await response
        self._raise_if_any(failed, "acknowledged")

    async def release(self, split_id: str, piece: Range) -> None:
        """Release a range of the records that a member delivered."""
        after, until = delivery_number(piece.after), delivery_number(piece.until)
        expired = self.expired(split_id).take(range(after + 1, until + 1))
        self._shared.dedup.forget_delivered(expired)
        if split_id in self._deliveries:
            await self._deliveries[split_id].release(after, until)

    async def reject(self, split_id: str, piece: Range, rows: Sequence[int], reason: str) -> None:
        """Reject rows of a range, after the dead letters have them.

        Raises:
            AcknowledgementError: If the service did not confirm the rejection of some rows.
            ServiceError: If the dead letters cannot be written.
        """
        numbers = [delivery_number(piece.after) + 1 + row for row in rows]
        if split_id in self._deliveries:
            late = await self._deliveries[split_id].reject(numbers, reason)
        else:
            late = self.expired(split_id).take(numbers)
        self._raise_if_any(late, "rejected")

    def unconfirmed(self, positions: Mapping[str, Position]) -> str:
        """Return as JSON the records up to these positions that the service may deliver again."""
        dedup = self._shared.dedup
        for id_, position in positions.items():
            until = delivery_number(position)
            dedup.add_unconfirmed(self.expired(id_).up_to(until))
            if id_ in self._deliveries:
                dedup.add_unconfirmed(self._deliveries[id_].pending_pieces(until))
        return self._shared.naming.write(dedup.unconfirmed)

    def remember(self, unconfirmed: str) -> None:
        """Take over the unconfirmed records of an earlier run, and drop them from now on."""
        dedup = self._shared.dedup
        pieces = self._shared.naming.read(unconfirmed)
        dedup.add_unconfirmed(pieces)
        dedup.mark_stored(pieces)
        self._shared.naming.forget_gone(dedup)

    def _notify(self) -> None:
        for delivery in self._deliveries.values():
            delivery.notify()

    def _raise_if_any(self, pieces: list[P], what: str) -> None:
        if pieces:
            records = self._shared.naming.describe(pieces)
            raise AcknowledgementError(
                f"these records were {what} too late, after their locks had expired, or without "
                f"the service's confirmation, and may be delivered again: {', '.join(records)}",
                records,
            )
