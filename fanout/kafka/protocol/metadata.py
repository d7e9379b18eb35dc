"""Request the metadata of a cluster: its brokers, its topics, and their leaders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.metadata import MetadataRequest

from fanout.errors import ServiceError
from fanout.kafka.cluster import Server

if TYPE_CHECKING:
    from fanout.kafka.protocol.connections import Connections

_VERSION = 4  # that of Kafka 0.11


async def fetch_metadata(
    connections: Connections, topics: list[str] | None, *, cluster_id: str = ""
) -> Any:
    """Request metadata; the connections use the addresses of brokers in the answer.

    Args:
        connections: Connections to the cluster.
        topics: The topics to describe; None for all.
        cluster_id: The expected id of the cluster; empty for any.

    Returns:
        The answer, of version 4 or 5.

    Raises:
        KafkaError: If no broker answers, or they are older than Kafka 0.11.
        ServiceError: If it is another cluster.
    """
    request = MetadataRequest(topics, allow_auto_topic_creation=False)
    response = await connections.send_to_any(request)
    if response.API_VERSION < _VERSION:
        raise IncompatibleBrokerVersion("the brokers are older than Kafka 0.11")
    if cluster_id and response.cluster_id not in {None, "", cluster_id}:
        # For example after a DNS name was switched in a disaster: the same offsets are other
        # records in another cluster, or none.
        raise ServiceError(
            f"the brokers belong to the cluster {response.cluster_id} now, not to "
            f"{cluster_id} as before: open the stream anew, without stored positions"
        )
    if response.brokers:  # a broker that is just starting may list none
        connections.set_brokers(
            {broker: Server(host, port) for broker, host, port, _ in response.brokers}
        )
    return response
