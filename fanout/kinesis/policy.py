"""The error table of Kinesis: which kind each error is, and what each kind means.

The codes are those of the service's model: the errors of SubscribeToShard, the exceptions inside
its event stream, and the common errors of AWS. A code that is not in the table is judged by its
HTTP status, and an error without a code by its type.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias, final

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
)
from botocore.parsers import ResponseParserError

from fanout.core.policy import Fatal, Pace, PolicyRow, PolicyTable, Retry, kind_by_type
from fanout.errors import (
    DamagedFrameError,
    FanOutError,
    MalformedEventError,
    RemoteError,
    SubscribeTimeoutError,
    SubscriptionEndedError,
    SubscriptionSilentError,
    UnconfirmedEndError,
)
from fanout.kinesis.aws.error_hints import ACCESS_DENIED, BAD_CREDENTIALS, code_of, hint_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.core.policy import Phase

__all__ = ("KinesisRemedy", "Treatment", "judge")


@final
class KinesisRemedy(Enum):
    """What is done about an error before it is known whether to ask again."""

    REFRESH = "get new credentials"
    FIND_CAUSE = "find out which of the stream, its consumer and the shard is gone"
    DATA_LOSS = "find out whether the records at a position have expired"
    DROP_FRAME = "drop a frame that stays damaged, where the user has chosen that"
    CONFIRM_END = "ask whether a shard has ended that has said so by one sign only"


Treatment: TypeAlias = Retry | Fatal | KinesisRemedy


@final
class _Kind(Enum):
    """What an error is about."""

    PASSING = "load, the network, or a fault inside the service"
    TAKEN = "another subscription of this consumer and shard is young, or took over"
    GONE = "something that the call names does not exist"
    PLACE = "the position is not one of the shard's, or no longer"
    ACCESS = "the caller is not believed, or may not do it"
    BLOCKED = "the account or the stream's KMS key is in a state that only a person can change"
    REFUSED = "the request itself is wrong"
    UNKNOWN = "a code that nobody has decided on"
    DAMAGE = "an answer that breaks its format, or says what cannot be true"
    BAD_FRAME = "a frame that cannot be decoded among others that can"
    HALF_AN_END = "one of the two signs of a shard's end without the other"
    FOR_GOOD = "an error of ours that asking again cannot change"
    MISTAKE = "an error that nobody expected"


_FATAL: Final = Fatal()
_REPORT: Final = "a code that fanout does not know; please report it"

_ROWS: Final[Mapping[_Kind, PolicyRow[KinesisRemedy]]] = {
    _Kind.PASSING: PolicyRow(Retry()),
    # Waiting longer than the service's minimum does not help; it says for how long it refuses.
    _Kind.TAKEN: PolicyRow(Retry(Pace.FLOOR)),
    _Kind.GONE: PolicyRow(KinesisRemedy.FIND_CAUSE, listing=_FATAL),
    _Kind.PLACE: PolicyRow(KinesisRemedy.DATA_LOSS, listing=_FATAL),
    # What has never worked is a mistake in the setup, and somebody is watching: fail after one
    # call. What has worked is a rotation or a role that was lost, and the records wait in the
    # stream for a day at least: ask for ever, slowly and loudly, so that it comes back by itself.
    _Kind.ACCESS: PolicyRow(KinesisRemedy.REFRESH, first=_FATAL),
    # As for access. No credentials of ours change it.
    _Kind.BLOCKED: PolicyRow(Retry(Pace.SLOW), first=_FATAL),
    _Kind.REFUSED: PolicyRow(_FATAL),
    # It may be a passing error by a name of which the service's model does not tell: about ten
    # minutes of the largest waits tell them apart.
    _Kind.UNKNOWN: PolicyRow(Retry(hint=_REPORT, limit=40), first=Fatal(_REPORT)),
    # The same bytes fail the same way each time, so an endless loop ends here.
    _Kind.DAMAGE: PolicyRow(Retry(limit=3)),
    _Kind.BAD_FRAME: PolicyRow(KinesisRemedy.DROP_FRAME),
    _Kind.HALF_AN_END: PolicyRow(KinesisRemedy.CONFIRM_END),
    _Kind.FOR_GOOD: PolicyRow(_FATAL),
    _Kind.MISTAKE: PolicyRow(Fatal("an error that nobody expected here; please report it")),
}

_CODES: Final[Mapping[str, _Kind]] = {
    **dict.fromkeys(
        (
            "InternalFailure",
            "InternalFailureException",
            "KMSThrottlingException",
            "LimitExceededException",
            "ProvisionedThroughputExceededException",
            "RequestLimitExceeded",
            "RequestTimeout",
            "RequestTimeoutException",
            "ServiceUnavailable",
            "ThrottlingException",
            # The listing took longer than the 5 minutes for which its page token holds.
            "ExpiredNextTokenException",
            # An iterator that is old is replaced without a word; this one was new.
            "ExpiredIteratorException",
        ),
        _Kind.PASSING,
    ),
    "ResourceInUseException": _Kind.TAKEN,
    "ResourceNotFoundException": _Kind.GONE,
    "InvalidArgumentException": _Kind.PLACE,
    **dict.fromkeys(ACCESS_DENIED | BAD_CREDENTIALS, _Kind.ACCESS),
    **dict.fromkeys(
        (
            "KMSAccessDeniedException",
            "KMSDisabledException",
            "KMSInvalidStateException",
            "KMSNotFoundException",
            "KMSOptInRequired",
            "OptInRequired",
        ),
        _Kind.BLOCKED,
    ),
    "ValidationException": _Kind.REFUSED,
}

# The first that fits counts.
_TYPES: Final[tuple[tuple[tuple[type[Exception], ...], _Kind], ...]] = (
    ((UnconfirmedEndError,), _Kind.HALF_AN_END),
    ((DamagedFrameError,), _Kind.BAD_FRAME),
    ((MalformedEventError, ResponseParserError), _Kind.DAMAGE),
    ((SubscribeTimeoutError, SubscriptionEndedError, SubscriptionSilentError), _Kind.PASSING),
    ((FanOutError,), _Kind.FOR_GOOD),
    ((NoCredentialsError, PartialCredentialsError, CredentialRetrievalError), _Kind.ACCESS),
    ((ParamValidationError,), _Kind.MISTAKE),
    ((BotoCoreError, aiohttp.ClientError, OSError), _Kind.PASSING),
    ((Exception,), _Kind.MISTAKE),
)

_SERVER_ERROR: Final = 500
# Request Timeout and Too Many Requests, which a proxy may answer without a code of the service.
_PASSING_STATUS: Final = frozenset({408, 429})


def judge(error: Exception, phase: Phase, *, first: bool = True) -> Treatment:
    """Say what an error means, with what a person can do about it.

    Args:
        error: Anything that connecting, listing or a subscription raised.
        phase: What was being done.
        first: Whether that has not worked yet in this run of the stream: no listing, no subscribe
            call, or no event.
    """
    return _TABLE.judge(error, phase, first=first)


def _kind_of(error: Exception) -> _Kind:
    match error:
        case ClientError():
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            passing = status >= _SERVER_ERROR or status in _PASSING_STATUS
            unnamed = _Kind.PASSING if passing else _Kind.UNKNOWN
            return _CODES.get(code_of(error) or "", unnamed)
        case RemoteError(code=code):
            return _CODES.get(code, _Kind.UNKNOWN)
        case _:
            return kind_by_type(error, _TYPES)


_TABLE: Final = PolicyTable(_ROWS, kind_of=_kind_of, hint_of=hint_of)
