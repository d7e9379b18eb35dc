"""What can go wrong in a simulation, as values that a plan holds, prints and replays."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("CATALOGUE", "UNKNOWN", "WAITING", "Fault", "Kind", "Site", "Traits")


@final
class Site(Enum):
    """What a fault strikes."""

    CALL = "a call other than those of one shard"
    SUBSCRIBE = "a subscribe call, or in polling a call for an iterator or for records"
    EVENT = "an event on its way to the reader"
    SERVICE = "the stream, its shards or its consumer"
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
    # A subscribe call is refused, or never answered.
    REFUSED = "subscribe refused"
    REFUSED_LATE = "subscribe refused late"
    HANGS = "subscribe hangs"
    UNREACHABLE = "unreachable"
    # Something happens to an event on its way.
    STALL = "stall"
    DRIP = "drip"
    RESET = "reset"
    HALF_CLOSED = "half closed"
    ENDED_EARLY = "ended early"
    RAISED = "raised in stream"
    EMPTY_EVENTS = "empty events"
    DAMAGED = "damaged frame"
    OVERSIZE = "oversize length"
    GARBAGE = "garbage"
    HALF_AN_END = "half an end"
    # Something happens to the stream.
    TAKEN_OVER = "taken over"
    CONSUMER_GONE = "consumer gone"
    STREAM_GONE = "stream gone"
    TRIMMED = "trimmed"
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
    """

    site: Site
    seconds: tuple[float, float] | None = None
    codes: tuple[str, ...] = ()
    lasting: bool = False
    fatal: bool = False


_PASSING: Final = (
    "InternalFailureException",
    "LimitExceededException",
    "ThrottlingException",
    "ProvisionedThroughputExceededException",
    "KMSThrottlingException",
    "ServiceUnavailable",
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
        Kind.REFUSED: Traits(
            Site.SUBSCRIBE, codes=(*_PASSING, *WAITING, "ResourceInUseException"), lasting=True
        ),
        Kind.REFUSED_LATE: Traits(Site.SUBSCRIBE, seconds=(1, 59), codes=_PASSING),
        Kind.HANGS: Traits(Site.SUBSCRIBE, lasting=True),
        Kind.UNREACHABLE: Traits(Site.SUBSCRIBE, lasting=True),
        Kind.STALL: Traits(Site.EVENT, seconds=(1, 100_000)),
        Kind.DRIP: Traits(Site.EVENT, seconds=(0.01, 10)),
        Kind.RESET: Traits(Site.EVENT),
        Kind.HALF_CLOSED: Traits(Site.EVENT),
        Kind.ENDED_EARLY: Traits(Site.EVENT, lasting=True),
        Kind.RAISED: Traits(Site.EVENT, codes=(*_PASSING, "ResourceInUseException")),
        Kind.EMPTY_EVENTS: Traits(Site.EVENT),
        Kind.DAMAGED: Traits(Site.EVENT),
        Kind.OVERSIZE: Traits(Site.EVENT),
        Kind.GARBAGE: Traits(Site.EVENT),
        Kind.HALF_AN_END: Traits(Site.EVENT),
        Kind.TAKEN_OVER: Traits(Site.SERVICE),
        Kind.CONSUMER_GONE: Traits(Site.SERVICE),
        Kind.STREAM_GONE: Traits(Site.SERVICE, fatal=True),
        Kind.TRIMMED: Traits(Site.SERVICE),
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
