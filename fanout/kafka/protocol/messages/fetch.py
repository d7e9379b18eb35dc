"""The version of Fetch that finds a log which was cut off, which aiokafka lacks.

It follows FetchRequest.json and FetchResponse.json of Kafka in version 12, which names the leader
epoch of the record before (KIP-320, KIP-595); later versions do not name topics.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.fetch import FetchRequest, FetchRequestStruct
from aiokafka.protocol.types import (
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
)

from fanout.kafka.protocol.messages.flexible import NO_TAGS, TOPIC, flexible_schema, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

_FETCH: Final = 1
_DIVERGING_EPOCH: Final = 0  # the tag of the field
_EPOCH_END: Final = struct.Struct(">iq")
_NO: Final = -1  # a replica, a leader epoch, the epoch of a session, the start of a log


class FetchResponse_v12(Response):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """Record batches; the tags of a partition say where its log diverges."""

    API_KEY = _FETCH
    API_VERSION = 12
    SCHEMA = flexible_schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("session_id", Int32),
        rows(
            "topics",
            TOPIC,
            rows(
                "partitions",
                ("partition", Int32),
                ("error_code", Int16),
                *((name, Int64) for name in ("high_watermark", "last_stable", "log_start")),
                rows("aborted", ("producer_id", Int64), ("first_offset", Int64)),
                ("preferred_read_replica", Int32),
                ("records", CompactBytes),
            ),
        ),
    )


class FetchRequest_v12(RequestStruct):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """Ask for records, and whether the log still has the one before them."""

    FLEXIBLE_VERSION = True
    API_KEY = _FETCH
    API_VERSION = 12
    RESPONSE_TYPE = FetchResponse_v12
    SCHEMA = flexible_schema(
        *((name, Int32) for name in ("replica_id", "max_wait_ms", "min_bytes", "max_bytes")),
        ("isolation_level", Int8),
        *((name, Int32) for name in ("session_id", "session_epoch")),
        rows(
            "topics",
            TOPIC,
            rows(
                "partitions",
                ("partition", Int32),
                ("current_leader_epoch", Int32),
                ("fetch_offset", Int64),
                ("last_fetched_epoch", Int32),
                ("log_start_offset", Int64),
                ("max_bytes", Int32),
            ),
        ),
        rows("forgotten", TOPIC, ("partitions", CompactArray(Int32))),
        ("rack_id", CompactString()),
    )


class CheckedFetchRequest(Request[FetchRequestStruct | FetchRequest_v12]):  # type: ignore[misc]
    """Fetch partitions, each from an offset, a number of bytes, after a record of a leader epoch.

    The epoch is -1 where it is not known. Brokers before Kafka 2.7 do not look at it.
    """

    API_KEY = _FETCH

    def __init__(
        self,
        limits: tuple[int, int, int, int],
        topics: Sequence[tuple[str, Sequence[tuple[int, int, int, int]]]],
        rack_id: str,
    ) -> None:
        self._limits = limits
        self._topics = topics
        self._rack_id = rack_id

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in version 12, or in one of aiokafka's."""
        if request_struct_class is not FetchRequest_v12:
            older = [(topic, [row[:3] for row in rows]) for topic, rows in self._topics]
            return FetchRequest(*self._limits, older, self._rack_id).build(request_struct_class)
        topics = [
            (
                topic,
                [(n, _NO, at, epoch, _NO, size, NO_TAGS) for n, at, size, epoch in rows],
                NO_TAGS,
            )
            for topic, rows in self._topics
        ]
        rest: Any = (0, _NO, topics, [], self._rack_id, NO_TAGS)
        return request_struct_class(_NO, *self._limits, *rest)


def diverging_epoch(last: object) -> tuple[Any, ...] | None:
    """Return the last leader epoch that a log shares with its reader, and where it ends.

    It is in the tagged fields, the last field of a partition in an answer.
    """
    found = last.get(_DIVERGING_EPOCH, b"") if isinstance(last, dict) else b""
    return _EPOCH_END.unpack_from(found) if len(found) >= _EPOCH_END.size else None
