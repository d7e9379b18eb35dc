"""The partitions of the topics that are written to, and the leaders of these partitions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, final

from aiokafka.errors import KafkaError, LeaderNotAvailableError, UnknownTopicOrPartitionError

from fanout.errors import ServiceError, WriteTimeoutError
from fanout.kafka.intervals import KAFKA_INTERVALS
from fanout.kafka.protocol.error_codes import error_of
from fanout.kafka.protocol.metadata import fetch_metadata
from fanout.kafka.writing.policy import final_error

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from fanout.core.backoff import FullJitter
    from fanout.kafka.partitions import Partition
    from fanout.kafka.protocol.connections import Connections


@final
class TopicMetadata:
    """The partitions of topics and their leaders, as last reported by the cluster.

    Args:
        connections: Connections to the cluster.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.cluster_id = ""
        self._leaders: dict[str, dict[int, int]] = {}
        self._counts: dict[str, int] = {}
        self._errors: dict[str, KafkaError] = {}

    async def refresh(self, topics: Iterable[str]) -> None:
        """Request the partitions and leaders of topics.

        Raises:
            KafkaError: If the request fails.
            ServiceError: If the answer comes from another cluster than before.
        """
        names = sorted(set(topics))
        response = await fetch_metadata(self._connections, names, cluster_id=self.cluster_id)
        self.cluster_id = response.cluster_id or self.cluster_id
        for code, topic, _, partitions in response.topics:
            self._leaders[topic] = {number: leader for _, number, leader, *_ in partitions}
            if partitions:
                self._counts.setdefault(topic, len(partitions))
            self._errors.pop(topic, None)
            if (error := error_of(code, topic)) is not None:
                self._errors[topic] = error

    def partition_count(self, topic: str) -> int:
        """Return how many partitions a topic had when the cluster first reported any.

        A later answer does not change it. Otherwise a key would move to another partition, in which
        its records may overtake earlier ones.

        Raises:
            KeyError: If the cluster has reported none yet.
        """
        return self._counts[topic]

    def leader(self, partition: Partition) -> int | None:
        """Return the broker that leads a partition; None where it is not known."""
        leader = self._leaders.get(partition.topic, {}).get(partition.number, -1)
        return leader if leader >= 0 else None

    def error(self, partition: Partition) -> KafkaError | None:
        """Return why the leader of a partition is not known; None where it is known."""
        numbers = self._leaders.get(partition.topic, {})
        error = self._errors.get(partition.topic)
        if error is None and numbers and partition.number not in numbers:
            error = UnknownTopicOrPartitionError(f"{partition}; the topic has {len(numbers)}")
        if error is None and self.leader(partition) is None:
            error = LeaderNotAvailableError(f"{partition} has no leader")
        return error


async def wait_for_leaders(
    metadata: TopicMetadata,
    partitions: Collection[Partition],
    *,
    deadline: float,
    jitter: FullJitter,
) -> None:
    """Refresh the metadata until every partition has a leader.

    Args:
        metadata: The metadata to refresh.
        partitions: The partitions.
        deadline: When to give up, by the loop's clock.
        jitter: The waits between two attempts.

    Raises:
        ServiceError: If a topic or partition does not exist, or the cluster refuses the request.
        FanOutError: If there is another final error.
        WriteTimeoutError: If a partition has no leader at the deadline.
    """
    clock = asyncio.get_running_loop().time
    unknown_since = None
    attempts = 0
    while (error := await _refresh(metadata, partitions)) is not None:
        final = final_error(error)
        if final is not None:
            raise final from error
        if not isinstance(error, UnknownTopicOrPartitionError):
            unknown_since = None
        elif unknown_since is None:
            unknown_since = clock()
        elif clock() - unknown_since >= KAFKA_INTERVALS.current.topic_missing_after:
            raise ServiceError(
                f"the cluster has no such topic or partition: {error}; create it before it is "
                "written to"
            ) from error
        if clock() >= deadline:
            raise write_timeout(error) from error
        await asyncio.sleep(jitter.delay(attempts))
        attempts += 1


def write_timeout(error: Exception) -> WriteTimeoutError:
    """Return the error for records that were not confirmed in time."""
    return WriteTimeoutError(
        "the cluster did not confirm records within delivery.timeout.ms; the error of the last "
        f"attempt: {error}; check that its brokers are up, or raise the timeout"
    )


async def _refresh(metadata: TopicMetadata, partitions: Collection[Partition]) -> KafkaError | None:
    try:
        await metadata.refresh(partition.topic for partition in partitions)
    except KafkaError as error:
        return error
    errors = [metadata.error(each) for each in partitions]
    # A final error comes first.
    return min(filter(None, errors), key=lambda error: bool(error.retriable), default=None)
