"""Recognise records that a share group delivers again, so that a stream delivers each one once.

A share group delivers a record again when its lock has expired, when a broker has lost its state,
or when an acknowledgement did not arrive. A stream that stores its records in segments must drop
the repetition. The stream has a record already if it is in one of these states:

- delivered: it is not known to be stored yet;
- unconfirmed: it is stored, or just being stored, and the broker has not confirmed its
  acknowledgement. The list of these is kept as JSON beside the records themselves;
- confirmed: the broker confirmed the acknowledgement a moment ago. A copy that another member
  received before that may wait in its client for as long as a lock lasts.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Annotated, Final, Literal, final

import msgspec

from fanout.core.stored_json import StoredFormat
from fanout.errors import PositionError, ServiceError
from fanout.kafka.partitions import Partition
from fanout.kafka.share.offset_ranges import RecordSet

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from fanout.kafka.share.offset_ranges import OffsetRange

VERSION: Final = 1

# Characters. A range takes about 20, and only records that are being stored are unconfirmed. A
# checkpoint takes as many.
MAX_UNCONFIRMED: Final = 1024 * 1024

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


@final
class DuplicateAction(Enum):
    """What to do with a record that the stream has already."""

    ACCEPT = auto()
    """It is stored: acknowledge it once more."""
    WAIT = auto()
    """It is not stored yet: neither acknowledge nor release it."""


@final
class Dedup:
    """Track which records a stream has, all members together.

    Duplicates are dropped once `enabled` is set, which `add_unconfirmed` does. Confirmed records
    are
    remembered for as long as a lock lasts.
    """

    def __init__(self, lock_seconds: float) -> None:
        self.enabled = False
        self.unconfirmed = RecordSet()
        self._lock_seconds = lock_seconds
        self._delivered = RecordSet()
        self._storing = RecordSet()
        self._confirmed = (RecordSet(), RecordSet())
        self._rotated_at = 0.0

    def add_delivered(self, ranges: Iterable[OffsetRange]) -> None:
        """Note records that are delivered."""
        for range_ in ranges:
            self._delivered.add(*range_)

    def forget_delivered(self, ranges: Iterable[OffsetRange]) -> None:
        """Forget delivered records that were released or rejected, or that will not be stored."""
        for range_ in ranges:
            self._delivered.remove(*range_)

    def add_unconfirmed(self, ranges: Iterable[OffsetRange]) -> None:
        """Note records that are being stored, together with the list of unconfirmed ones."""
        self.enabled = True
        for range_ in ranges:
            self._delivered.remove(*range_)
            self._storing.add(*range_)
            self.unconfirmed.add(*range_)

    def mark_stored(self, ranges: Iterable[OffsetRange]) -> None:
        """Note records that are stored: each repetition may be acknowledged from now on."""
        for range_ in ranges:
            self._storing.remove(*range_)

    def mark_confirmed(self, ranges: Iterable[OffsetRange], now: float) -> None:
        """Note, at a time of the loop, records whose acknowledgement the broker has confirmed."""
        self._rotate_confirmed(now)
        for range_ in ranges:
            self._delivered.remove(*range_)
            self._storing.remove(*range_)
            self.unconfirmed.remove(*range_)
            if self.enabled:
                self._confirmed[0].add(*range_)

    def forget_before(self, start_offsets: Mapping[Partition, int]) -> None:
        """Forget unconfirmed records before the start offsets: the group never delivers them."""
        for partition, start in start_offsets.items():
            self.unconfirmed.remove(partition, 0, start)

    def forget_topics(self, topics: Container[str]) -> None:
        """Forget the records of topics that were deleted and created again."""
        for records in (self.unconfirmed, self._delivered, self._storing, *self._confirmed):
            for range_ in list(records):
                if range_[0].topic in topics:
                    records.remove(*range_)

    def duplicates(self, range_: OffsetRange) -> list[tuple[int, int, DuplicateAction]]:
        """Return the parts of a range that the stream has already, and what to do with each.

        Where two parts overlap, the later one counts.
        """
        if not self.enabled:
            return []
        stored, unstored = (self.unconfirmed, *self._confirmed), (self._delivered, self._storing)
        return [
            *(
                (*part, DuplicateAction.ACCEPT)
                for have in stored
                for part in have.overlaps(*range_)
            ),
            *(
                (*part, DuplicateAction.WAIT)
                for have in unstored
                for part in have.overlaps(*range_)
            ),
        ]

    def _rotate_confirmed(self, now: float) -> None:
        if now - self._rotated_at > self._lock_seconds:
            self._confirmed = (RecordSet(), self._confirmed[0])
            self._rotated_at = now


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
