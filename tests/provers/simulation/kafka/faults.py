"""The faults of a simulated cluster, as values that a plan holds, prints and replays."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, final

from aiokafka import errors as kafka

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("ERRORS", "KAFKA_FAULTS", "KafkaFault", "KafkaFaultKind", "KafkaFaultSite")


@final
class KafkaFaultSite(Enum):
    """The part of the system that a fault strikes."""

    LOG = "what a partition holds"
    LEADERS = "who leads a partition, and what a listing says about it"
    BROKER = "a broker as a whole"
    REQUEST = "a fetch, all partitions of it together"
    ANSWER = "what a fetch answers about one partition"
    CALL = "a listing, or a look-up of offsets"
    COMMIT = "a commit of the group's offsets"
    QUOTA = "a quota of a client, which a fetch exceeds"
    UNUSUAL = "a fetch whose answer is valid and unusual"
    GROUP = "how long the cluster keeps the offsets of a group without members"


@final
class KafkaFaultKind(StrEnum):
    """Name what goes wrong."""

    # The log is another one than before.
    EXPIRED = "expired"
    TRUNCATED = "truncated"
    RECREATED = "topic recreated"
    DELETED = "topic deleted"
    PARTITIONS_ADDED = "partitions added"
    HELD_TRANSACTION = "transaction held open"
    # Another broker is to be asked.
    LEADER_MOVES = "leader moves"
    NO_LEADER = "no leader"
    LAGGING_LEADER = "lagging leader"
    UNSEEN = "topic unseen"
    # A broker does not answer.
    BROKER_DIES = "broker dies"
    BROKER_HANGS = "broker hangs"
    BROKER_SLOW = "broker slow"
    # It accepts requests and answers none, until its cluster misses it and others lead.
    BROKER_FREEZES = "broker freezes"
    # A fetch, or what it says of a partition.
    FETCH_CUT = "fetch cut"
    FETCH_HANGS = "fetch hangs"
    REFUSED = "partition refused"
    CORRUPT = "batch corrupt"
    STAYS_CORRUPT = "batch stays corrupt"
    # Another call.
    CALL_REFUSED = "call refused"
    CALL_HANGS = "call hangs"
    LISTING_OLD = "listing old"
    COMMIT_REFUSED = "commit refused"
    COMMIT_REFUSED_PARTLY = "commit refused partly"
    COMMIT_HANGS = "commit hangs"
    COMMIT_UNHEARD = "commit unheard"
    # A broker answers without topics, and reads no request for a while.
    FETCH_THROTTLED = "fetch throttled"
    FETCH_THROTTLED_PARTLY = "fetch throttled partly"
    # A broker answers at once and without records, although it has some.
    FETCH_EMPTY = "fetch empty"
    # The offset of a partition that has not moved for so long is forgotten.
    OFFSETS_FORGOTTEN = "offsets forgotten"


@final
@dataclass(frozen=True, slots=True)
class KafkaFaultTraits:
    """The traits of a kind of fault.

    Args:
        site: The part that it strikes.
        seconds: The range from which its amount is drawn, in seconds, log-uniformly; nothing where
            it has no amount.
        most: The range of how many batches, brokers or partitions it is about.
        codes: The errors that it can be.
        lasting: Whether it may strike for a time, or only once.
        lossy: Whether records are lost by it, which ends the stream where the user says so.
        fatal: Whether the stream has to fail of it.
        times: How often it may be in one plan.
    """

    site: KafkaFaultSite
    seconds: tuple[float, float] | None = None
    most: tuple[int, int] = (0, 0)
    codes: tuple[str, ...] = ()
    lasting: bool = False
    lossy: bool = False
    fatal: bool = False
    times: int = 1_000


ERRORS: Final[Mapping[str, type[Exception]]] = MappingProxyType(
    {
        error.__name__: error
        for error in (
            kafka.BrokerNotAvailableError,
            kafka.GroupCoordinatorNotAvailableError,
            kafka.GroupLoadInProgressError,
            kafka.KafkaStorageError,
            kafka.LeaderNotAvailableError,
            kafka.NotCoordinatorForGroupError,
            kafka.NotLeaderForPartitionError,
            kafka.QuotaViolationError,
            kafka.ReplicaNotAvailableError,
            kafka.RequestTimedOutError,
            kafka.StaleLeaderEpochCodeError,
            kafka.TopicAuthorizationFailedError,
            kafka.GroupAuthorizationFailedError,
            kafka.UnknownError,
        )
    }
)
"""The errors of the protocol, by name."""

_PASSING: Final = (
    "BrokerNotAvailableError",
    "KafkaStorageError",
    "LeaderNotAvailableError",
    "NotLeaderForPartitionError",
    "QuotaViolationError",
    "ReplicaNotAvailableError",
    "RequestTimedOutError",
    "StaleLeaderEpochCodeError",
)
_WAITING: Final = ("TopicAuthorizationFailedError", "UnknownError")
_OF_A_GROUP: Final = (
    "GroupCoordinatorNotAvailableError",
    "GroupLoadInProgressError",
    "NotCoordinatorForGroupError",
    "RequestTimedOutError",
    "GroupAuthorizationFailedError",
    "UnknownError",
)
# The faults that look like a loss to a reader once they last longer than this, in seconds.
_UNLIKE_A_LOSS: Final = (0.1, 8.0)

KAFKA_FAULTS: Final[Mapping[KafkaFaultKind, KafkaFaultTraits]] = MappingProxyType(
    {
        KafkaFaultKind.EXPIRED: KafkaFaultTraits(KafkaFaultSite.LOG, most=(0, 6), lossy=True),
        KafkaFaultKind.TRUNCATED: KafkaFaultTraits(KafkaFaultSite.LOG, most=(1, 6), lossy=True),
        KafkaFaultKind.RECREATED: KafkaFaultTraits(
            KafkaFaultSite.LOG, seconds=(0.01, 60), most=(1, 4), lossy=True, times=1
        ),
        KafkaFaultKind.DELETED: KafkaFaultTraits(KafkaFaultSite.LOG, lossy=True, times=1),
        KafkaFaultKind.PARTITIONS_ADDED: KafkaFaultTraits(KafkaFaultSite.LOG, most=(1, 2), times=2),
        KafkaFaultKind.HELD_TRANSACTION: KafkaFaultTraits(KafkaFaultSite.LOG, seconds=(1, 300)),
        KafkaFaultKind.LEADER_MOVES: KafkaFaultTraits(KafkaFaultSite.LEADERS, seconds=(0.01, 20)),
        KafkaFaultKind.NO_LEADER: KafkaFaultTraits(KafkaFaultSite.LEADERS, seconds=(0.1, 60)),
        KafkaFaultKind.LAGGING_LEADER: KafkaFaultTraits(
            KafkaFaultSite.LEADERS, seconds=_UNLIKE_A_LOSS, most=(1, 6), times=1
        ),
        KafkaFaultKind.UNSEEN: KafkaFaultTraits(
            KafkaFaultSite.LEADERS, seconds=_UNLIKE_A_LOSS, times=1
        ),
        KafkaFaultKind.BROKER_DIES: KafkaFaultTraits(KafkaFaultSite.BROKER, seconds=(0.5, 60)),
        KafkaFaultKind.BROKER_HANGS: KafkaFaultTraits(KafkaFaultSite.BROKER, seconds=(0.5, 120)),
        KafkaFaultKind.BROKER_SLOW: KafkaFaultTraits(KafkaFaultSite.BROKER, seconds=(1, 60)),
        KafkaFaultKind.FETCH_CUT: KafkaFaultTraits(KafkaFaultSite.REQUEST, lasting=True),
        KafkaFaultKind.FETCH_HANGS: KafkaFaultTraits(KafkaFaultSite.REQUEST, seconds=(0.1, 120)),
        KafkaFaultKind.REFUSED: KafkaFaultTraits(
            KafkaFaultSite.ANSWER, codes=(*_PASSING, *_WAITING), lasting=True
        ),
        KafkaFaultKind.CORRUPT: KafkaFaultTraits(KafkaFaultSite.ANSWER),
        KafkaFaultKind.STAYS_CORRUPT: KafkaFaultTraits(KafkaFaultSite.ANSWER, fatal=True),
        KafkaFaultKind.CALL_REFUSED: KafkaFaultTraits(
            KafkaFaultSite.CALL, codes=(*_PASSING, *_WAITING), lasting=True
        ),
        KafkaFaultKind.CALL_HANGS: KafkaFaultTraits(KafkaFaultSite.CALL, seconds=(0.1, 120)),
        KafkaFaultKind.LISTING_OLD: KafkaFaultTraits(KafkaFaultSite.CALL, seconds=(1, 120)),
        KafkaFaultKind.COMMIT_REFUSED: KafkaFaultTraits(
            KafkaFaultSite.COMMIT, codes=_OF_A_GROUP, lasting=True
        ),
        KafkaFaultKind.COMMIT_REFUSED_PARTLY: KafkaFaultTraits(
            KafkaFaultSite.COMMIT, codes=_OF_A_GROUP
        ),
        KafkaFaultKind.COMMIT_HANGS: KafkaFaultTraits(KafkaFaultSite.COMMIT, seconds=(0.1, 120)),
        KafkaFaultKind.COMMIT_UNHEARD: KafkaFaultTraits(KafkaFaultSite.COMMIT),
        KafkaFaultKind.FETCH_THROTTLED: KafkaFaultTraits(KafkaFaultSite.QUOTA, seconds=(0.05, 60)),
        KafkaFaultKind.FETCH_THROTTLED_PARTLY: KafkaFaultTraits(
            KafkaFaultSite.QUOTA, seconds=(0.05, 10), lasting=True
        ),
        KafkaFaultKind.BROKER_FREEZES: KafkaFaultTraits(KafkaFaultSite.BROKER, seconds=(5, 120)),
        KafkaFaultKind.FETCH_EMPTY: KafkaFaultTraits(KafkaFaultSite.UNUSUAL, lasting=True),
        KafkaFaultKind.OFFSETS_FORGOTTEN: KafkaFaultTraits(
            KafkaFaultSite.GROUP, seconds=(60, 90), times=1
        ),
    }
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaFault:
    """One thing that goes wrong: at a moment, or the next time that it can from then on.

    Args:
        kind: What.
        at: From when on, in virtual seconds.
        partition: Which partition it strikes; None for any.
        seconds: How long it takes, where that matters.
        lasts: For how many seconds from `at` on it strikes every time; 0 to strike once.
        code: The error that it is, where it is one.
        amount: How many batches or partitions it is about, or the number of a broker.
    """

    kind: KafkaFaultKind
    at: float
    partition: str | None = None
    seconds: float = 0.0
    lasts: float = 0.0
    code: str = ""
    amount: int = 0

    @property
    def shard(self) -> str | None:
        """The partition, as what strikes it calls a split."""
        return self.partition

    @property
    def traits(self) -> KafkaFaultTraits:
        """The traits of its kind."""
        return KAFKA_FAULTS[self.kind]

    def __str__(self) -> str:
        partition = "" if self.partition is None else f" {self.partition}"
        seconds = f" {self.seconds:.3g} s" if self.seconds else ""
        lasts = f" lasting {self.lasts:.3g} s" if self.lasts else ""
        code = f" {self.code}" if self.code else ""
        amount = f" ({self.amount})" if self.amount else ""
        return f"{self.at:.3f}: {self.kind}{code}{partition}{seconds}{lasts}{amount}"
