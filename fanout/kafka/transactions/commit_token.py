"""The commit token: a value to store, with which any process can finish a transaction.

On the broker a transaction belongs to a transactional id, a producer id and an epoch, not to a
connection (KIP-98), so any process that has the three can end it. The token adds its marker group.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final, Literal, final

import msgspec

from fanout.core.stored_json import StoredFormat
from fanout.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from fanout.kafka.partitions import Partition

MAX_TOKEN_BYTES: Final = 4 * 1024 * 1024
"""The largest token that is read; one with 200,000 partitions takes less."""
MARKERS_LAST: Final = timedelta(days=6)
"""The time for which brokers keep a marker. They delete it after `offsets.retention.minutes`, by
default 7 days; one day is left for the delay of the deletion and for differences of clocks."""
_VERSION: Final = 1
_LONGEST_NAME: Final = 2**15 - 1  # a string of Kafka's protocol has 16 bits for its length

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=_LONGEST_NAME)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Numbers = Annotated[tuple[_Number, ...], msgspec.Meta(min_length=1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Time = Annotated[datetime, msgspec.Meta(tz=True)]


@final
@dataclass(frozen=True, slots=True)
class Incarnation:
    """One run of a producer under a transactional id; brokers fence all but the newest epoch."""

    producer_id: int
    epoch: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CommitToken:
    """A transaction that is ready to be committed.

    Args:
        marker_group: The consumer group in which it marks its batch as committed.
        partitions: The partitions that it wrote to, by topic; its marker is on partition 0 of each
            of these topics.
        created_at: When the token was made, with a time zone.
        expires_at: The time, with a time zone, after which the broker may abort the transaction:
            its timeout counts from the first record, so from `begin` at the earliest.
    """

    transactional_id: str
    incarnation: Incarnation
    marker_group: str
    batch_id: int
    partitions: Mapping[str, tuple[int, ...]]
    created_at: datetime
    expires_at: datetime

    def __post_init__(self) -> None:
        object.__setattr__(self, "partitions", MappingProxyType(dict(self.partitions)))
        object.__setattr__(self, "created_at", self.created_at.astimezone(UTC))
        object.__setattr__(self, "expires_at", self.expires_at.astimezone(UTC))

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the transaction wrote to, in order."""
        return tuple(sorted(self.partitions))

    def to_json(self) -> str:
        """Return the token as JSON."""
        wire = _Wire(
            version=_VERSION,
            transactional_id=self.transactional_id,
            producer_id=self.incarnation.producer_id,
            epoch=self.incarnation.epoch,
            marker_group=self.marker_group,
            batch=self.batch_id,
            partitions=dict(self.partitions),
            created_at=self.created_at,
            expires_at=self.expires_at,
        )
        return msgspec.json.encode(wire).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> CommitToken:
        """Parse a token; a damaged, too large or newer one raises CheckpointError."""
        wire = _FORMAT.read(text, "the commit token")
        return cls(
            transactional_id=wire.transactional_id,
            incarnation=Incarnation(wire.producer_id, wire.epoch),
            marker_group=wire.marker_group,
            batch_id=wire.batch,
            partitions=wire.partitions,
            created_at=wire.created_at,
            expires_at=wire.expires_at,
        )


def numbers_of(partitions: Iterable[Partition]) -> dict[str, tuple[int, ...]]:
    """Return the numbers of partitions by topic, both in order, as a token holds them."""
    return {
        topic: tuple(partition.number for partition in group)
        for topic, group in groupby(sorted(partitions), key=lambda partition: partition.topic)
    }


class _Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    version: Literal[1]
    transactional_id: _Name
    producer_id: _Count
    epoch: Annotated[int, msgspec.Meta(ge=0, le=2**15 - 1)]
    marker_group: _Name
    batch: _Count
    partitions: Annotated[dict[_Name, _Numbers], msgspec.Meta(min_length=1)]
    created_at: _Time
    expires_at: _Time


_FORMAT: Final = StoredFormat(
    wire=_Wire,
    max_size=MAX_TOKEN_BYTES,
    error=CheckpointError,
    version=_VERSION,
    hint="restore this file alone from a backup",
)
