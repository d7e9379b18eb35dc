"""The version of Fetch that finds a log which was cut off, which aiokafka lacks.

It follows FetchRequest.json and FetchResponse.json of Kafka in version 12, which names the leader
epoch of the record before (KIP-320, KIP-595); later versions do not name topics.

A stream of single records sends and reads a thousand of them a second. Field by field, as aiokafka
does it, that would take longer than to decode the records.
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
    Schema,
    TaggedFields,
    UnsignedVarInt32,
)

from fanout.kafka.protocol.messages.flexible import NO_TAGS, TOPIC, flexible_schema, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

_FETCH: Final = 1
_DIVERGING_EPOCH: Final = 0  # the tag of the field
_EPOCH_END: Final = struct.Struct(">iq")
# The fields of fixed length that follow each other, and the first byte of a number behind them.
_BYTE: Final = struct.Struct("B")
_REQUEST: Final = struct.Struct(">iiiibii")
_ASKED: Final = struct.Struct(">iiqiqiB")
_ANSWER: Final = struct.Struct(">ihiB")
_ANSWERED: Final = struct.Struct(">ihqqqB")
_RECORDS: Final = struct.Struct(">iB")
_NAME: Final = CompactString()
_ABORTED: Final = Schema(("producer_id", Int64), ("first_offset", Int64), ("tags", TaggedFields))
_EMPTY: Final = b"\0"  # no tagged fields
_NONE: Final = b"\1"  # an array without elements
_LAST_SHIFT: Final = 28  # of the fifth byte of a length
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

    @classmethod
    def decode(cls, data: Any) -> FetchResponse_v12:
        """Read an answer, as its schema says.

        Raises:
            ValueError: If it does not follow the schema.
            struct.error: If it ends too early.
        """
        throttle, error, session, count = _ANSWER.unpack(data.read(_ANSWER.size))
        topics = [
            (_NAME.decode(data), _read_partitions(data), _tags(data))
            for _ in range(_length(data, count) - 1)
        ]
        return cls(throttle, error, session, topics, _tags(data))


def _read_partitions(data: Any) -> list[tuple[Any, ...]]:
    """Read the partitions of a topic, each as a tuple of its fields."""
    found: list[tuple[Any, ...]] = []
    for _ in range(_length(data) - 1):
        *fields, count = _ANSWERED.unpack(data.read(_ANSWERED.size))
        aborted = [_ABORTED.decode(data) for _ in range(_length(data, count) - 1)]
        replica, size = _RECORDS.unpack(data.read(_RECORDS.size))
        nbytes = _length(data, size) - 1
        # Where they end too early, the tagged fields behind them are missing.
        records = data.read(nbytes) if nbytes >= 0 else None
        found.append((*fields, aborted, replica, records, _tags(data)))
    return found


def _tags(data: Any) -> dict[int, bytes]:
    """Read tagged fields, which most structures do not have."""
    found: dict[int, bytes] = {}
    last = -1
    for _ in range(_length(data)):
        tag, size = _length(data), _length(data)
        if tag <= last:
            raise ValueError("tagged fields are not in their order")
        last, found[tag] = tag, data.read(size)
    return found


def _length(data: Any, byte: int | None = None) -> int:
    """Read an unsigned number of up to five bytes, whose first one may have been read."""
    if byte is None:
        (byte,) = _BYTE.unpack(data.read(1))
    number, shift = byte & 0x7F, 0
    while byte & 0x80:
        shift += 7
        if shift > _LAST_SHIFT:
            raise ValueError("a length has more than five bytes")
        (byte,) = _BYTE.unpack(data.read(1))
        number |= (byte & 0x7F) << shift
    return number


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

    def encode(self) -> bytes:
        """Return the request as bytes, as its schema says."""
        *numbers, topics, forgotten, rack, tags = (
            getattr(self, name) for name in self.SCHEMA.names
        )
        assert not forgotten, "there is no session whose partitions could be forgotten"
        assert not tags, "the request has no tagged fields"
        pieces = [_REQUEST.pack(*numbers), UnsignedVarInt32.encode(len(topics) + 1)]
        for topic, partitions, _ in topics:
            pieces += (_NAME.encode(topic), UnsignedVarInt32.encode(len(partitions) + 1))
            pieces += [_ASKED.pack(*fields, 0) for *fields, _ in partitions]
            pieces.append(_EMPTY)
        return b"".join((*pieces, _NONE, _NAME.encode(rack), _EMPTY))


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
