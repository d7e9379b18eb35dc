"""Requests about the members and offsets of consumer groups, which aiokafka lacks.

They follow ConsumerGroupHeartbeatRequest.json (KIP-848), OffsetCommitRequest.json and
OffsetFetchRequest.json of Kafka (clients/src/main/resources/common/message).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.commit import OffsetCommitRequest_v3, OffsetFetchRequest_v3
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int8,
    Int16,
    Int32,
)

from fanout.kafka.partitions import partition_rows
from fanout.kafka.protocol.messages.flexible import (
    NO_TAGS,
    OFFSETS,
    PARTITION_CODES,
    STORED_OFFSETS,
    TOPIC,
    TOPIC_PARTITIONS,
    Uuid,
    flexible_array,
    flexible_schema,
    offset_rows,
    rows,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from io import BytesIO

    from fanout.kafka.partitions import Partition

_OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
_HEARTBEAT: Final = 68
_DESCRIBE: Final = 69
_BY_ID: Final = flexible_array(("topic_id", Uuid), ("partitions", CompactArray(Int32)))


class _Assignment(AbstractType[Any]):  # type: ignore[misc]  # aiokafka is untyped
    """A structure that may be null: a byte before it says so."""

    _SCHEMA = flexible_schema(("topic_partitions", _BY_ID))

    @classmethod
    def encode(cls, value: Any) -> bytes:
        """Return the bytes of the structure."""
        encoded: bytes = Int8.encode(-1) if value is None else Int8.encode(1)
        return encoded if value is None else encoded + cls._SCHEMA.encode(value)

    @classmethod
    def decode(cls, data: BytesIO) -> Any:
        """Read the structure; None where it is null."""
        return None if Int8.decode(data) < 0 else cls._SCHEMA.decode(data)


class ConsumerGroupHeartbeatResponse_v1(Response):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """What a member is to own; the assignment is null where it has not changed."""

    API_KEY = _HEARTBEAT
    API_VERSION = 1
    SCHEMA = flexible_schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("error_message", CompactString()),
        ("member_id", CompactString()),
        ("member_epoch", Int32),
        ("heartbeat_interval_ms", Int32),
        ("assignment", _Assignment),
    )


class ConsumerGroupHeartbeatRequest_v1(RequestStruct):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """Join, stay, say what is owned, and leave; since version 1 the member chooses its id."""

    FLEXIBLE_VERSION = True
    API_KEY = _HEARTBEAT
    API_VERSION = 1
    RESPONSE_TYPE = ConsumerGroupHeartbeatResponse_v1
    SCHEMA = flexible_schema(
        ("group", CompactString()),
        ("member_id", CompactString()),
        ("member_epoch", Int32),
        ("instance_id", CompactString()),
        ("rack", CompactString()),
        ("rebalance_timeout_ms", Int32),
        ("topics", CompactArray(CompactString())),
        ("topic_regex", CompactString()),
        ("assignor", CompactString()),
        ("topic_partitions", _BY_ID),
    )


class HeartbeatRequest(Request[ConsumerGroupHeartbeatRequest_v1]):  # type: ignore[misc]
    """Say that a member is there; None leaves as it was what a full request tells."""

    API_KEY = _HEARTBEAT

    def __init__(
        self,
        group: str,
        member: tuple[str, int, str | None],
        *,
        rebalance_timeout: float | None = None,
        topics: Sequence[str] | None = None,
        owned: Mapping[bytes, Sequence[int]] | None = None,
    ) -> None:
        self._group = group
        self._member = member
        self._timeout = rebalance_timeout
        self._topics = topics
        self._owned = owned

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in the only version."""
        timeout = -1 if self._timeout is None else round(self._timeout * 1000)
        owned = None
        if self._owned is not None:
            owned = [(id_, numbers, NO_TAGS) for id_, numbers in self._owned.items()]
        topics = None if self._topics is None else list(self._topics)
        return request_struct_class(
            self._group, *self._member, None, timeout, topics, None, None, owned, NO_TAGS
        )


