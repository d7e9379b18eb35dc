"""Requests about transactions, and their answers, which aiokafka lacks.

They follow OffsetFetchRequest.json, DescribeTransactionsRequest.json and
TxnOffsetCommitRequest.json of Kafka (clients/src/main/resources/common/message).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
)

from fanout.kafka.protocol.messages.consumer_groups import OFFSET_FETCH, OffsetFetchRequest_v7
from fanout.kafka.protocol.messages.flexible import (
    NO_TAGS,
    OFFSETS,
    PARTITION_CODES,
    TOPIC,
    TOPIC_PARTITIONS,
    flexible_schema,
    offset_rows,
    rows,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_DESCRIBE_TRANSACTIONS = 65
_SET_OFFSETS = 28


class CommittedOffsetsRequest(Request[OffsetFetchRequest_v7]):  # type: ignore[misc]
    """Ask for the offsets of a group in partition 0 of topics; None asks for all with a commit.

    An offset of an open transaction in a topic without another one is then left out. With `stable`,
    an offset that an open transaction may change is reported as error 88.
    """

    API_KEY = OFFSET_FETCH

    def __init__(self, group: str, topics: Sequence[str] | None, *, stable: bool) -> None:
        self._group = group
        self._topics = topics
        self._stable = stable

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in the only version."""
        topics = self._topics
        named = None if topics is None else [(topic, [0], NO_TAGS) for topic in topics]
        return request_struct_class(self._group, named, self._stable, NO_TAGS)


class DescribeTransactionsResponse_v0(Response):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """The states of transactional ids."""

    API_KEY = _DESCRIBE_TRANSACTIONS
    API_VERSION = 0
    SCHEMA = flexible_schema(
        ("throttle_time_ms", Int32),
        rows(
            "states",
            ("error_code", Int16),
            ("transactional_id", CompactString()),
            ("state", CompactString()),
            ("timeout_ms", Int32),
            ("start_time_ms", Int64),
            ("producer_id", Int64),
            ("producer_epoch", Int16),
            ("topics", TOPIC_PARTITIONS),
        ),
    )


class DescribeTransactionsRequest_v0(RequestStruct):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """Ask for the states of transactional ids (KIP-664)."""

    FLEXIBLE_VERSION = True
    API_KEY = _DESCRIBE_TRANSACTIONS
    API_VERSION = 0
    RESPONSE_TYPE = DescribeTransactionsResponse_v0
    SCHEMA = flexible_schema(("ids", CompactArray(CompactString())))


class DescribeTransactionsRequest(Request[DescribeTransactionsRequest_v0]):  # type: ignore[misc]
    """Ask for the state of a transactional id."""

    API_KEY = _DESCRIBE_TRANSACTIONS

    def __init__(self, transactional_id: str) -> None:
        self._transactional_id = transactional_id

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in the only version."""
        return request_struct_class([self._transactional_id], NO_TAGS)


class TxnOffsetCommitResponse_v3(Response):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """The error code of each partition."""

    API_KEY = _SET_OFFSETS
    API_VERSION = 3
    SCHEMA = flexible_schema(
        ("throttle_time_ms", Int32),
        rows("errors", TOPIC, PARTITION_CODES),
    )


class TxnOffsetCommitRequest_v3(RequestStruct):  # type: ignore[misc]  # noqa: N801 - as aiokafka's
    """Set offsets in a transaction; since version 3 as a member, whom the group may refuse."""

    FLEXIBLE_VERSION = True
    API_KEY = _SET_OFFSETS
    API_VERSION = 3
    RESPONSE_TYPE = TxnOffsetCommitResponse_v3
    SCHEMA = flexible_schema(
        ("transactional_id", CompactString()),
        ("group", CompactString()),
        ("producer_id", Int64),
        ("producer_epoch", Int16),
        ("member_epoch", Int32),
        ("member_id", CompactString()),
        ("instance_id", CompactString()),
        OFFSETS,
    )


class TxnOffsetCommitRequest(Request[TxnOffsetCommitRequest_v3]):  # type: ignore[misc]
    """Set offsets in a transaction, as a member of their group (KIP-447) or of none."""

    API_KEY = _SET_OFFSETS

    def __init__(
        self,
        transaction: tuple[str, str, int, int],
        member: tuple[str, int, str | None],
        topics: Sequence[tuple[str, Sequence[tuple[int, int, int, str]]]],
    ) -> None:
        self._transaction = transaction
        self._member = member
        self._topics = topics

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in the only version."""
        member_id, epoch, instance_id = self._member
        who = (epoch, member_id, instance_id)
        topics = offset_rows(self._topics)
        return request_struct_class(*self._transaction, *who, topics, NO_TAGS)
