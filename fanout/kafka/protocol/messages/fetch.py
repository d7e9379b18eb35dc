"""The version of Fetch that finds a log which was cut off, which aiokafka lacks.

It follows FetchRequest.json and FetchResponse.json of Kafka in version 12, the first with the
leader epoch of the record before the fetch, and the last that names topics (KIP-595, KIP-320).
"""

from __future__ import annotations

from io import BytesIO
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
    from collections.abc import Mapping, Sequence

_FETCH: Final = 1
_DIVERGING_EPOCH: Final = 0  # the tag of the field
_NONE: Final = -1
_NO_SESSION: Final = (0, -1)


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
                ("high_watermark", Int64),
                ("last_stable_offset", Int64),
                ("log_start_offset", Int64),
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
        ("replica_id", Int32),
        ("max_wait_ms", Int32),
        ("min_bytes", Int32),
        ("max_bytes", Int32),
        ("isolation_level", Int8),
        ("session_id", Int32),
        ("session_epoch", Int32),
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
            topics = [
                (topic, [row[:3] for row in partitions]) for topic, partitions in self._topics
            ]
            return FetchRequest(*self._limits, topics, self._rack_id).build(request_struct_class)
        rows_by_topic = [
            (
                topic,
                [
                    (number, _NONE, offset, epoch, _NONE, max_bytes, NO_TAGS)
                    for number, offset, max_bytes, epoch in partitions
                ],
                NO_TAGS,
            )
            for topic, partitions in self._topics
        ]
        return request_struct_class(
            _NONE, *self._limits, *_NO_SESSION, rows_by_topic, [], self._rack_id, NO_TAGS
        )


def diverging_epoch(tags: Mapping[int, bytes]) -> tuple[int, int] | None:
    """Return the last leader epoch that a log shares with its reader, and where it ends."""
    if _DIVERGING_EPOCH not in tags:
        return None
    data = BytesIO(tags[_DIVERGING_EPOCH])
    return Int32.decode(data), Int64.decode(data)