_OWNED: Final = flexible_schema(
    rows("assigned", ("topic_id", Uuid), TOPIC, ("partitions", CompactArray(Int32))),
)


class ConsumerGroupDescribeResponse_v0(Response):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """The states and members of groups."""

    API_KEY = _DESCRIBE
    API_VERSION = 0
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
                ("instance_id", CompactString()),
                ("rack", CompactString()),
                ("epoch", Int32),
                ("client_id", CompactString()),
                ("client_host", CompactString()),
                ("topics", CompactArray(CompactString())),
                ("topic_regex", CompactString()),
                ("assignment", _OWNED),
                ("target", _OWNED),
            ),
            ("operations", Int32),
        ),
    )


class ConsumerGroupDescribeRequest_v0(RequestStruct):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """Ask for the states and members of groups (ConsumerGroupDescribeRequest.json)."""

    FLEXIBLE_VERSION = True
    API_KEY = _DESCRIBE
    API_VERSION = 0
    RESPONSE_TYPE = ConsumerGroupDescribeResponse_v0
    SCHEMA = flexible_schema(("groups", CompactArray(CompactString())), ("operations", Boolean))


class ConsumerMembersRequest(Request[ConsumerGroupDescribeRequest_v0]):  # type: ignore[misc]
    """Ask for the members of a group."""

    API_KEY = _DESCRIBE

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in the only version."""
        return request_struct_class([self._group], False, NO_TAGS)  # noqa: FBT003 - a field


class OffsetCommitResponse_v8(Response):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """The error code of each partition."""

    API_KEY = _OFFSET_COMMIT
    API_VERSION = 8
    SCHEMA = flexible_schema(
        ("throttle_time_ms", Int32),
        rows("topics", TOPIC, PARTITION_CODES),
    )


class OffsetCommitResponse_v9(Response):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """The same."""

    API_KEY = _OFFSET_COMMIT
    API_VERSION = 9
    SCHEMA = OffsetCommitResponse_v8.SCHEMA


class OffsetCommitRequest_v8(RequestStruct):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """Commit offsets; since version 6 with leader epochs."""

    FLEXIBLE_VERSION = True
    API_KEY = _OFFSET_COMMIT
    API_VERSION = 8
    RESPONSE_TYPE = OffsetCommitResponse_v8
    SCHEMA = flexible_schema(
        ("group", CompactString()),
        ("member_epoch", Int32),
        ("member_id", CompactString()),
        ("instance_id", CompactString()),
        OFFSETS,
    )


class OffsetCommitRequest_v9(RequestStruct):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """Commit offsets as a member; since version 9 by its epoch."""

    FLEXIBLE_VERSION = True
    API_KEY = _OFFSET_COMMIT
    API_VERSION = 9
    RESPONSE_TYPE = OffsetCommitResponse_v9
    SCHEMA = OffsetCommitRequest_v8.SCHEMA


class GroupCommitRequest(Request[OffsetCommitRequest_v3 | OffsetCommitRequest_v8]):  # type: ignore[misc]
    """Commit offsets of partitions, each with a leader epoch and a text, without a member.

    Brokers before Kafka 2.4 get no leader epochs.
    """

    API_KEY = _OFFSET_COMMIT

    def __init__(
        self, group: str, topics: Sequence[tuple[str, Sequence[tuple[int, int, int, str]]]]
    ) -> None:
        self._group = group
        self._topics = topics

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in a version: no generation, no member, and no retention."""
        if request_struct_class is OffsetCommitRequest_v8:
            topics = offset_rows(self._topics)
            return request_struct_class(self._group, -1, "", None, topics, NO_TAGS)
        named = [
            (topic, [(number, at, text) for number, at, _, text in partitions])
            for topic, partitions in self._topics
        ]
        return request_struct_class(self._group, -1, "", -1, named)


