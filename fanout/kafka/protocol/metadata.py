"""What a cluster tells of itself: its brokers, its topics, and who leads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.metadata import MetadataRequest

from fanout.errors import ServiceError
from fanout.kafka.cluster import Server

if TYPE_CHECKING:
    from fanout.kafka.protocol.connections import Connections

__all__ = ("fetch_metadata",)

_VERSION = 4  # that of Kafka 0.11


async def fetch_metadata(
    connections: Connections, topics: list[str] | None, *, cluster_id: str = ""
) -> Any:
    """Ask a cluster for its metadata; the connections go by the addresses that it tells.

    Args:
        connections: To the cluster.
        topics: The topics to be described; None for all.
        cluster_id: The cluster that it has to be; any where it is empty.

    Returns:
        The answer, of version 4 or 5.

    Raises:
        KafkaError: No broker answers, or they are older than Kafka 0.11.
        ServiceError: It is another cluster.
    """
    request = MetadataRequest(topics, allow_auto_topic_creation=False)
    response = await connections.send_to_any(request)
    if response.API_VERSION < _VERSION:
        raise IncompatibleBrokerVersion("the brokers are older than Kafka 0.11")
    if cluster_id not in {"", response.cluster_id}:
        # A name that leads elsewhere after a disaster, say: offsets of one cluster mean other
        # records in another, or none.
        raise ServiceError(
            f"the brokers belong to the cluster {response.cluster_id} now, not to "
            f"{cluster_id} as before: open the stream anew, without stored positions"
        )
    if response.brokers:  # a broker that is just starting may know none
        connections.know({broker: Server(host, port) for broker, host, port, _ in response.brokers})
    return response
