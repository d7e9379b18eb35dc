"""Which partitions topics have, and who leads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from aiokafka.errors import LeaderNotAvailableError, UnknownTopicOrPartitionError

from fanout.kafka.protocol.layouts import error_of
from fanout.kafka.protocol.metadata import ask_metadata

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiokafka.errors import KafkaError

    from fanout.kafka.partitions import Partition
    from fanout.kafka.protocol.connections import Connections

__all__ = ("Topology",)


@final
class Topology:
    """Know which partitions topics have, and who leads them.

    Args:
        connections: The connections to the cluster.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._cluster_id = ""
        self._leaders: dict[str, dict[int, int]] = {}
        self._errors: dict[str, KafkaError] = {}

    async def refresh(self, topics: Iterable[str]) -> None:
        """Ask about topics.

        Raises:
            KafkaError: If the cluster cannot be asked.
            ServiceError: It is another cluster than before.
        """
        wanted = sorted(set(topics))
        response = await ask_metadata(self._connections, wanted, cluster_id=self._cluster_id)
        self._cluster_id = response.cluster_id
        for code, topic, _, partitions in response.topics:
            self._leaders[topic] = {number: leader for _, number, leader, *_ in partitions}
            self._errors.pop(topic, None)
            if (error := error_of(code, topic)) is not None:
                self._errors[topic] = error

    def leader(self, partition: Partition) -> int | None:
        """Return the broker that leads a partition; None where nobody is known to."""
        leader = self._leaders.get(partition.topic, {}).get(partition.number, -1)
        return leader if leader >= 0 else None

    def error(self, partition: Partition) -> KafkaError | None:
        """Say why nobody is known to lead a partition; None where somebody is."""
        numbers = self._leaders.get(partition.topic, {})
        error = self._errors.get(partition.topic)
        if error is None and numbers and partition.number not in numbers:
            error = UnknownTopicOrPartitionError(f"{partition}; the topic has {len(numbers)}")
        if error is None and self.leader(partition) is None:
            error = LeaderNotAvailableError(f"nobody leads {partition}")
        return error
