"""Look at the dead letters of a queue, and make them records of the queue again."""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Final, final

from fanout.core.backoff import FullJitter
from fanout.kinesis.aws.error_hints import explained
from fanout.kinesis.control_calls import until_answered
from fanout.kinesis.queue.client import DEAD, open_queue_client, tens
from fanout.kinesis.queue.source import find_queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Sequence

    from fanout.kinesis.queue.client import QueueClient, QueueDescription
    from fanout.kinesis.queue.options import QueueOptions
    from fanout.kinesis.queue.records import QueueRecord

# Seconds for which nobody else sees the letters that are looked at.
_HIDDEN: Final = 60
_WAIT: Final = 1


@asynccontextmanager
async def open_queue(options: QueueOptions) -> AsyncIterator[OpenQueue]:
    """Find a queue, without receiving a record of it."""
    jitter = FullJitter(options.pacing.backoff, Random())  # noqa: S311 - jitter, no secret
    with explained("Kinesis cannot be called"):
        async with open_queue_client(options, 1) as client:
            yield OpenQueue(client, await find_queue(client, options, jitter), jitter)


@final
class OpenQueue:
    """Describe a queue, list its dead letters and restore them; `open_queue` makes one."""

    def __init__(
        self, client: QueueClient, description: QueueDescription, jitter: FullJitter
    ) -> None:
        self.description = description
        self._client = client
        self._jitter = jitter

    async def dead_letters(self, limit: int) -> Sequence[QueueRecord]:
        """Return up to about so many dead letters, which stay dead letters.

        Nobody else receives them for a minute, or until this returns.
        """
        found = await self._take(limit)
        for some in tens([each.receipt_handle for each in found]):
            await self._client.set_visibility(self.description.arn, some, 0, DEAD)
        return found

    async def restore(
        self, ids: Collection[str] | None, limit: int
    ) -> tuple[Sequence[QueueRecord], int]:
        """Restore dead letters, those with the ids or all; return them, and how many failed."""
        found = await self._take(limit)
        chosen = [each for each in found if ids is None or each.record_id in ids]
        others = [each.receipt_handle for each in found if each not in chosen]
        failed: set[str] = set()
        for some in tens([each.receipt_handle for each in chosen]):
            failed |= (await self._client.restore(self.description.arn, some)).keys()
        for some in tens(others):
            await self._client.set_visibility(self.description.arn, some, 0, DEAD)
        return [each for each in chosen if each.receipt_handle not in failed], len(failed)

    async def _take(self, limit: int) -> list[QueueRecord]:
        found: dict[str, QueueRecord] = {}
        while len(found) < limit:
            received = await until_answered(
                lambda: self._client.receive(
                    self.description.arn, wait=_WAIT, visible_after=_HIDDEN, letters=DEAD
                ),
                self._jitter,
            )
            if not received:
                break
            found |= {each.record_id: each for each in received}
        return list(found.values())
