"""The version of Fetch that finds a log which was cut off, which aiokafka lacks.

It follows FetchRequest.json and FetchResponse.json of Kafka in version 12, which names the leader
epoch of the record before (KIP-320, KIP-595); later versions do not name topics.

A stream of single records sends and reads a thousand of them a second. Field by field, as aiokafka
does it, that would take longer than to decode the records.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

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
    TaggedFields,
    UnsignedVarInt32,
)

from fanout.kafka.protocol.messages.flexible import NO_TAGS, TOPIC, flexible_schema, rows

if TYPE_CHECKING:
    from collections.abc import Sequence

_FETCH: Final = 1
_VERSION: Final = 12
_DIVERGING_EPOCH: Final = 0  # the tag of the field
_EPOCH_END: Final = struct.Struct(">iq")
# The fields of fixed length that follow each other.
_HEADER: Final = struct.Struct(">hhih")
_REQUEST: Final = struct.Struct(">iiiibii")
_ASKED: Final = struct.Struct(">iiqiqiB")
_NUMBER: Final = struct.Struct(">i")
_ANSWER: Final = struct.Struct(">ihi")
_ANSWERED: Final = struct.Struct(">ihqqq")
_ABORTED: Final = struct.Struct(">qq")
_NONE: Final = 1  # the length of an array without elements; 0 is that of no array
_NO_TAGS: Final = b"\0"
_MORE: Final = 0x80  # a byte of a length after which another one comes
_LAST_SHIFT: Final = 28  # of the fifth byte of a length
_NO: Final = -1  # a replica, a leader epoch, the epoch of a session, the start of a log
_COPIED: Final = 32 * 1024
_WHOLE: Final = 1 << 31  # more than an answer can have


@final
class _RequestHeader(NamedTuple):
    """The header of a request, in aiokafka's manner."""

    data: bytes

    def encode(self) -> bytes:
        """Return it as bytes."""
        return self.data


@final
class _ResponseHeader(NamedTuple):
    """The header of an answer."""

    correlation_id: int


class FetchResponse_v12(Response):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """Record batches; the tags of a partition say where its log diverges."""

    API_KEY = _FETCH
    API_VERSION = _VERSION
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
        whole = memoryview(data.read(_WHOLE))
        try:
            topics, at = _read_topics(whole, _ANSWER.size)
            tags, _ = _read_tags(whole, at)
        except IndexError:
            raise ValueError("the answer ends too early") from None
        return cls(*_ANSWER.unpack_from(whole), topics, tags)


def _read_topics(data: memoryview, at: int) -> tuple[list[tuple[Any, ...]], int]:
    """Read topics, each with its partitions; return them, and where they end."""
    found: list[tuple[Any, ...]] = []
    count, at = _length(data, at)
    for _ in range(count - 1):
        size, at = _length(data, at)
        end = at + max(size - 1, 0)
        name = None if not size else str(data[at:end], "utf-8")
        partitions, at = _read_partitions(data, end)
        tags, at = _read_tags(data, at)
        found.append((name, partitions, tags))
    return found, at


def _read_partitions(data: memoryview, at: int) -> tuple[list[tuple[Any, ...]], int]:
    """Read the partitions of a topic, each as a tuple of its fields; return where they end."""
    found: list[tuple[Any, ...]] = []
    count, at = _length(data, at)
    for _ in range(count - 1):
        fields = _ANSWERED.unpack_from(data, at)
        aborted, at = _read_aborted(data, at + _ANSWERED.size)
        replica = _NUMBER.unpack_from(data, at)
        size, at = _length(data, at + _NUMBER.size)
        end = at + max(size - 1, 0)
        # Where they end too early, the tagged fields behind them are missing.
        records = _records(data, at, end) if size else None
        tags, at = _read_tags(data, end)
        found.append((*fields, aborted, *replica, records, tags))
    return found, at


def _records(data: memoryview, at: int, end: int) -> bytes | memoryview:
    """Return the records of a partition; a few are copied, or would keep the whole answer."""
    return bytes(data[at:end]) if end - at <= _COPIED < len(data) else data[at:end]


def _read_aborted(data: memoryview, at: int) -> tuple[list[tuple[Any, ...]], int]:
    """Read the aborted transactions of a partition, which most have not; return where they end."""
    found: list[tuple[Any, ...]] = []
    if data[at] <= _NONE:
        return found, at + 1
    count, at = _length(data, at)
    for _ in range(count - 1):
        transaction = _ABORTED.unpack_from(data, at)
        tags, at = _read_tags(data, at + _ABORTED.size)
        found.append((*transaction, tags))
    return found, at


def _read_tags(data: memoryview, at: int) -> tuple[dict[int, bytes], int]:
    """Read tagged fields, which most structures have not; return where they end."""
    found: dict[int, bytes] = {}
    if not data[at]:
        return found, at + 1
    last = -1
    count, at = _length(data, at)
    for _ in range(count):
        tag, at = _length(data, at)
        size, at = _length(data, at)
        if tag <= last:
            raise ValueError("tagged fields are not in their order")
        last, found[tag] = tag, bytes(data[at : at + size])
        at += size
    return found, at


def _length(data: memoryview, at: int) -> tuple[int, int]:
    """Read an unsigned number of up to five bytes; return it, and where it ends."""
    number, shift = data[at], 0
    if number < _MORE:
        return number, at + 1
    number &= ~_MORE
    while True:
        at, shift = at + 1, shift + 7
        if shift > _LAST_SHIFT:
            raise ValueError("a length has more than five bytes")
        byte = data[at]
        number |= (byte & ~_MORE) << shift
        if byte < _MORE:
            return number, at + 1


class FetchRequest_v12(RequestStruct):  # type: ignore[misc]  # noqa: N801 - named as aiokafka's
    """Ask for records, and whether the log still has the one before them."""

    FLEXIBLE_VERSION = True
    API_KEY = _FETCH
    API_VERSION = _VERSION
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

    def build_request_header(self, correlation_id: int, client_id: str) -> _RequestHeader:
        """Return what stands before the request."""
        client = client_id.encode()
        head = _HEADER.pack(_FETCH, _VERSION, correlation_id, len(client))
        return _RequestHeader(b"".join((head, client, _NO_TAGS)))

    def parse_response_header(self, read_buffer: Any) -> _ResponseHeader:
        """Read what stands before the answer."""
        (correlation_id,) = _NUMBER.unpack(read_buffer.read(_NUMBER.size))
        TaggedFields.decode(read_buffer)
        return _ResponseHeader(correlation_id)

    def encode(self) -> bytes:
        """Return the request as bytes, as its schema says."""
        *numbers, topics, forgotten, rack, tags = (
            getattr(self, name) for name in self.SCHEMA.names
        )
        assert not forgotten, "there is no session whose partitions could be forgotten"
        assert not tags, "the request has no tagged fields"
        pieces = [_REQUEST.pack(*numbers), _varint(len(topics) + 1)]
        for topic, partitions, _ in topics:
            pieces += (_text(topic), _varint(len(partitions) + 1))
            pieces += [_ASKED.pack(*fields, 0) for *fields, _ in partitions]
            pieces.append(_NO_TAGS)
        return b"".join((*pieces, _varint(_NONE), _text(rack), _NO_TAGS))


def _text(text: str) -> bytes:
    data = text.encode()
    return _varint(len(data) + 1) + data


def _varint(number: int) -> bytes:
    encoded: bytes = number.to_bytes(1) if number < _MORE else UnsignedVarInt32.encode(number)
    return encoded


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
