"""Requests about share groups, and their answers, which aiokafka lacks.

They follow DescribeShareGroupOffsetsRequest.json, ShareGroupDescribeRequest.json and
IncrementalAlterConfigsRequest.json of Kafka (clients/src/main/resources/common/message).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Array,
    Boolean,
    CompactArray,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)

from fanout.kafka.protocol.messages.flexible import (
    NO_TAGS,
    TOPIC,
    TOPIC_PARTITIONS,
    Uuid,
    flexible_schema,
    rows,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_DESCRIBE_OFFSETS: Final = 90
_DESCRIBE_GROUP: Final = 77
_ALTER_CONFIGS: Final = 44
_GROUP: Final = 32  # the type of a resource whose configuration is altered
_SET: Final = 0


def _offsets_schema(*lag: tuple[str, Any]) -> Any:
    """Return the schema of an answer about offsets, with the lag or without."""
    return flexible_schema(
        ("throttle_time_ms", Int32),
        rows(
            "groups",
            ("group", CompactString()),
            rows(
                "topics",
                TOPIC,
                ("topic_id", Uuid),
                rows(
                    "partitions",
                    ("partition", Int32),
                    ("start_offset", Int64),
                    ("leader_epoch", Int32),
                    *lag,
                    ("error_code", Int16),
                    ("error_message", CompactString()),
                ),
            ),
            ("error_code", Int16),
            ("error_message", CompactString()),
        ),
    )


class DescribeShareGroupOffsetsResponse_v0(Response):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """The start offsets of groups in partitions."""

    API_KEY = _DESCRIBE_OFFSETS
    API_VERSION = 0
    SCHEMA = _offsets_schema()


class DescribeShareGroupOffsetsResponse_v1(Response):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """The start offsets and the lag of groups in partitions (KIP-1226)."""

    API_KEY = _DESCRIBE_OFFSETS
    API_VERSION = 1
    SCHEMA = _offsets_schema(("lag", Int64))


class DescribeShareGroupOffsetsRequest_v0(RequestStruct):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """Ask for the start offsets of groups in partitions (KIP-932)."""

    FLEXIBLE_VERSION = True
    API_KEY = _DESCRIBE_OFFSETS
    API_VERSION = 0
    RESPONSE_TYPE = DescribeShareGroupOffsetsResponse_v0
    SCHEMA = flexible_schema(
        rows(
            "groups",
            ("group", CompactString()),
            ("topics", TOPIC_PARTITIONS),
        )
    )


class DescribeShareGroupOffsetsRequest_v1(RequestStruct):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """Ask for the lag as well."""

    FLEXIBLE_VERSION = True
    API_KEY = _DESCRIBE_OFFSETS
    API_VERSION = 1
    RESPONSE_TYPE = DescribeShareGroupOffsetsResponse_v1
    SCHEMA = DescribeShareGroupOffsetsRequest_v0.SCHEMA


_OffsetsVersion = DescribeShareGroupOffsetsRequest_v0 | DescribeShareGroupOffsetsRequest_v1


class GroupOffsetsRequest(Request[_OffsetsVersion]):  # type: ignore[misc]
    """Ask for the start offset of a group in each of its partitions."""

    API_KEY = _DESCRIBE_OFFSETS

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in either version."""
        return request_struct_class([(self._group, None, NO_TAGS)], NO_TAGS)


class ShareGroupDescribeResponse_v1(Response):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """The states and members of groups."""

    API_KEY = _DESCRIBE_GROUP
    API_VERSION = 1
    SCHEMA = flexible_schema(
        ("throttle_time_ms", Int32),
        rows(
            "groups",
            ("error_code", Int16),
            ("error_message", CompactString()),
            ("group", CompactString()),
            ("state", CompactString()),
            ("epoch", Int32),
            ("assignment_epoch", Int32),
            ("assignor", CompactString()),
            rows(
                "members",
                ("member_id", CompactString()),
                ("rack", CompactString()),
                ("epoch", Int32),
                ("client_id", CompactString()),
                ("client_host", CompactString()),
                ("topics", CompactArray(CompactString())),
                rows("assigned", ("topic_id", Uuid), TOPIC, ("partitions", CompactArray(Int32))),
                ("assignment_tags", TaggedFields),
            ),
            ("operations", Int32),
        ),
    )


class ShareGroupDescribeRequest_v1(RequestStruct):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """Ask for the states and members of groups (KIP-932)."""

    FLEXIBLE_VERSION = True
    API_KEY = _DESCRIBE_GROUP
    API_VERSION = 1
    RESPONSE_TYPE = ShareGroupDescribeResponse_v1
    SCHEMA = flexible_schema(("groups", CompactArray(CompactString())), ("operations", Boolean))


class GroupMembersRequest(Request[ShareGroupDescribeRequest_v1]):  # type: ignore[misc]
    """Ask for the members of a group."""

    API_KEY = _DESCRIBE_GROUP

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in the only version."""
        return request_struct_class([self._group], False, NO_TAGS)  # noqa: FBT003 - a field


class IncrementalAlterConfigsResponse_v0(Response):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """Whether configuration entries were altered."""

    API_KEY = _ALTER_CONFIGS
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "resources",
            Array(
                ("error_code", Int16),
                ("error_message", String()),
                ("resource_type", Int8),
                ("resource_name", String()),
            ),
        ),
    )


class IncrementalAlterConfigsRequest_v0(RequestStruct):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """Alter some configuration entries, and keep the others (KIP-339)."""

    API_KEY = _ALTER_CONFIGS
    API_VERSION = 0
    RESPONSE_TYPE = IncrementalAlterConfigsResponse_v0
    SCHEMA = Schema(
        (
            "resources",
            Array(
                ("resource_type", Int8),
                ("resource_name", String()),
                ("configs", Array(("name", String()), ("operation", Int8), ("value", String()))),
            ),
        ),
        ("validate_only", Boolean),
    )


class AlterGroupRequest(Request[IncrementalAlterConfigsRequest_v0]):  # type: ignore[misc]
    """Set some configuration entries of a group."""

    API_KEY = _ALTER_CONFIGS

    def __init__(self, group: str, settings: Mapping[str, str]) -> None:
        self._group = group
        self._settings = settings

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in the only version."""
        configs = [(name, _SET, value) for name, value in self._settings.items()]
        return request_struct_class([(_GROUP, self._group, configs)], False)  # noqa: FBT003 - a field
