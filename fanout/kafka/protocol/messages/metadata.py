"""The Metadata request with topic ids, which aiokafka lacks.

It follows MetadataRequest.json of Kafka (clients/src/main/resources/common/message) in version 10,
the first that has ids (KIP-516).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32

from fanout.kafka.protocol.messages.flexible import (
    ANY_TOPIC_ID,
    NO_TAGS,
    TOPIC,
    Uuid,
    flexible_array,
    flexible_schema,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_METADATA: Final = 3


class MetadataResponse_v10(Response):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """The brokers and topics of a cluster, with the ids of the topics."""

    API_KEY = _METADATA
    API_VERSION = 10
    SCHEMA = flexible_schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            flexible_array(
                ("node_id", Int32),
                ("host", CompactString()),
                ("port", Int32),
                ("rack", CompactString()),
            ),
        ),
        ("cluster_id", CompactString()),
        ("controller_id", Int32),
        (
            "topics",
            flexible_array(
                ("error_code", Int16),
                TOPIC,
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    flexible_array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline", CompactArray(Int32)),
                    ),
                ),
                ("operations", Int32),
            ),
        ),
        ("operations", Int32),
    )


class MetadataRequest_v10(RequestStruct):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """Ask a cluster for topics and their ids."""

    FLEXIBLE_VERSION = True
    API_KEY = _METADATA
    API_VERSION = 10
    RESPONSE_TYPE = MetadataResponse_v10
    SCHEMA = flexible_schema(
        ("topics", flexible_array(("topic_id", Uuid), TOPIC)),
        ("allow_auto_topic_creation", Boolean),
        ("cluster_operations", Boolean),
        ("topic_operations", Boolean),
    )


class TopicIdsRequest(Request[MetadataRequest_v10]):  # type: ignore[misc]
    """Ask for the ids of topics, and create none of them.

    With `operations` it asks also for what the principal may do with them (KIP-430).
    """

    API_KEY = _METADATA

    def __init__(self, topics: Sequence[str], *, operations: bool = False) -> None:
        self._topics = topics
        self._operations = operations

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in the only version."""
        topics = [(ANY_TOPIC_ID, topic, NO_TAGS) for topic in self._topics]
        return request_struct_class(topics, False, False, self._operations, NO_TAGS)  # noqa: FBT003 - fields
