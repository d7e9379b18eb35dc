"""Store the names of records whose acknowledgement the brokers have not confirmed, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from fanout.core.stored_json import StoredFormat
from fanout.errors import PositionError, ServiceError
from fanout.kafka.partitions import Partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fanout.kafka.share.offset_ranges import OffsetRange

VERSION: Final = 1

# Characters. A range takes about 20, and only records that are being stored are unconfirmed. A
# checkpoint takes as many.
MAX_UNCONFIRMED: Final = 1024 * 1024

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _TopicWire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Annotated[str, msgspec.Meta(max_length=64)]
    partitions: dict[
        Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)], list[tuple[_Number, _Number]]
    ]


class _UnconfirmedWire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    source: _Name
    topics: dict[_Name, _TopicWire]


_WHAT: Final = "the stored unconfirmed records"
_FORMAT: Final = StoredFormat(
    wire=_UnconfirmedWire,
    max_size=MAX_UNCONFIRMED,
    error=PositionError,
    version=VERSION,
    plural=True,
)


def write_unconfirmed(
    source: str, ranges: Iterable[OffsetRange], topic_ids: Mapping[str, str]
) -> str:
    """Return unconfirmed records as JSON; raise ServiceError beyond MAX_UNCONFIRMED characters."""
    topics: dict[str, _TopicWire] = {}
    for partition, begin, end in ranges:
        topic = partition.topic
        wire = topics.setdefault(topic, _TopicWire(topic_ids.get(topic, ""), {}))
        wire.partitions.setdefault(partition.number, []).append((begin, end))
    text = msgspec.json.encode(_UnconfirmedWire(VERSION, source, topics))
    if len(text) > MAX_UNCONFIRMED:
        raise ServiceError(
            f"the list of records whose acknowledgement {source} has not confirmed has {len(text)} "
            f"bytes, more than {MAX_UNCONFIRMED}: the brokers take no acknowledgements in time; "
            f"see their logs, and the group's share.record.lock.duration.ms"
        )
    return text.decode()


def read_unconfirmed(text: str, source: str, topic_ids: Mapping[str, str]) -> list[OffsetRange]:
    """Read unconfirmed records back, none from an empty text; PositionError if they do not fit.

    The records of a topic that was deleted and created again since are left out.
    """
    if not text:
        return []
    wire = _FORMAT.read(text, _WHAT)
    if wire.source != source:
        raise PositionError(f"{_WHAT} belong to {wire.source}, not to {source}")
    ranges = [
        (Partition(topic, number), begin, end)
        for topic, stored in wire.topics.items()
        if not stored.id or topic_ids.get(topic, stored.id) == stored.id
        for number, stored_ranges in stored.partitions.items()
        for begin, end in stored_ranges
    ]
    if any(begin >= end for _, begin, end in ranges):
        raise _FORMAT.damaged(_WHAT, "a range has no records")
    return ranges
