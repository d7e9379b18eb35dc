"""What can go wrong in a simulation, as values that a plan holds, prints and replays."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("CATALOGUE", "OF_THE_PROCESS", "UNKNOWN", "WAITING", "Fault", "Kind", "Site", "Traits")


@final
class Site(Enum):
    """What a fault strikes."""

    CALL = "a call other than those of one shard"
    SUBSCRIBE = "a subscribe call, or in polling a call for an iterator or for records"
    EVENT = "an event on its way to the reader"
    RENEWAL = "a look for new credentials"
    SERVICE = "the stream, its shards or its consumer"
    LOG = "what is put into the stream"
    JOB = "the reader's own process"
    STORE = "where the reader keeps its positions"


@final
class Kind(StrEnum):
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


OF_THE_PROCESS: Final = frozenset({Kind.CRASH, Kind.CLOSE, Kind.DEPLOYED})
"""What ends a process of the reader, or puts another one beside it."""


@final
@dataclass(frozen=True, slots=True)
class Traits:
    """What is known about a kind of fault.

    Args:
        site: What it strikes.
        seconds: The range from which its amount is drawn, in seconds, log-uniformly; nothing where
            it has no amount.
        codes: The errors of the service that it can be.
        lasting: Whether it may strike for a time, or only once.
        fatal: Whether the stream has to fail of it.
        fatal_with: The value of a plan's field with which the stream has to fail of it.
        mode: In which mode of reading it can be; None for both.
    """

    site: Site
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
UNKNOWN: Final = "NobodyKnowsThisException"
"""An error that the library has never heard of."""
WAITING: Final = (
    "ExpiredTokenException",
    "AccessDeniedException",
    "KMSDisabledException",
    UNKNOWN,
)
"""Errors that are waited for, except before anything has worked: then they are fatal."""

CATALOGUE: Final[Mapping[Kind, Traits]] = MappingProxyType(
    {
        Kind.CALL_REFUSED: Traits(
            Site.CALL, codes=(*_PASSING, "ExpiredTokenException"), lasting=True
        ),
        Kind.CALL_HANGS: Traits(Site.CALL, seconds=(1, 120)),
        Kind.CALL_CUT: Traits(Site.CALL, lasting=True),
        Kind.LISTING_LATE: Traits(Site.CALL, seconds=(1, 120)),
        # A shard that a minute of listings does not name is taken for expired.
        Kind.CHILDREN_LATE: Traits(Site.CALL, seconds=(1, 40)),
        Kind.REFUSED: Traits(
            Site.SUBSCRIBE, codes=(*_PASSING, *WAITING, "ResourceInUseException"), lasting=True
        ),
        Kind.REFUSED_LATE: Traits(Site.SUBSCRIBE, seconds=(1, 59), codes=_PASSING),
        Kind.HANGS: Traits(Site.SUBSCRIBE, lasting=True),
        Kind.UNREACHABLE: Traits(Site.SUBSCRIBE, lasting=True),
        Kind.HEADERS_ONLY: Traits(Site.SUBSCRIBE, mode="efo"),
        Kind.ITERATOR_EXPIRED: Traits(Site.SUBSCRIBE, mode="polling"),
        Kind.RENEWAL_FAILS: Traits(Site.RENEWAL, lasting=True),
        Kind.RENEWAL_HANGS: Traits(Site.RENEWAL, seconds=(1, 120)),
        Kind.STALL: Traits(Site.EVENT, seconds=(1, 100_000)),
        Kind.DRIP: Traits(Site.EVENT, seconds=(0.01, 10)),
        Kind.RESET: Traits(Site.EVENT),
        Kind.HALF_CLOSED: Traits(Site.EVENT),
        Kind.ENDED_EARLY: Traits(Site.EVENT, lasting=True, mode="efo"),
        Kind.ENDED_BEHIND: Traits(Site.EVENT, lasting=True, mode="efo"),
        Kind.REPEATED: Traits(Site.EVENT, mode="efo"),
        Kind.IDLE_PROGRESS: Traits(Site.EVENT, mode="efo"),
        Kind.RAISED: Traits(Site.EVENT, codes=(*_PASSING, "ResourceInUseException"), mode="efo"),
        Kind.EMPTY_EVENTS: Traits(Site.EVENT),
        Kind.DAMAGED: Traits(Site.EVENT),
        Kind.OVERSIZE: Traits(Site.EVENT),
        Kind.GARBAGE: Traits(Site.EVENT),
        Kind.HALF_AN_END: Traits(Site.EVENT),
        Kind.STAYS_DAMAGED: Traits(Site.EVENT, fatal_with=("on_bad_frame", "fail"), mode="efo"),
        Kind.TAKEN_OVER: Traits(Site.SERVICE, mode="efo"),
        Kind.TAKEN_OVER_STALE: Traits(Site.SERVICE, mode="efo"),
        Kind.CONSUMER_GONE: Traits(Site.SERVICE, fatal_with=("consumer", "arn"), mode="efo"),
        Kind.CONSUMER_DELETING: Traits(
            Site.SERVICE, seconds=(1, 120), fatal_with=("consumer", "arn"), mode="efo"
        ),
        Kind.STREAM_GONE: Traits(Site.SERVICE, fatal=True),
        # Who polls from the horizon cannot tell the new stream from the old one before a listing
        # does; a subscription is refused at once, because its consumer is gone.
        Kind.STREAM_REPLACED: Traits(Site.SERVICE, seconds=(0.01, 30), fatal=True, mode="efo"),
        Kind.TRIMMED: Traits(Site.SERVICE),
        Kind.SHARDS_EXPIRED: Traits(Site.SERVICE, seconds=(1, 600)),
        Kind.RESHARD_STORM: Traits(Site.SERVICE, seconds=(0.01, 30)),
        Kind.OUTAGE: Traits(Site.SERVICE, seconds=(5, 600)),
        Kind.THROTTLED: Traits(Site.SERVICE, seconds=(5, 300), codes=_THROTTLED),
        Kind.CLOCK_AHEAD: Traits(Site.SERVICE, seconds=(1, 300)),
        Kind.CLOCK_BEHIND: Traits(Site.SERVICE, seconds=(1, 300)),
        Kind.ROTATED: Traits(Site.SERVICE),
        Kind.AGGREGATE_DAMAGED: Traits(Site.LOG, fatal_with=("on_bad_aggregate", "fail")),
        Kind.CRASH: Traits(Site.JOB, seconds=(0.1, 60)),
        Kind.CLOSE: Traits(Site.JOB, seconds=(0.1, 60)),
        Kind.SLOW: Traits(Site.JOB, seconds=(0.1, 600)),
        Kind.BLOCKED: Traits(Site.JOB, seconds=(0.5, 90)),
        Kind.CANCELLED: Traits(Site.JOB, seconds=(0.001, 10)),
        Kind.RAISES: Traits(Site.JOB),
        Kind.DEPLOYED: Traits(Site.JOB, seconds=(0.1, 180)),
        Kind.STORE_SLOW: Traits(Site.STORE, seconds=(0.1, 120)),
        Kind.STORE_FAILS: Traits(Site.STORE),
        Kind.STORE_TORN: Traits(Site.STORE),
    }
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong: the next time that it can, from a moment on.

    Args:
        kind: What.
        at: From when on, in virtual seconds.
        shard: Which shard's calls and events it strikes; None for any.
        seconds: How long it takes, where that matters.
        lasts: For how many seconds from `at` on it strikes every time; 0 to strike once.
        code: The error of the service that it is, where it is one.
    """

    kind: Kind
    at: float
    shard: str | None = None
    seconds: float = 0.0
    lasts: float = 0.0
    code: str = ""

    @property
    def traits(self) -> Traits:
        """What is known about its kind."""
        return CATALOGUE[self.kind]

    def __str__(self) -> str:
        shard = "" if self.shard is None else f" {self.shard}"
        seconds = f" {self.seconds:.3g} s" if self.seconds else ""
        lasts = f" lasting {self.lasts:.3g} s" if self.lasts else ""
        code = f" {self.code}" if self.code else ""
        return f"{self.at:.3f}: {self.kind}{code}{shard}{seconds}{lasts}"
