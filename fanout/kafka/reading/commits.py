"""A consumer group's offsets: told to the cluster after they are acknowledged, for people to see.

Nothing is read from them when a stream is resumed, so a commit that fails stops nothing.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, final

from fanout.core.cancellation import prefer_cancellation
from fanout.core.positions import Cursor
from fanout.core.statistics import CommitStatistics
from fanout.kafka.partitions import Partition
from fanout.kafka.reading.offsets import cursor_before, next_offset

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from fanout.core.backoff import FullJitter
    from fanout.core.positions import Position
    from fanout.kafka.reading.transport import KafkaTransport

__all__ = ("Committer", "open_committer")

log = logging.getLogger(__name__)

# What closing a stream may take because of offsets that are not committed yet.
_CLOSING_TIMEOUT: Final = 5.0


@final
class Committer:
    """Commit the newest offset of each partition: one request at a time, and no queue of them.

    Args:
        transport: The calls.
        group_id: Whose offsets they are.
        jitter: How long to wait after a failure.
    """

    def __init__(self, transport: KafkaTransport, group_id: str, jitter: FullJitter) -> None:
        self.succeeded = 0
        self.failed = 0
        self.committed: Mapping[Partition, int] = {}
        self._transport = transport
        self._group_id = group_id
        self._jitter = jitter
        self._pending: dict[Partition, int] = {}
        self._wanted = asyncio.Event()

    async def acknowledge(self, positions: Mapping[str, Position]) -> None:
        """Commit the offsets after these positions soon; the call does not wait for the cluster.

        Args:
            positions: The position up to which everything is durable, of each partition by its id.
        """
        self.commit(
            {
                Partition.of(split_id): next_offset(position)
                for split_id, position in positions.items()
                if isinstance(position, Cursor)
            }
        )

    @property
    def statistics(self) -> CommitStatistics:
        """Return what the group has stored so far; from any thread."""
        return CommitStatistics(
            {str(partition): cursor_before(offset) for partition, offset in self.committed.items()},
            self.succeeded,
            self.failed,
        )

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Commit these offsets soon, instead of older ones of the same partitions.

        Args:
            offsets: The first offset that is not done, of each partition.
        """
        self._pending.update(offsets)
        self._wanted.set()

    async def run(self) -> None:
        """Commit what is wanted, for ever.

        Cancellation: what was not confirmed is still to be committed.
        """
        while True:
            await self._wanted.wait()
            await self._commit_all()

    async def finish(self) -> None:
        """Try once more to commit what is left, for a few seconds at most.

        Cancellation: it is given up.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING_TIMEOUT):
                await self._commit_all()
        if self._pending:
            log.warning(
                "the last offsets of the group %s are not committed: it seems to lag behind in %d "
                "partitions until the next run",
                self._group_id,
                len(self._pending),
            )

    async def _commit_all(self) -> None:
        """Commit until nothing is left to be committed."""
        failures = 0
        while self._pending:
            if await self._attempt():
                failures = 0
            else:
                await asyncio.sleep(self._jitter.delay(failures))
                failures += 1

    async def _attempt(self) -> bool:
        """Commit what is wanted now; tell whether all of it succeeded."""
        offsets, self._pending = self._pending, {}
        self._wanted.clear()
        refused: Mapping[Partition, Exception] = {}
        left = offsets
        try:
            refused = await self._transport.commit(self._group_id, offsets)
            left = {partition: offsets[partition] for partition in refused}
        except Exception as error:  # noqa: BLE001 - told, counted and tried again
            prefer_cancellation(error)
            log.warning(
                "the offsets of the group %s cannot be committed: %s", self._group_id, error
            )
        finally:
            if left:
                self._pending = {**left, **self._pending}
                self._wanted.set()
        for partition, why in refused.items():
            log.warning("the group %s cannot commit %s: %s", self._group_id, partition, why)
        done = {p: offset for p, offset in offsets.items() if p not in left}
        self.committed = {**self.committed, **done}  # a new one: other threads read statistics
        if left:
            self.failed += 1
        else:
            self.succeeded += 1
        return not left


@asynccontextmanager
async def open_committer(
    transport: KafkaTransport, group_id: str, jitter: FullJitter
) -> AsyncIterator[Committer]:
    """Commit a group's offsets while the block runs, and what is left of them when it ends.

    Cancellation: the last attempt is given up when the task is cancelled once more.
    """
    committer = Committer(transport, group_id, jitter)
    task = asyncio.create_task(committer.run(), name="fanout commits")
    try:
        yield committer
    finally:
        task.cancel()
        await asyncio.wait([task])
        await committer.finish()
