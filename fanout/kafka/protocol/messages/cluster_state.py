"""Requests about topics with their ids, groups, features and the quorum, which aiokafka lacks.

They follow MetadataRequest.json in version 10, the first with ids (KIP-516),
DescribeGroupsRequest.json, ListGroupsRequest.json, ApiVersionsRequest.json and
DescribeQuorumRequest.json of Kafka (clients/src/main/resources/common/message).
"""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from aiokafka.protocol.api import Request, RequestStruct, Response, ResponseHeader_v0
from aiokafka.protocol.metadata import MetadataRequest as AiokafkaMetadataRequest
from aiokafka.protocol.metadata import MetadataRequestStruct
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactBytes,
    CompactString,
    Int16,
    Int32,
    Int64,
)

from fanout.kafka.protocol.messages.flexible import (
    ANY_TOPIC_ID,
    NO_TAGS,
    TOPIC,
    Uuid,
    flexible_array,
    flexible_schema,
    rows,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_METADATA: Final = 3

_DESCRIBE_GROUPS: Final = 15
_LIST_GROUPS: Final = 16
_API_VERSIONS: Final = 18
_DESCRIBE_QUORUM: Final = 55
_FINALIZED_FEATURES: Final = 2  # the tag of the field
_LEVELS: Final = flexible_array(("name", CompactString()), ("max", Int16), ("min", Int16))
_QUORUM_LOG: Final = "__cluster_metadata"
_REPLICAS: Final = flexible_array(
    ("replica", Int32),
    ("log_end_offset", Int64),
    ("last_fetch_timestamp", Int64),
    ("last_caught_up_timestamp", Int64),
)


class MetadataResponse_v10(Response):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """The brokers and topics of a cluster, with the ids of the topics."""

    API_KEY = _METADATA
    API_VERSION = 10
    SCHEMA = flexible_schema(
        ("throttle_time_ms", Int32),
        rows(
            "brokers",
            ("node_id", Int32),
            ("host", CompactString()),
            ("port", Int32),
            ("rack", CompactString()),
        ),
        ("cluster_id", CompactString()),
        ("controller_id", Int32),
        rows(
            "topics",
            ("error_code", Int16),
            TOPIC,
            ("topic_id", Uuid),
            ("is_internal", Boolean),
            rows(
                "partitions",
                ("error_code", Int16),
                ("partition", Int32),
                ("leader", Int32),
                ("leader_epoch", Int32),
                ("replicas", CompactArray(Int32)),
                ("isr", CompactArray(Int32)),
                ("offline", CompactArray(Int32)),
            ),
            ("operations", Int32),
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
        rows("topics", ("topic_id", Uuid), TOPIC),
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


class MetadataRequest(Request[MetadataRequestStruct | MetadataRequest_v10]):  # type: ignore[misc]
    """Ask for topics, or all for None, with their ids where brokers have any; create none."""

    API_KEY = _METADATA

    def __init__(self, topics: Sequence[str] | None) -> None:
        self._topics = topics

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in version 10, or in one of aiokafka's."""
        if request_struct_class is not MetadataRequest_v10:
            plain = AiokafkaMetadataRequest(self._topics, allow_auto_topic_creation=False)
            return plain.build(request_struct_class)
        topics = None
        if self._topics is not None:
            topics = [(ANY_TOPIC_ID, topic, NO_TAGS) for topic in self._topics]
        return request_struct_class(topics, False, False, False, NO_TAGS)  # noqa: FBT003 - fields


class DescribeGroupsResponse_v5(Response):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """The states and members of groups, and what the principal may do with them (KIP-430)."""

    API_KEY = _DESCRIBE_GROUPS
    API_VERSION = 5
    SCHEMA = flexible_schema(
        ("throttle_time_ms", Int32),
        rows(
            "groups",
            ("error_code", Int16),
            ("group", CompactString()),
            ("state", CompactString()),
            ("protocol_type", CompactString()),
            ("protocol", CompactString()),
            rows(
                "members",
                ("member_id", CompactString()),
                ("instance_id", CompactString()),
                ("client_id", CompactString()),
                ("client_host", CompactString()),
                ("metadata", CompactBytes),
                ("assignment", CompactBytes),
            ),
            ("operations", Int32),
        ),
    )


class DescribeGroupsRequest_v5(RequestStruct):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """Ask for the states of groups."""

    FLEXIBLE_VERSION = True
    API_KEY = _DESCRIBE_GROUPS
    API_VERSION = 5
    RESPONSE_TYPE = DescribeGroupsResponse_v5
    SCHEMA = flexible_schema(("groups", CompactArray(CompactString())), ("operations", Boolean))


class GroupOperationsRequest(Request[DescribeGroupsRequest_v5]):  # type: ignore[misc]
    """Ask for the state of a group, and what the principal may do with it."""

    API_KEY = _DESCRIBE_GROUPS

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in the only version."""
        return request_struct_class([self._group], True, NO_TAGS)  # noqa: FBT003 - a field


class ListGroupsResponse_v5(Response):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """The groups that a broker coordinates, with their types (KIP-848)."""

    API_KEY = _LIST_GROUPS
    API_VERSION = 5
    SCHEMA = flexible_schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        rows(
            "groups",
            ("group", CompactString()),
            ("protocol_type", CompactString()),
            ("state", CompactString()),
            ("type", CompactString()),
        ),
    )


class ListGroupsRequest_v5(RequestStruct):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """Ask a broker for the groups that it coordinates."""

    FLEXIBLE_VERSION = True
    API_KEY = _LIST_GROUPS
    API_VERSION = 5
    RESPONSE_TYPE = ListGroupsResponse_v5
    SCHEMA = flexible_schema(
        ("states", CompactArray(CompactString())), ("types", CompactArray(CompactString()))
    )


class GroupTypesRequest(Request[ListGroupsRequest_v5]):  # type: ignore[misc]
    """Ask a broker for the groups that it coordinates."""

    API_KEY = _LIST_GROUPS

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in the only version."""
        return request_struct_class([], [], NO_TAGS)


class ApiVersionsResponse_v3(Response):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """The requests that a broker knows; the levels of features are in tagged fields (KIP-584)."""

    API_KEY = _API_VERSIONS
    API_VERSION = 3
    SCHEMA = flexible_schema(
        ("error_code", Int16),
        rows("api_versions", ("api_key", Int16), ("min", Int16), ("max", Int16)),
        ("throttle_time_ms", Int32),
    )


class ApiVersionsRequest_v3(RequestStruct):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """Ask a broker for what it knows."""

    FLEXIBLE_VERSION = True
    API_KEY = _API_VERSIONS
    API_VERSION = 3
    RESPONSE_TYPE = ApiVersionsResponse_v3
    SCHEMA = flexible_schema(("name", CompactString()), ("version", CompactString()))

    def parse_response_header(self, read_buffer: Any) -> Any:
        """Read the header of the answer, which has no tags in any version (KIP-511)."""
        return ResponseHeader_v0.decode(read_buffer)


class FeaturesRequest(Request[ApiVersionsRequest_v3]):  # type: ignore[misc]
    """Ask a broker for the levels of the cluster's features."""

    API_KEY = _API_VERSIONS

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in the only version."""
        return request_struct_class("fanout", "0", NO_TAGS)


def finalized_features(response: Any) -> Mapping[str, int]:
    """Return the level of each feature that the cluster has enabled, from `FeaturesRequest`."""
    data = response.tags.get(_FINALIZED_FEATURES)
    levels = [] if data is None else _LEVELS.decode(BytesIO(data))
    return {name: level for name, level, *_ in levels}


class DescribeQuorumResponse_v1(Response):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """The controllers, with the times at which the leader heard of each, by its own clock."""

    API_KEY = _DESCRIBE_QUORUM
    API_VERSION = 1
    SCHEMA = flexible_schema(
        ("error_code", Int16),
        rows(
            "topics",
            TOPIC,
            rows(
                "partitions",
                ("partition", Int32),
                ("error_code", Int16),
                ("leader", Int32),
                ("leader_epoch", Int32),
                ("high_watermark", Int64),
                ("voters", _REPLICAS),
                ("observers", _REPLICAS),
            ),
        ),
    )


class DescribeQuorumRequest_v1(RequestStruct):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """Ask for the controllers (KIP-595, KIP-836)."""

    FLEXIBLE_VERSION = True
    API_KEY = _DESCRIBE_QUORUM
    API_VERSION = 1
    RESPONSE_TYPE = DescribeQuorumResponse_v1
    SCHEMA = flexible_schema(rows("topics", TOPIC, rows("partitions", ("partition", Int32))))


class QuorumRequest(Request[DescribeQuorumRequest_v1]):  # type: ignore[misc]
    """Ask for the controllers of the cluster."""

    API_KEY = _DESCRIBE_QUORUM

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in the only version."""
        return request_struct_class([(_QUORUM_LOG, [(0, NO_TAGS)], NO_TAGS)], NO_TAGS)
