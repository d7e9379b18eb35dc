"""Who leads a partition, looked up once for all who wait for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from aiokafka.errors import LeaderNotAvailableError

from fanout.core.cancellation import prefer_cancellation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.kafka.partitions import Partition
    from fanout.kafka.reading.transport import KafkaTransport

__all__ = ("Leaders",)

# An election takes about as long, and nobody learns of its end from asking more often.
_FLOOR: Final = 0.5


@final
class Leaders:
    """Know the leader of each partition, and ask the cluster again where that is in doubt.

    However many partitions are in doubt, one look at the metadata tells about all of them; looks
    begin at least half a second apart.

    Args:
        transport: The calls.
    """

    def __init__(self, transport: KafkaTransport) -> None:
        self._transport = transport
        self._looking = asyncio.Lock()
        self._looked_at = -_FLOOR
        # How many looks had begun when a partition came in doubt, and with the latest look at a
        # topic: a look tells about the doubts that were there before it, whoever has looked.
        self._looks = 0
        self._doubts: dict[Partition, int] = {}
        self._seen: dict[str, int] = {}
        self._errors: dict[str, Exception] = {}

    def doubt(self, partition: Partition) -> None:
        """Take what is known of a partition's leader for old."""
        self._doubts[partition] = self._looks

    async def of(self, partition: Partition) -> int:
        """Return the broker that leads a partition.

        Raises:
            KafkaError: If the cluster cannot be asked, or has an error for the topic.
            LeaderNotAvailableError: If nobody leads the partition now.

        Cancellation: whoever waits as well looks instead.
        """
        topic = partition.topic
        leader = self._transport.leader(partition)
        if leader is not None and partition not in self._doubts:
            return leader
        doubt = self._doubts.setdefault(partition, self._looks)
        async with self._looking:
            if self._seen.get(topic, 0) <= doubt:
                await self._look()
        self._doubts.pop(partition, None)
        if (error := self._errors.get(topic)) is not None:
            raise error
        leader = self._transport.leader(partition)
        if leader is None:
            raise LeaderNotAvailableError(f"nobody leads {partition}")
        return leader

    async def _look(self) -> None:
        """Ask about every topic that is in doubt."""
        now = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, self._looked_at + _FLOOR - now()))
        self._looked_at = now()
        self._looks += 1
        look = self._looks
        topics = sorted({partition.topic for partition in self._doubts})
        answers: Mapping[str, object]
        try:
            answers = await self._transport.describe(topics)
        except Exception as error:  # noqa: BLE001 - those who wait raise it
            prefer_cancellation(error)
            answers = dict.fromkeys(topics, error)
        for topic in topics:
            self._seen[topic] = look
            answer = answers.get(topic)
            if isinstance(answer, Exception):
                self._errors[topic] = answer
            else:
                self._errors.pop(topic, None)