class MemberCommitRequest(Request[OffsetCommitRequest_v9]):  # type: ignore[misc]
    """Commit offsets of partitions, each with a leader epoch and a text, as a member."""

    API_KEY = _OFFSET_COMMIT

    def __init__(
        self,
        group: str,
        member: tuple[str, int, str | None],
        topics: Sequence[tuple[str, Sequence[tuple[int, int, int, str]]]],
    ) -> None:
        self._group = group
        self._member = member
        self._topics = topics

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in the only version."""
        member_id, epoch, instance_id = self._member
        topics = offset_rows(self._topics)
        return request_struct_class(self._group, epoch, member_id, instance_id, topics, NO_TAGS)


class OffsetFetchResponse_v7(Response):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """The committed offsets of a group; the code is 88 where an open transaction has set one."""

    API_KEY = OFFSET_FETCH
    API_VERSION = 7
    SCHEMA = flexible_schema(
        ("throttle_time_ms", Int32),
        STORED_OFFSETS,
        ("error_code", Int16),
    )


class OffsetFetchRequest_v7(RequestStruct):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """Ask for committed offsets; since version 7 open transactions are reported (KIP-447)."""

    FLEXIBLE_VERSION = True
    API_KEY = OFFSET_FETCH
    API_VERSION = 7
    RESPONSE_TYPE = OffsetFetchResponse_v7
    SCHEMA = flexible_schema(
        ("group", CompactString()),
        ("topics", TOPIC_PARTITIONS),
        ("require_stable", Boolean),
    )


class StoredOffsetsRequest(Request[OffsetFetchRequest_v3 | OffsetFetchRequest_v7]):  # type: ignore[misc]
    """Ask for the offsets that a group has; `stored_offsets` reads the answer."""

    API_KEY = OFFSET_FETCH

    def __init__(self, group: str, topics: Sequence[tuple[str, Sequence[int]]]) -> None:
        self._group = group
        self._topics = topics

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in a version."""
        if request_struct_class is OffsetFetchRequest_v7:
            topics = [(topic, numbers, NO_TAGS) for topic, numbers in self._topics]
            return request_struct_class(self._group, topics, False, NO_TAGS)  # noqa: FBT003
        return request_struct_class(self._group, self._topics)


def stored_offsets(answer: Any) -> Iterator[tuple[Partition, int, int, int]]:
    """Yield partitions with their offsets, leader epochs or -1, and codes."""
    for partition, offset, *fields in partition_rows(answer.topics):
        if answer.API_VERSION == OffsetFetchRequest_v7.API_VERSION:
            epoch, _, code, _ = fields
        else:
            epoch, (_, code) = -1, fields
        yield partition, offset, epoch, code


class OffsetFetchResponse_v9(Response):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """The committed offsets of groups."""

    API_KEY = OFFSET_FETCH
    API_VERSION = 9
    SCHEMA = flexible_schema(
        ("throttle_time_ms", Int32),
        rows(
            "groups",
            ("group", CompactString()),
            STORED_OFFSETS,
            ("error_code", Int16),
        ),
    )


class OffsetFetchRequest_v9(RequestStruct):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """Ask for committed offsets as a member; since version 9 by its epoch."""

    FLEXIBLE_VERSION = True
    API_KEY = OFFSET_FETCH
    API_VERSION = 9
    RESPONSE_TYPE = OffsetFetchResponse_v9
    SCHEMA = flexible_schema(
        rows(
            "groups",
            ("group", CompactString()),
            ("member_id", CompactString()),
            ("member_epoch", Int32),
            ("topics", TOPIC_PARTITIONS),
        ),
        ("require_stable", Boolean),
    )


class MemberOffsetsRequest(Request[OffsetFetchRequest_v9]):  # type: ignore[misc]
    """Ask for the offsets that the group has, as a member; open transactions are reported."""

    API_KEY = OFFSET_FETCH

    def __init__(
        self,
        group: str,
        member: tuple[str, int, str | None],
        topics: Sequence[tuple[str, Sequence[int]]],
    ) -> None:
        self._group = group
        self._member = member
        self._topics = topics

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in the only version."""
        member_id, epoch, _ = self._member
        topics = [(topic, numbers, NO_TAGS) for topic, numbers in self._topics]
        group = (self._group, member_id, epoch, topics, NO_TAGS)
        return request_struct_class([group], True, NO_TAGS)  # noqa: FBT003 - require_stable
