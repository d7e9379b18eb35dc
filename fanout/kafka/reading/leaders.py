"""Find the leaders of partitions, with one metadata request for all that wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from aiokafka.errors import LeaderNotAvailableError

from fanout.core.cancellation import prefer_cancellation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.kafka.partitions import Partition
    from fanout.kafka.reading.transport import KafkaTransport

# The least seconds between two metadata requests: an election takes about as long.
_SPACING: Final = 0.5


@final
class Leaders:
    """Know the leader of each partition, and refresh leaders that may have changed.

    One metadata request refreshes all stale leaders; requests begin at least half a second
    apart.
    """

    def __init__(self, transport: KafkaTransport) -> None:
        self._transport = transport
        self._refreshing = asyncio.Lock()
        self._refreshed_at = -_SPACING
        # Requests are numbered. A leader is stale since a number, and a topic was refreshed by a
        # number: a request refreshes the leaders that were stale before it began, for all readers.
        self._refreshes = 0
        self._stale: dict[Partition, int] = {}
        self._refreshed: dict[str, int] = {}
        self._errors: dict[str, Exception] = {}

    def mark_stale(self, partition: Partition) -> None:
        """Note that the leader of a partition may have changed."""
        self._stale[partition] = self._refreshes

    async def of(self, partition: Partition) -> int:
        """Return the broker that leads a partition, or raise why there is none now.

        Where the call that makes the request is cancelled, another waiting call makes it instead.
        """
        topic = partition.topic
        leader = self._transport.leader(partition)
        if leader is not None and partition not in self._stale:
            return leader
        since = self._stale.setdefault(partition, self._refreshes)
        async with self._refreshing:
            if self._refreshed.get(topic, 0) <= since:
                await self._refresh()
        self._stale.pop(partition, None)
        if (error := self._errors.get(topic)) is not None:
            raise error
        leader = self._transport.leader(partition)
        if leader is None:
            raise LeaderNotAvailableError(f"{partition} has no leader")
        return leader

    async def _refresh(self) -> None:
        """Request the leaders of every topic with a stale leader."""
        now = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, self._refreshed_at + _SPACING - now()))
        self._refreshed_at = now()
        self._refreshes += 1
        number = self._refreshes
        topics = sorted({partition.topic for partition in self._stale})
        answers: Mapping[str, object]
        try:
            answers = await self._transport.describe(topics)
        except Exception as error:  # noqa: BLE001 - the waiting calls raise it
            prefer_cancellation(error)
            answers = dict.fromkeys(topics, error)
        for topic in topics:
            self._refreshed[topic] = number
            answer = answers.get(topic)
            if isinstance(answer, Exception):
                self._errors[topic] = answer
            else:
                self._errors.pop(topic, None)
