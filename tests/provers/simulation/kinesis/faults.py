"""The faults of a simulated stream and job, as values that a plan holds and prints."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = (
    "KINESIS_FAULTS",
    "PROCESS_FAULTS",
    "UNKNOWN_ERROR",
    "WAITED_FOR",
    "KinesisFault",
    "KinesisFaultKind",
    "KinesisFaultSite",
    "KinesisFaultTraits",
)


@final
class KinesisFaultSite(Enum):
    """The part of the system that a fault strikes."""

    CALL = "a call other than those of one shard"
    SUBSCRIBE = "a subscribe call, or in polling a call for an iterator or for records"
    EVENT = "an event on its way to the reader"
    RENEWAL = "a look for new credentials"
    SERVICE = "the stream, its shards or its consumer"
    LOG = "what is put into the stream"
    JOB = "the reader's own process"
    STORE = "where the reader keeps its positions"


@final
class KinesisFaultKind(StrEnum):
    """Name what goes wrong."""

    # A call is refused, or never answered.
    CALL_REFUSED = "call refused"
    CALL_HANGS = "call hangs"
    CALL_CUT = "call cut"
    LISTING_LATE = "listing late"
    CHILDREN_LATE = "children late"
    # A subscribe call is refused, or never answered.
    REFUSED = "subscribe refused"
    REFUSED_LATE = "subscribe refused late"
    HANGS = "subscribe hangs"
    UNREACHABLE = "unreachable"
    HEADERS_ONLY = "headers only"
    ITERATOR_EXPIRED = "iterator expired"
    # There are no new credentials.
    RENEWAL_FAILS = "renewal fails"
    RENEWAL_HANGS = "renewal hangs"
    # Something happens to an event on its way.
    STALL = "stall"
    DRIP = "drip"
    RESET = "reset"
    HALF_CLOSED = "half closed"
    ENDED_EARLY = "ended early"
    ENDED_BEHIND = "ended behind an event"
    REPEATED = "repeated event"
    IDLE_PROGRESS = "idle progress"
    RAISED = "raised in stream"
    EMPTY_EVENTS = "empty events"
    DAMAGED = "damaged frame"
    OVERSIZE = "oversize length"
    GARBAGE = "garbage"
    HALF_AN_END = "half an end"
    STAYS_DAMAGED = "stays damaged"
    # Something happens to the stream.
    TAKEN_OVER = "taken over"
    TAKEN_OVER_STALE = "taken over, and stale"
    CONSUMER_GONE = "consumer gone"
    CONSUMER_DELETING = "consumer deleting"
    STREAM_GONE = "stream gone"
    STREAM_REPLACED = "stream replaced"
    TRIMMED = "trimmed"
    SHARDS_EXPIRED = "shards expired"
    RESHARD_STORM = "reshard storm"
    OUTAGE = "outage"
    THROTTLED = "throttled"
    CLOCK_AHEAD = "clock ahead"
    CLOCK_BEHIND = "clock behind"
    ROTATED = "credentials rotated"
    # Something is wrong with what was put.
    AGGREGATE_DAMAGED = "aggregate damaged"
    # Something happens to the reader.
    CRASH = "crash"
    CLOSE = "close"
    SLOW = "slow consumer"
    BLOCKED = "blocked loop"
    CANCELLED = "cancelled"
    RAISES = "reader raises"
    DEPLOYED = "deployed"
    # Something happens to the stored positions.
    STORE_SLOW = "store slow"
    STORE_FAILS = "store fails"
    STORE_TORN = "store torn"


PROCESS_FAULTS: Final = frozenset(
    {KinesisFaultKind.CRASH, KinesisFaultKind.CLOSE, KinesisFaultKind.DEPLOYED}
)
"""The faults that end a process of the reader, or put another one beside it."""


@final
@dataclass(frozen=True, slots=True)
class KinesisFaultTraits:
    """The traits of a kind of fault.

    Args:
        site: The part that it strikes.
        seconds: The range from which its amount is drawn, in seconds, log-uniformly; nothing where
            it has no amount.
        codes: The errors of the service that it can be.
        lasting: Whether it may strike for a time, or only once.
        fatal: Whether the stream has to fail of it.
        fatal_with: The value of a plan's field with which the stream has to fail of it.
        mode: In which mode of reading it can be; None for both.
    """

    site: KinesisFaultSite
    seconds: tuple[float, float] | None = None
    codes: tuple[str, ...] = ()
    lasting: bool = False
    fatal: bool = False
    fatal_with: tuple[str, str] | None = None
    mode: Literal["efo", "polling"] | None = None


_PASSING: Final = (
    "InternalFailureException",
    "LimitExceededException",
    "ThrottlingException",
    "ProvisionedThroughputExceededException",
    "KMSThrottlingException",
    "ServiceUnavailable",
)
_THROTTLED: Final = (
    "LimitExceededException",
    "ThrottlingException",
    "ProvisionedThroughputExceededException",
)
UNKNOWN_ERROR: Final = "NobodyKnowsThisException"
"""An error code that the library does not know."""
WAITED_FOR: Final = (
    "ExpiredTokenException",
    "AccessDeniedException",
    "KMSDisabledException",
    UNKNOWN_ERROR,
)
"""Errors that are waited for, except before anything has worked: then they are fatal."""

KINESIS_FAULTS: Final[Mapping[KinesisFaultKind, KinesisFaultTraits]] = MappingProxyType(
    {
        KinesisFaultKind.CALL_REFUSED: KinesisFaultTraits(
            KinesisFaultSite.CALL, codes=(*_PASSING, "ExpiredTokenException"), lasting=True
        ),
        KinesisFaultKind.CALL_HANGS: KinesisFaultTraits(KinesisFaultSite.CALL, seconds=(1, 120)),
        KinesisFaultKind.CALL_CUT: KinesisFaultTraits(KinesisFaultSite.CALL, lasting=True),
        KinesisFaultKind.LISTING_LATE: KinesisFaultTraits(KinesisFaultSite.CALL, seconds=(1, 120)),
        # A shard that a minute of listings does not name is taken for expired.
        KinesisFaultKind.CHILDREN_LATE: KinesisFaultTraits(KinesisFaultSite.CALL, seconds=(1, 40)),
        KinesisFaultKind.REFUSED: KinesisFaultTraits(
            KinesisFaultSite.SUBSCRIBE,
            codes=(*_PASSING, *WAITED_FOR, "ResourceInUseException"),
            lasting=True,
        ),
        KinesisFaultKind.REFUSED_LATE: KinesisFaultTraits(
            KinesisFaultSite.SUBSCRIBE, seconds=(1, 59), codes=_PASSING
        ),
        KinesisFaultKind.HANGS: KinesisFaultTraits(KinesisFaultSite.SUBSCRIBE, lasting=True),
        KinesisFaultKind.UNREACHABLE: KinesisFaultTraits(KinesisFaultSite.SUBSCRIBE, lasting=True),
        KinesisFaultKind.HEADERS_ONLY: KinesisFaultTraits(KinesisFaultSite.SUBSCRIBE, mode="efo"),
        KinesisFaultKind.ITERATOR_EXPIRED: KinesisFaultTraits(
            KinesisFaultSite.SUBSCRIBE, mode="polling"
        ),
        KinesisFaultKind.RENEWAL_FAILS: KinesisFaultTraits(KinesisFaultSite.RENEWAL, lasting=True),
        KinesisFaultKind.RENEWAL_HANGS: KinesisFaultTraits(
            KinesisFaultSite.RENEWAL, seconds=(1, 120)
        ),
        KinesisFaultKind.STALL: KinesisFaultTraits(KinesisFaultSite.EVENT, seconds=(1, 100_000)),
        KinesisFaultKind.DRIP: KinesisFaultTraits(KinesisFaultSite.EVENT, seconds=(0.01, 10)),
        KinesisFaultKind.RESET: KinesisFaultTraits(KinesisFaultSite.EVENT),
        KinesisFaultKind.HALF_CLOSED: KinesisFaultTraits(KinesisFaultSite.EVENT),
        KinesisFaultKind.ENDED_EARLY: KinesisFaultTraits(
            KinesisFaultSite.EVENT, lasting=True, mode="efo"
        ),
        KinesisFaultKind.ENDED_BEHIND: KinesisFaultTraits(
            KinesisFaultSite.EVENT, lasting=True, mode="efo"
        ),
        KinesisFaultKind.REPEATED: KinesisFaultTraits(KinesisFaultSite.EVENT, mode="efo"),
        KinesisFaultKind.IDLE_PROGRESS: KinesisFaultTraits(KinesisFaultSite.EVENT, mode="efo"),
        KinesisFaultKind.RAISED: KinesisFaultTraits(
            KinesisFaultSite.EVENT, codes=(*_PASSING, "ResourceInUseException"), mode="efo"
        ),
        KinesisFaultKind.EMPTY_EVENTS: KinesisFaultTraits(KinesisFaultSite.EVENT),
        KinesisFaultKind.DAMAGED: KinesisFaultTraits(KinesisFaultSite.EVENT),
        KinesisFaultKind.OVERSIZE: KinesisFaultTraits(KinesisFaultSite.EVENT),
        KinesisFaultKind.GARBAGE: KinesisFaultTraits(KinesisFaultSite.EVENT),
        KinesisFaultKind.HALF_AN_END: KinesisFaultTraits(KinesisFaultSite.EVENT),
        KinesisFaultKind.STAYS_DAMAGED: KinesisFaultTraits(
            KinesisFaultSite.EVENT, fatal_with=("on_bad_frame", "fail"), mode="efo"
        ),
        KinesisFaultKind.TAKEN_OVER: KinesisFaultTraits(KinesisFaultSite.SERVICE, mode="efo"),
        KinesisFaultKind.TAKEN_OVER_STALE: KinesisFaultTraits(KinesisFaultSite.SERVICE, mode="efo"),
        KinesisFaultKind.CONSUMER_GONE: KinesisFaultTraits(
            KinesisFaultSite.SERVICE, fatal_with=("consumer", "arn"), mode="efo"
        ),
        KinesisFaultKind.CONSUMER_DELETING: KinesisFaultTraits(
            KinesisFaultSite.SERVICE, seconds=(1, 120), fatal_with=("consumer", "arn"), mode="efo"
        ),
        KinesisFaultKind.STREAM_GONE: KinesisFaultTraits(KinesisFaultSite.SERVICE, fatal=True),
        # A poller from the horizon sees that the stream is another one only by a listing;
        # a subscription is refused at once, because its consumer is gone.
        KinesisFaultKind.STREAM_REPLACED: KinesisFaultTraits(
            KinesisFaultSite.SERVICE, seconds=(0.01, 30), fatal=True, mode="efo"
        ),
        KinesisFaultKind.TRIMMED: KinesisFaultTraits(KinesisFaultSite.SERVICE),
        KinesisFaultKind.SHARDS_EXPIRED: KinesisFaultTraits(
            KinesisFaultSite.SERVICE, seconds=(1, 600)
        ),
        KinesisFaultKind.RESHARD_STORM: KinesisFaultTraits(
            KinesisFaultSite.SERVICE, seconds=(0.01, 30)
        ),
        KinesisFaultKind.OUTAGE: KinesisFaultTraits(KinesisFaultSite.SERVICE, seconds=(5, 600)),
        KinesisFaultKind.THROTTLED: KinesisFaultTraits(
            KinesisFaultSite.SERVICE, seconds=(5, 300), codes=_THROTTLED
        ),
        KinesisFaultKind.CLOCK_AHEAD: KinesisFaultTraits(
            KinesisFaultSite.SERVICE, seconds=(1, 300)
        ),
        KinesisFaultKind.CLOCK_BEHIND: KinesisFaultTraits(
            KinesisFaultSite.SERVICE, seconds=(1, 300)
        ),
        KinesisFaultKind.ROTATED: KinesisFaultTraits(KinesisFaultSite.SERVICE),
        KinesisFaultKind.AGGREGATE_DAMAGED: KinesisFaultTraits(
            KinesisFaultSite.LOG, fatal_with=("on_bad_aggregate", "fail")
        ),
        KinesisFaultKind.CRASH: KinesisFaultTraits(KinesisFaultSite.JOB, seconds=(0.1, 60)),
        KinesisFaultKind.CLOSE: KinesisFaultTraits(KinesisFaultSite.JOB, seconds=(0.1, 60)),
        KinesisFaultKind.SLOW: KinesisFaultTraits(KinesisFaultSite.JOB, seconds=(0.1, 600)),
        KinesisFaultKind.BLOCKED: KinesisFaultTraits(KinesisFaultSite.JOB, seconds=(0.5, 90)),
        KinesisFaultKind.CANCELLED: KinesisFaultTraits(KinesisFaultSite.JOB, seconds=(0.001, 10)),
        KinesisFaultKind.RAISES: KinesisFaultTraits(KinesisFaultSite.JOB),
        KinesisFaultKind.DEPLOYED: KinesisFaultTraits(KinesisFaultSite.JOB, seconds=(0.1, 180)),
        KinesisFaultKind.STORE_SLOW: KinesisFaultTraits(KinesisFaultSite.STORE, seconds=(0.1, 120)),
        KinesisFaultKind.STORE_FAILS: KinesisFaultTraits(KinesisFaultSite.STORE),
        KinesisFaultKind.STORE_TORN: KinesisFaultTraits(KinesisFaultSite.STORE),
    }
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisFault:
    """One thing that goes wrong: the next time that it can, from a moment on.

    Args:
        kind: What.
        at: From when on, in virtual seconds.
        shard: Which shard's calls and events it strikes; None for any.
        seconds: How long it takes, where that matters.
        lasts: For how many seconds from `at` on it strikes every time; 0 to strike once.
        code: The error of the service that it is, where it is one.
    """

    kind: KinesisFaultKind
    at: float
    shard: str | None = None
    seconds: float = 0.0
    lasts: float = 0.0
    code: str = ""

    @property
    def traits(self) -> KinesisFaultTraits:
        """The traits of its kind."""
        return KINESIS_FAULTS[self.kind]

    def __str__(self) -> str:
        shard = "" if self.shard is None else f" {self.shard}"
        seconds = f" {self.seconds:.3g} s" if self.seconds else ""
        lasts = f" lasting {self.lasts:.3g} s" if self.lasts else ""
        code = f" {self.code}" if self.code else ""
        return f"{self.at:.3f}: {self.kind}{code}{shard}{seconds}{lasts}"
