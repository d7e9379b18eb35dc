"""The metadata of a cluster: its brokers, its topics, and the leaders of their partitions."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from aiokafka.errors import (
    IncompatibleBrokerVersion,
    KafkaError,
    LeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)

from fanout.errors import ServiceError
from fanout.kafka.cluster import Server
from fanout.kafka.protocol.error_codes import error_of
from fanout.kafka.protocol.messages.cluster_state import MetadataRequest
from fanout.kafka.protocol.messages.flexible import ANY_TOPIC_ID

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fanout.kafka.partitions import Partition
    from fanout.kafka.protocol.connections import Connections

_VERSION: Final = 4  # that of Kafka 0.11
_WITH_IDS: Final = 10  # since Kafka 2.8 (KIP-516)
_NO_LEADER: Final = -1


@final
class TopicMetadata(NamedTuple):
    """A topic: an error code or 0, and its id where brokers have any.

    `leaders` and `replicas` say of each partition which broker leads it, and how many have it.
    """

    error_code: int
    name: str
    id: bytes | None
    leaders: dict[int, int]
    replicas: dict[int, int]


@final
class Metadata(NamedTuple):
    """What brokers say of their cluster and of topics."""

    cluster_id: str | None
    controller: int
    brokers: Mapping[int, Server]
    topics: Sequence[TopicMetadata]


@final
class ClusterMetadata:
    """The topics of a cluster and the leaders of their partitions, as the cluster last told them.

    `cluster_id` is empty before the first answer.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.cluster_id = ""
        self._leaders: dict[str, dict[int, int]] = {}
        self._counts: dict[str, int] = {}
        self._errors: dict[str, KafkaError] = {}
        self._ids: dict[str, str] = {}

    async def refresh(
        self, topics: Iterable[str] | None
    ) -> Mapping[str, Sequence[int] | KafkaError]:
        """Request topics, or all for None; return the partitions of each, or its error."""
        names = None if topics is None else sorted(set(topics))
        response = await fetch_metadata(self._connections, names, cluster_id=self.cluster_id)
        self.cluster_id = response.cluster_id or self.cluster_id
        if topics is None:
            self._leaders.clear()
            self._errors.clear()
        for topic in response.topics:
            self._leaders[topic.name] = topic.leaders
            if topic.id is not None:
                self._ids[topic.name] = urlsafe_b64encode(topic.id).decode().rstrip("=")
            elif topic.error_code:  # one that comes back has another
                self._ids.pop(topic.name, None)
            if topic.leaders:
                self._counts.setdefault(topic.name, len(topic.leaders))
            self._errors.pop(topic.name, None)
            if (error := error_of(topic.error_code, topic.name)) is not None:
                self._errors[topic.name] = error
        return {
            topic.name: self._errors.get(topic.name) or sorted(topic.leaders)
            for topic in response.topics
        }

    def topic_id(self, topic: str) -> str:
        """Return the last id of a topic, as Kafka's own tools print it.

        It is empty where brokers have none (before Kafka 2.8), and while the topic is not known.
        """
        return self._ids.get(topic, "")

    def partition_count(self, topic: str) -> int:
        """Return how many partitions the cluster first reported of a topic, or raise KeyError.

        A later number does not count. Otherwise a key would move to another partition, in which
        its records may overtake earlier ones.
        """
        return self._counts[topic]

    def leader(self, partition: Partition) -> int | None:
        """Return the broker that leads a partition; None where it is not known."""
        leader = self._leaders.get(partition.topic, {}).get(partition.number, _NO_LEADER)
        return leader if leader >= 0 else None

    def forget_leader(self, partition: Partition) -> None:
        """Take the leader of a partition for unknown, because it may have changed."""
        numbers = self._leaders.get(partition.topic, {})
        if partition.number in numbers:
            numbers[partition.number] = _NO_LEADER

    def error(self, partition: Partition) -> KafkaError:
        """Return why a partition has no leader, by the last answer."""
        numbers = self._leaders.get(partition.topic, {})
        if (error := self._errors.get(partition.topic)) is not None:
            return error
        if numbers and partition.number not in numbers:
            what = f"{partition} does not exist; the topic has {len(numbers)} partitions"
            unknown: KafkaError = UnknownTopicOrPartitionError(what)
            return unknown
        leaderless: KafkaError = LeaderNotAvailableError(f"{partition} has no leader at the moment")
        return leaderless


async def fetch_metadata(
    connections: Connections, topics: list[str] | None, *, cluster_id: str = ""
) -> Metadata:
    """Request metadata (version 4, 5 or 10); the connections use the addresses of brokers in it.

    Raises:
        KafkaError: If no broker answers, or they are older than Kafka 0.11.
        ServiceError: If the cluster's id is not the expected one; an empty one fits any.
    """
    response = await connections.send_to_any(MetadataRequest(topics))
    if response.API_VERSION < _VERSION:
        raise IncompatibleBrokerVersion("the brokers are older than Kafka 0.11")
    if cluster_id and response.cluster_id not in {None, "", cluster_id}:
        # For example after a DNS name was switched in a disaster: the same offsets are other
        # records in another cluster, or none.
        raise ServiceError(
            f"the brokers belong to the cluster {response.cluster_id} now, not to "
            f"{cluster_id} as before: open the stream anew, without stored positions"
        )
    brokers = {broker: Server(host, port) for broker, host, port, *_ in response.brokers}
    if brokers:  # a broker that is just starting may list none
        connections.set_brokers(brokers)
    with_ids = response.API_VERSION >= _WITH_IDS
    found = [_topic(row, with_ids=with_ids) for row in response.topics]
    return Metadata(response.cluster_id, response.controller_id, brokers, found)


def _topic(row: Sequence[Any], *, with_ids: bool) -> TopicMetadata:
    code, name, *fields = row
    id_, _, partitions = fields[:3] if with_ids else (ANY_TOPIC_ID, *fields)
    leaders = {number: leader for _, number, leader, *_ in partitions}
    # An epoch of the leader stands before them since version 7.
    replicas = {row[1]: len(row[4 if with_ids else 3]) for row in partitions}
    # One that does not exist at the moment has no id.
    return TopicMetadata(code, name, None if id_ == ANY_TOPIC_ID else id_, leaders, replicas)
