"""The ids of topics: one that is deleted and created again has the same name, and another id.

The request is laid out as in MetadataRequest.json of Kafka (clients/src/main/resources/common/
message), in the first version that tells ids (KIP-516).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from fanout.kafka.protocol.fields import error_of
from fanout.kafka.protocol.messages.share_groups import Uuid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fanout.kafka.protocol.connections import Connections

__all__ = ("TopicIds",)

_METADATA: Final = 3
_NO_TAGS: Final[dict[int, bytes]] = {}
_NO_ID: Final = bytes(16)


class MetadataResponse_v10(Response):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """What a cluster tells of its topics."""

    API_KEY = _METADATA
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString()),
                ("port", Int32),
                ("rack", CompactString()),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString()),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", CompactString()),
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("operations", Int32),
        ("tags", TaggedFields),
    )


class MetadataRequest_v10(RequestStruct):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """Ask a cluster about topics; their ids are told since this version."""

    FLEXIBLE_VERSION = True
    API_KEY = _METADATA
    API_VERSION = 10
    RESPONSE_TYPE = MetadataResponse_v10
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(("topic_id", Uuid), ("topic", CompactString()), ("tags", TaggedFields)),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("cluster_operations", Boolean),
        ("topic_operations", Boolean),
        ("tags", TaggedFields),
    )


class _TopicIdsRequest(Request[MetadataRequest_v10]):  # type: ignore[misc]
    API_KEY = _METADATA

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: Any) -> Any:
        topics = [(_NO_ID, topic, _NO_TAGS) for topic in self._topics]
        return request_struct_class(topics, *[False] * 3, _NO_TAGS)


@final
class TopicIds:
    """Track the ids of topics, and find topics that were deleted and created again.

    Args:
        connections: Connections to the cluster.
        topics: The topics.
    """

    def __init__(self, connections: Connections, topics: Sequence[str]) -> None:
        self._connections = connections
        self._topics = topics
        self._known: dict[str, str] = {}
        self._missing: set[str] = set()

    @property
    def known(self) -> Mapping[str, str]:
        """The latest known id of each topic."""
        return self._known

    @property
    def missing(self) -> set[str]:
        """The topics that did not exist at the last refresh."""
        return self._missing

    async def refresh(self) -> set[str]:
        """Request the ids, and return the topics that were deleted and created again.

        Raises:
            KafkaError: If the request fails, or a topic may not be described.
        """
        response = await self._connections.send_to_any(_TopicIdsRequest(self._topics))
        replaced, self._missing = set[str](), set[str]()
        for code, topic, topic_id, *_ in response.topics:
            match error_of(code, topic):
                case UnknownTopicOrPartitionError():
                    self._missing.add(topic)
                case KafkaError() as error if not error.retriable:
                    raise error
                case _ if topic_id != _NO_ID:
                    if self._known.setdefault(topic, topic_id.hex()) != topic_id.hex():
                        replaced.add(topic)
                    self._known[topic] = topic_id.hex()
                case _:
                    pass
        return replaced
