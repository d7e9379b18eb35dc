"""Write and read which records are unconfirmed; the JSON is stored beside the records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from fanout.core.stored_json import MALFORMED_JSON
from fanout.errors import PositionError, ServiceError
from fanout.kafka.partitions import Partition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fanout.kafka.share.record_sets import Piece

__all__ = ("MAX_UNCONFIRMED", "read_unconfirmed", "write_unconfirmed")

VERSION: Final = 1

# Characters. Ranges of offsets take about 20 each, and only what is under way is unconfirmed. A
# checkpoint takes as many.
MAX_UNCONFIRMED: Final = 1024 * 1024

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _TopicWire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: Annotated[str, msgspec.Meta(max_length=64)]
    partitions: dict[
        Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)], list[tuple[_Number, _Number]]
    ]


class _VersionWire(msgspec.Struct, frozen=True):
    version: int


class _UnconfirmedWire(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    source: _Name
    topics: dict[_Name, _TopicWire]


def write_unconfirmed(source: str, pieces: Iterable[Piece], topic_ids: Mapping[str, str]) -> str:
    """Write records as JSON.

    Args:
        source: The identity of the source that they are of.
        pieces: The records.
        topic_ids: The ids of their topics, as far as they are known.

    Raises:
        ServiceError: If they take more than MAX_UNCONFIRMED.
    """
    topics: dict[str, _TopicWire] = {}
    for partition, begin, end in pieces:
        topic = partition.topic
        wire = topics.setdefault(topic, _TopicWire(topic_ids.get(topic, ""), {}))
        wire.partitions.setdefault(partition.number, []).append((begin, end))
    text = msgspec.json.encode(_UnconfirmedWire(VERSION, source, topics))
    if len(text) > MAX_UNCONFIRMED:
        raise ServiceError(
            f"the records whose acknowledgement {source} has not confirmed take {len(text)} bytes "
            f"to name, more than {MAX_UNCONFIRMED}: the brokers take no acknowledgements in time; "
            f"see their logs, and the group's share.record.lock.duration.ms"
        )
    return text.decode()


def read_unconfirmed(text: str, source: str, topic_ids: Mapping[str, str]) -> list[Piece]:
    """Read records back, strictly.

    Those of a topic that another one has replaced since are left out.

    Args:
        text: What `write_unconfirmed` returned; empty for nothing.
        source: The identity of the source that they have to be of.
        topic_ids: The ids of the topics that there are now, as far as they are known.

    Raises:
        PositionError: If it is damaged, of another version, or of another source.
    """
    if not text:
        return []
    if len(text) > MAX_UNCONFIRMED:
        raise PositionError(
            f"the stored unconfirmed records take {len(text)} bytes, more than {MAX_UNCONFIRMED}"
        )
    try:
        version = msgspec.json.decode(text, type=_VersionWire).version
        if version != VERSION:
            raise PositionError(
                f"the stored unconfirmed records have format version {version}, this library reads "
                f"version {VERSION}; use the library version that wrote them"
            )
        wire = msgspec.json.decode(text, type=_UnconfirmedWire)
    except MALFORMED_JSON as error:
        raise PositionError(f"the stored unconfirmed records are damaged: {error}") from error
    if wire.source != source:
        raise PositionError(
            f"the stored unconfirmed records belong to {wire.source}, not to {source}"
        )
    pieces = [
        (Partition(topic, number), begin, end)
        for topic, stored in wire.topics.items()
        if not stored.id or topic_ids.get(topic, stored.id) == stored.id
        for number, ranges in stored.partitions.items()
        for begin, end in ranges
    ]
    if any(begin >= end for _, begin, end in pieces):
        raise PositionError("the stored unconfirmed records are damaged: a range has no records")
    return pieces
