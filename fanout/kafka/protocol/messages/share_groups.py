"""Calls about share groups that aiokafka lacks, as classes of Kafka's protocol.

They are laid out as in DescribeShareGroupOffsetsRequest.json, ShareGroupDescribeRequest.json and
IncrementalAlterConfigsRequest.json of Kafka (clients/src/main/resources/common/message).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiokafka.protocol.abstract import AbstractType
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

if TYPE_CHECKING:
    from collections.abc import Mapping
    from io import BytesIO

__all__ = ("AlterGroupRequest", "GroupMembersRequest", "GroupOffsetsRequest", "Uuid")

_NO_TAGS: Final[dict[int, bytes]] = {}
_DESCRIBE_OFFSETS: Final = 90
_DESCRIBE_GROUP: Final = 77
_ALTER_CONFIGS: Final = 44
_GROUP: Final = 32  # the kind of a resource whose configuration is altered
_SET: Final = 0


class Uuid(AbstractType[bytes]):  # type: ignore[misc]  # aiokafka is untyped
    """The sixteen bytes of an id."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        """Return them as they are."""
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        """Read them."""
        return data.read(16)


def _offsets(*lag: tuple[str, Any]) -> Any:
    """Lay an answer about offsets out, with the lag or without."""
    return Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            CompactArray(
                ("group", CompactString()),
                (
                    "topics",
                    CompactArray(
                        ("topic", CompactString()),
                        ("topic_id", Uuid),
                        (
                            "partitions",
                            CompactArray(
                                ("partition", Int32),
                                ("start_offset", Int64),
                                ("leader_epoch", Int32),
                                *lag,
                                ("error_code", Int16),
                                ("error_message", CompactString()),
                                ("tags", TaggedFields),
                            ),
                        ),
                        ("tags", TaggedFields),
                    ),
                ),
                ("error_code", Int16),
                ("error_message", CompactString()),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class DescribeShareGroupOffsetsResponse_v0(Response):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """Where groups begin in partitions."""

    API_KEY = _DESCRIBE_OFFSETS
    API_VERSION = 0
    SCHEMA = _offsets()


class DescribeShareGroupOffsetsResponse_v1(Response):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """Where groups begin in partitions, and how many records they have before them (KIP-1226)."""

    API_KEY = _DESCRIBE_OFFSETS
    API_VERSION = 1
    SCHEMA = _offsets(("lag", Int64))


class DescribeShareGroupOffsetsRequest_v0(RequestStruct):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """Ask where groups begin in partitions (KIP-932)."""

    FLEXIBLE_VERSION = True
    API_KEY = _DESCRIBE_OFFSETS
    API_VERSION = 0
    RESPONSE_TYPE = DescribeShareGroupOffsetsResponse_v0
    SCHEMA = Schema(
        (
            "groups",
            CompactArray(
                ("group", CompactString()),
                (
                    "topics",
                    CompactArray(
                        ("topic", CompactString()),
                        ("partitions", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
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
    """Ask where a group begins in every partition that it has.

    Args:
        group: The group.
    """

    API_KEY = _DESCRIBE_OFFSETS

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in either version."""
        return request_struct_class([(self._group, None, _NO_TAGS)], _NO_TAGS)


class ShareGroupDescribeResponse_v1(Response):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """What a coordinator knows of some groups, and their members."""

    API_KEY = _DESCRIBE_GROUP
    API_VERSION = 1
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            CompactArray(
                ("error_code", Int16),
                ("error_message", CompactString()),
                ("group", CompactString()),
                ("state", CompactString()),
                ("epoch", Int32),
                ("assignment_epoch", Int32),
                ("assignor", CompactString()),
                (
                    "members",
                    CompactArray(
                        ("member_id", CompactString()),
                        ("rack", CompactString()),
                        ("epoch", Int32),
                        ("client_id", CompactString()),
                        ("client_host", CompactString()),
                        ("topics", CompactArray(CompactString())),
                        (
                            "assigned",
                            CompactArray(
                                ("topic_id", Uuid),
                                ("topic", CompactString()),
                                ("partitions", CompactArray(Int32)),
                                ("tags", TaggedFields),
                            ),
                        ),
                        ("assignment_tags", TaggedFields),
                        ("tags", TaggedFields),
                    ),
                ),
                ("operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class ShareGroupDescribeRequest_v1(RequestStruct):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """Ask what a coordinator knows of some groups (KIP-932)."""

    FLEXIBLE_VERSION = True
    API_KEY = _DESCRIBE_GROUP
    API_VERSION = 1
    RESPONSE_TYPE = ShareGroupDescribeResponse_v1
    SCHEMA = Schema(
        ("groups", CompactArray(CompactString())),
        ("operations", Boolean),
        ("tags", TaggedFields),
    )


class GroupMembersRequest(Request[ShareGroupDescribeRequest_v1]):  # type: ignore[misc]
    """Ask who the members of a group are.

    Args:
        group: The group.
    """

    API_KEY = _DESCRIBE_GROUP

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in the only version."""
        return request_struct_class([self._group], False, _NO_TAGS)  # noqa: FBT003 - a field


class IncrementalAlterConfigsResponse_v0(Response):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """Whether settings were altered."""

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
    """Alter some settings, and leave the others (KIP-339)."""

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
    """Set some settings of a group.

    Args:
        group: The group.
        settings: The values by name.
    """

    API_KEY = _ALTER_CONFIGS

    def __init__(self, group: str, settings: Mapping[str, str]) -> None:
        self._group = group
        self._settings = settings

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in the only version."""
        configs = [(name, _SET, value) for name, value in self._settings.items()]
        return request_struct_class([(_GROUP, self._group, configs)], False)  # noqa: FBT003 - a field
