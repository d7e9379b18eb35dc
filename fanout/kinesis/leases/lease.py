"""Leases as they stand in the table: the layout of the Kinesis Client Library (KCL) 3.

Names, types and conditions were seen with KCL 3.5.1. An item without a known `entityType` counts as
a lease for the KCL, and attributes that it does not know stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias, final

from fanout.core.positions import WHOLE_RECORD, Cursor, Horizon, Timestamp
from fanout.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.core.events import Split
    from fanout.core.positions import Position
    from fanout.kinesis.aws.api import ShardDescription

Value: TypeAlias = "str | int | float | frozenset[str]"
Item: TypeAlias = "Mapping[str, Value]"
Attributes: TypeAlias = "Mapping[str, Value | None]"  # None for one that is not there

KEY: Final = "leaseKey"
OWNER: Final = "leaseOwner"
GIVER: Final = "checkpointOwner"
"""Who still has a lease whose owner waits for it: a hand-over."""
COUNTER: Final = "leaseCounter"
SWITCHES: Final = "ownerSwitchesSinceCheckpoint"
CHECKPOINT: Final = "checkpoint"
CHILDREN: Final = "childShardIds"
RATE: Final = "throughputKBps"
KIND: Final = "entityType"
PENDING: Final = (
    "pendingCheckpoint",
    "pendingCheckpointSubSequenceNumber",
    "pendingCheckpointState",
)
BEAT: Final = "fanoutBeat"
"""What a worker's item has that is one of fanout: a number that grows with each report."""
PROCESS: Final = "fanoutProcess"
"""The process that wrote a lease or a worker's item last; two may have one name."""
REPORTED: Final = "lut"
"""When a worker has reported last, in seconds since the epoch."""
LEASE_KIND: Final = "LEASE"
WORKER_KIND: Final = "WORKER_METRIC_STATS"
LEADER_KIND: Final = "LEADER"
ENDED: Final = "SHARD_END"
OLDEST: Final = "TRIM_HORIZON"
NEWEST: Final = "LATEST"

_SUB: Final = "checkpointSubSequenceNumber"
_PARENTS: Final = "parentShardId"
_STREAM: Final = "fanoutStream"  # the stream whose shard it is, with the time of its creation
_MILLIS: Final = "fanoutStart"  # where a lease begins whose checkpoint is a time
_AT_TIME: Final = "AT_TIMESTAMP"


@final
@dataclass(frozen=True, slots=True)
class Lease:
    """The lease of one shard, as it was read last."""

    shard_id: str
    counter: int
    owner: str | None = None
    giver: str | None = None
    checkpoint: str = OLDEST
    sub: int = 0
    parents: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    rate: float = 0.0  # in KB a second
    millis: int | None = None
    stream: str | None = None
    process: str | None = None

    @classmethod
    def of(cls, item: Item) -> Lease:
        """Read a lease."""
        try:
            return cls(
                shard_id=_text(item[KEY]),
                counter=_whole(item[COUNTER]),
                owner=_text_or_none(item.get(OWNER)),
                giver=_text_or_none(item.get(GIVER)),
                checkpoint=_text(item[CHECKPOINT]),
                sub=_whole(item.get(_SUB, 0)),
                parents=_texts(item.get(_PARENTS, ())),
                children=_texts(item.get(CHILDREN, ())),
                rate=_number(item.get(RATE, 0.0)),
                millis=None if _MILLIS not in item else _whole(item[_MILLIS]),
                stream=_text_or_none(item.get(_STREAM)),
                process=_text_or_none(item.get(PROCESS)),
            )
        except (KeyError, TypeError) as error:
            raise ServiceError(
                f"the item {item.get(KEY)!r} of the lease table is no lease of a shard; give the "
                f"application a table of its own"
            ) from error

    @property
    def holder(self) -> str | None:
        """Who may read the shard and store positions of it, if anybody."""
        return self.giver or self.owner

    @property
    def ended(self) -> bool:
        """Whether all of the shard is read."""
        return self.checkpoint == ENDED

    def position(self) -> Position | None:
        """Return where reading goes on; None where the KCL has not stored which time it means."""
        if self.checkpoint.isdigit():
            return Cursor(int(self.checkpoint), self.sub)
        if self.checkpoint == OLDEST:
            return Horizon()
        if self.checkpoint in {_AT_TIME, NEWEST}:
            return None if self.millis is None else Timestamp(self.millis)
        raise ServiceError(
            f"the lease of {self.shard_id} has the checkpoint {self.checkpoint!r}, which no "
            f"reader of shards writes"
        )


def new_lease(
    split: Split, position: Position, shard: ShardDescription | None, *, stream: str
) -> Item:
    """Build the item of a shard that nobody has read yet."""
    item: dict[str, Value] = {
        KEY: split.id,
        COUNTER: 0,
        SWITCHES: 0,
        KIND: LEASE_KIND,
        _STREAM: stream,
        **checkpoint_of(position),
    }
    if split.parents:
        item[_PARENTS] = frozenset(split.parents)
    if shard is not None:
        item["startingHashKey"] = str(shard.hash_range.start)
        item["endingHashKey"] = str(shard.hash_range.end)
    return MappingProxyType(item)


def checkpoint_of(position: Position) -> dict[str, Value]:
    """Return what stores a position."""
    match position:
        case Horizon():
            return {CHECKPOINT: OLDEST, _SUB: 0}
        case Timestamp(millis):
            return {CHECKPOINT: _AT_TIME, _SUB: 0, _MILLIS: millis}
        case Cursor(sequence, sub):
            # The KCL reads at the number and drops sub-records up to this one, so the largest
            # number drops all of the record.
            return {CHECKPOINT: str(sequence), _SUB: min(sub, WHOLE_RECORD)}


END_CHECKPOINT: Final[Item] = MappingProxyType({CHECKPOINT: ENDED, _SUB: 0})


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text(value)


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, frozenset | tuple):
        raise TypeError
    return tuple(sorted(map(_text, value)))


def _whole(value: object) -> int:
    return int(_number(value)) if not isinstance(value, int) else value


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise TypeError
    return value
