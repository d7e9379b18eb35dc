"""Calls about transactions that aiokafka lacks, as classes of Kafka's protocol.

They are laid out as in OffsetFetchRequest.json and DescribeTransactionsRequest.json of Kafka
(clients/src/main/resources/common/message), from the compact types of KIP-482.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ("CommittedOffsetsRequest", "DescribeTransactionsRequest")

_NO_TAGS: dict[int, bytes] = {}
_OFFSET_FETCH = 9
_DESCRIBE_TRANSACTIONS = 65


class OffsetFetchResponse_v7(Response):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """What a group has committed; a partition with an offset of an open transaction has 88."""

    API_KEY = _OFFSET_FETCH
    API_VERSION = 7
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", CompactString()),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", CompactString()),
                        ("error_code", Int16),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("error_code", Int16),
        ("tags", TaggedFields),
    )


class OffsetFetchRequest_v7(RequestStruct):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """Ask what a group has committed; since version 7 open transactions are told (KIP-447)."""

    FLEXIBLE_VERSION = True
    API_KEY = _OFFSET_FETCH
    API_VERSION = 7
    RESPONSE_TYPE = OffsetFetchResponse_v7
    SCHEMA = Schema(
        ("group", CompactString()),
        (
            "topics",
            CompactArray(
                ("topic", CompactString()),
                ("partitions", CompactArray(Int32)),
                ("tags", TaggedFields),
            ),
        ),
        ("require_stable", Boolean),
        ("tags", TaggedFields),
    )


class CommittedOffsetsRequest(Request[OffsetFetchRequest_v7]):  # type: ignore[misc]
    """Ask for the offsets of a group in partition 0 of topics.

    Args:
        group: The group.
        topics: The topics; None for all in which the group has committed. An offset of an open
            transaction in a topic without another one is then left out.
        stable: Whether an offset that an open transaction may change is told as error 88.
    """

    API_KEY = _OFFSET_FETCH

    def __init__(self, group: str, topics: Sequence[str] | None, *, stable: bool) -> None:
        self._group = group
        self._topics = topics
        self._stable = stable

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in the only version."""
        topics = self._topics
        named = None if topics is None else [(topic, [0], _NO_TAGS) for topic in topics]
        return request_struct_class(self._group, named, self._stable, _NO_TAGS)


class DescribeTransactionsResponse_v0(Response):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """What a coordinator knows of some transactional ids."""

    API_KEY = _DESCRIBE_TRANSACTIONS
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "states",
            CompactArray(
                ("error_code", Int16),
                ("transactional_id", CompactString()),
                ("state", CompactString()),
                ("timeout_ms", Int32),
                ("start_time_ms", Int64),
                ("producer_id", Int64),
                ("producer_epoch", Int16),
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


class DescribeTransactionsRequest_v0(RequestStruct):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """Ask what a coordinator knows of some transactional ids (KIP-664)."""

    FLEXIBLE_VERSION = True
    API_KEY = _DESCRIBE_TRANSACTIONS
    API_VERSION = 0
    RESPONSE_TYPE = DescribeTransactionsResponse_v0
    SCHEMA = Schema(("ids", CompactArray(CompactString())), ("tags", TaggedFields))


class DescribeTransactionsRequest(Request[DescribeTransactionsRequest_v0]):  # type: ignore[misc]
    """Ask what a coordinator knows of a transactional id.

    Args:
        transactional_id: The id.
    """

    API_KEY = _DESCRIBE_TRANSACTIONS

    def __init__(self, transactional_id: str) -> None:
        self._transactional_id = transactional_id

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in the only version."""
        return request_struct_class([self._transactional_id], _NO_TAGS)
