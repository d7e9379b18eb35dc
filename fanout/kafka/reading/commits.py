"""Commit acknowledged positions for a consumer group, so that people see its lag.

A stream does not resume from them, so a failed commit stops nothing.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from operator import not_
from typing import TYPE_CHECKING, Final, final

from aiokafka.errors import UnknownMemberIdError
from tenacity import AsyncRetrying, retry_if_result

from fanout.core.cancellation import cancellations, prefer_cancellation
from fanout.core.error_text import text_of
from fanout.core.positions import Cursor
from fanout.core.statistics import CommitStatistics
from fanout.kafka.partitions import Partition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping

    from fanout.core.backoff import FullJitter
    from fanout.core.positions import Position
    from fanout.kafka.reading.transport import KafkaTransport

log = logging.getLogger(__name__)

STORED_AGAIN: Final = 20.0
"""The seconds after which positions that have not moved are stored again. Brokers forget an offset
of a group without members `offsets.retention.minutes` after its own last commit; Java's consumer
commits all of them every 5 seconds (`auto.commit.interval.ms`)."""

HAS_MEMBERS: Final = (
    "the group {group} has members, and brokers take offsets from these alone: give the source a "
    "group_id of its own, which shows how far it is; or end the members; or be one of them, by "
    "fanout.open(source, group=ConsumerGroup(...)) and without group_id"
)
"""Why a group takes no offsets from a source, and what to do."""

# How long closing a stream may wait for offsets that are not committed yet, in seconds.
_CLOSING_TIMEOUT: Final = 5.0


@final
class Committer:
    """Commit the newest offset of each partition, one request at a time and without a queue."""

    def __init__(self, transport: KafkaTransport, group_id: str, jitter: FullJitter) -> None:
        self.succeeded = 0
        self.failed = 0
        self.committed: Mapping[Partition, Cursor] = {}
        self._transport = transport
        self._group_id = group_id
        self._jitter = jitter
        self._has_members = False
        self._stops = 0  # of the task that finishes
        self._pending: dict[Partition, Cursor] = {}
        self._has_pending = asyncio.Event()
        # What the group has of the partitions of this stream.
        self._held: dict[Partition, Cursor] = {}

    def hold(self, positions: Mapping[Partition, Cursor]) -> None:
        """Store positions again that the group has, and from which partitions begin."""
        self._held = {**positions, **self._held}

    async def acknowledge(self, positions: Mapping[str, Position]) -> None:
        """Commit the offsets after these positions soon; the call does not wait for the cluster."""
        self.commit(
            {
                Partition.of(split_id): position
                for split_id, position in positions.items()
                if isinstance(position, Cursor)
            }
        )

    @property
    def statistics(self) -> CommitStatistics:
        """Return what the group has stored so far; from any thread."""
        return CommitStatistics(
            {str(partition): position for partition, position in self.committed.items()},
            self.succeeded,
            self.failed,
        )

    def commit(self, positions: Mapping[Partition, Cursor]) -> None:
        """Commit soon the offset behind each position, instead of older ones."""
        self._pending.update(positions)
        self._has_pending.set()

    async def run(self) -> None:
        """Commit pending offsets until cancelled, and now and then those that have not moved.

        Offsets that were not confirmed stay pending.
        """
        clock = asyncio.get_running_loop().time
        due = clock() + STORED_AGAIN
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._has_pending.wait()
            if self._pending:
                await self._commit()
            if clock() >= due:
                await self._store_again()
                due = clock() + STORED_AGAIN

    async def finish(self) -> None:
        """Commit what is left, for a few seconds at most; a cancellation gives it up."""
        self._stops = cancellations()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING_TIMEOUT):
                while self._pending and not self._has_members:
                    await self._commit()
        if self._pending:
            log.warning(
                "the last offsets of the group %s are not committed: it appears to lag in %d "
                "partitions until the next run",
                self._group_id,
                len(self._pending),
            )

    async def _commit(self) -> None:
        """Commit until an attempt succeeds; newer offsets may be pending then."""
        await AsyncRetrying(wait=self._jitter, retry=retry_if_result(not_))(self._attempt)

    async def _store_again(self) -> None:
        """Commit the offsets of partitions that have not moved, as far as the group still has them.

        Another process of the group may have moved one, or an operator may have reset it: that is
        left alone, as is what the cluster refuses, such as a partition that was deleted.
        """
        if not self._held:
            return
        try:
            stored = await self._transport.committed(self._group_id, sorted(self._held))
            self._held = {p: at for p, at in self._held.items() if _is_at(stored[p], at)}
            refused: Collection[Partition] = ()
            if self._held:
                refused = await self._transport.commit(self._group_id, self._held)
        except Exception as error:  # noqa: BLE001 - logged, and tried again at the next time
            prefer_cancellation(error)
            log.warning(
                "the offsets of the group %s cannot be stored again: %s",
                self._group_id,
                text_of(error),
            )
        else:
            self._held = {p: at for p, at in self._held.items() if p not in refused}

    async def _attempt(self) -> bool:
        """Commit what is pending now; return whether all of it succeeded."""
        positions, self._pending = self._pending, {}
        self._has_pending.clear()
        refused: Mapping[Partition, Exception] = {}
        left = positions
        try:
            refused = await self._transport.commit(self._group_id, positions)
            left = {partition: positions[partition] for partition in refused}
        except Exception as error:  # noqa: BLE001 - logged, counted and tried again
            prefer_cancellation(error, after=self._stops)
            log.warning(
                "the offsets of the group %s cannot be committed: %s",
                self._group_id,
                text_of(error),
            )
        finally:
            if left:
                self._pending = {**left, **self._pending}
                self._has_pending.set()
        of_members = any(isinstance(error, UnknownMemberIdError) for error in refused.values())
        if of_members and not self._has_members:  # said once, and not at each attempt
            log.error(HAS_MEMBERS.format(group=self._group_id))
        self._has_members = of_members
        if refused and not of_members:
            first, why = next(iter(refused.items()))
            log.warning(
                "the group %s cannot commit %d of %d partitions, the first is %s: %s",
                self._group_id,
                len(refused),
                len(positions),
                first,
                text_of(why),
            )
        done = {p: at for p, at in positions.items() if p not in left}
        self.committed = {**self.committed, **done}  # a new one: other threads read statistics
        self._held |= done
        if left:
            self.failed += 1
        else:
            self.succeeded += 1
        return not left


def _is_at(stored: Cursor | None, position: Cursor) -> bool:
    """Return whether a group has this offset; brokers before Kafka 2.4 are told no leader epoch."""
    return stored is not None and stored.sequence == position.sequence


@asynccontextmanager
async def open_committer(
    transport: KafkaTransport, group_id: str, jitter: FullJitter
) -> AsyncIterator[Committer]:
    """Commit a group's offsets while the block runs, and the rest of them when it ends.

    When the task is cancelled once more, the last attempt is given up.
    """
    committer = Committer(transport, group_id, jitter)
    task = asyncio.create_task(committer.run(), name="fanout commits")
    try:
        yield committer
    finally:
        task.cancel()
        await asyncio.wait([task])
        await committer.finish()
