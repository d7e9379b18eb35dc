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

from fanout.core.policy import Fatal, Pace, Phase, PolicyRow, PolicyTable, Retry, kind_by_type
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


@final
class KinesisRemedy(Enum):
    """The step to take on an error before the decision whether to retry."""

    REFRESH = "get new credentials"
    FIND_CAUSE = "find out whether the stream, its consumer or the shard is gone"
    DATA_LOSS = "find out whether the records at a position have expired"
    DROP_FRAME = "drop a frame that stays damaged, if the user has chosen that"
    CONFIRM_END = "find out whether a shard with one of the two signs of its end has ended"


Treatment: TypeAlias = Retry | Fatal | KinesisRemedy


@final
class _Kind(Enum):
    PASSING = "load, the network, or a fault inside the service"
    ENDED = "the service ends each subscription in time, after five minutes"
    TAKEN = "another subscription of this consumer and shard is too recent, or took over"
    GONE = "something that the call names does not exist"
    POSITION = "the position does not belong to the shard, or no longer"
    ACCESS = "the credentials are not accepted, or do not allow the call"
    BLOCKED = "the account or the stream's KMS key is in a state that only a person can change"
    REFUSED = "the request itself is wrong"
    UNKNOWN = "a code that is not in the table"
    DAMAGE = "an answer that breaks its format, or contradicts itself"
    BAD_FRAME = "a frame that cannot be decoded among others that can"
    UNCONFIRMED_END = "one of the two signs of a shard's end without the other"
    PERMANENT = "an error of fanout that a retry cannot change"
    UNEXPECTED = "an error that no part of fanout expects"


_FATAL: Final = Fatal()
_REPORT: Final = "a code that fanout does not know; please report it"

_ROWS: Final[Mapping[_Kind, PolicyRow[KinesisRemedy]]] = {
    _Kind.PASSING: PolicyRow(Retry()),
    _Kind.ENDED: PolicyRow(Retry(Pace.FLOOR)),
    # The service documents how long it refuses, so a longer wait does not help.
    _Kind.TAKEN: PolicyRow(Retry(Pace.FLOOR)),
    _Kind.GONE: PolicyRow(KinesisRemedy.FIND_CAUSE, listing=_FATAL),
    _Kind.POSITION: PolicyRow(KinesisRemedy.DATA_LOSS, listing=_FATAL),
    # If no call has succeeded yet, the setup is wrong, and the user is watching: fail after one
    # call. Later it is a rotation of keys or a lost role, and the stream keeps its records for a
    # day at least: retry slowly, without a limit and with a log line each time.
    _Kind.ACCESS: PolicyRow(KinesisRemedy.REFRESH, first=_FATAL),
    # As for ACCESS, but other credentials do not help.
    _Kind.BLOCKED: PolicyRow(Retry(Pace.SLOW), first=_FATAL),
    _Kind.REFUSED: PolicyRow(_FATAL),
    # It may be a transient error with a code that the service's model does not have: retry for
    # about ten minutes of the largest waits.
    _Kind.UNKNOWN: PolicyRow(Retry(hint=_REPORT, limit=40), first=Fatal(_REPORT)),
    # The same bytes fail the same way each time, so an endless loop ends here.
    _Kind.DAMAGE: PolicyRow(Retry(limit=3)),
    _Kind.BAD_FRAME: PolicyRow(KinesisRemedy.DROP_FRAME),
    _Kind.UNCONFIRMED_END: PolicyRow(KinesisRemedy.CONFIRM_END),
    _Kind.PERMANENT: PolicyRow(_FATAL),
    _Kind.UNEXPECTED: PolicyRow(Fatal("an unexpected error; please report it")),
}

THROTTLING: Final = frozenset(
    {
        "KMSThrottlingException",
        "LimitExceededException",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        # STS says it so, which is asked for the credentials of a role within any call.
        "Throttling",
        "ThrottledException",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
"""What asks for fewer calls. The service, a KMS key or STS takes less than it is given."""

_CODES: Final[Mapping[str, _Kind]] = {
    **dict.fromkeys(THROTTLING, _Kind.PASSING),
    **dict.fromkeys(
        (
            # STS could not reach the identity provider.
            "IDPCommunicationError",
            "InternalFailure",
            "InternalFailureException",
            "RequestTimeout",
            "RequestTimeoutException",
            "ServiceUnavailable",
            # The listing took longer than the 5 minutes for which its page token holds.
            "ExpiredNextTokenException",
            # The poller replaces an iterator that has expired with age; this one was new.
            "ExpiredIteratorException",
        ),
        _Kind.PASSING,
    ),
    "ResourceInUseException": _Kind.TAKEN,
    "ResourceNotFoundException": _Kind.GONE,
    "InvalidArgumentException": _Kind.POSITION,
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
    # No call of ours asks for a dry run.
    "DryRunOperationException": _Kind.REFUSED,
}

# The first match counts.
_TYPES: Final[tuple[tuple[tuple[type[Exception], ...], _Kind], ...]] = (
    ((UnconfirmedEndError,), _Kind.UNCONFIRMED_END),
    ((DamagedFrameError,), _Kind.BAD_FRAME),
    ((MalformedEventError, ResponseParserError), _Kind.DAMAGE),
    ((SubscriptionEndedError,), _Kind.ENDED),
    ((SubscribeTimeoutError, SubscriptionSilentError), _Kind.PASSING),
    ((FanOutError,), _Kind.PERMANENT),
    ((NoCredentialsError, PartialCredentialsError, CredentialRetrievalError), _Kind.ACCESS),
    ((ParamValidationError,), _Kind.UNEXPECTED),
    ((BotoCoreError, aiohttp.ClientError, OSError), _Kind.PASSING),
    ((Exception,), _Kind.UNEXPECTED),
)

_SERVER_ERROR: Final = 500
# Request Timeout and Too Many Requests, which a proxy may answer without a code of the service.
_PASSING_STATUS: Final = frozenset({408, 429})


def judge(error: Exception, phase: Phase, *, first: bool = True) -> Treatment:
    """Return the verdict or the remedy of any error, with a hint for the user.

    It is the first if nothing of the phase has succeeded yet in this run of the stream: no listing,
    no subscribe call, or no event.
    """
    return _TABLE.judge(error, phase, first=first)


def passes(error: BaseException) -> bool:
    """Return whether the service refuses a call for now: for its rate, or for its own failure."""
    return isinstance(error, ClientError) and isinstance(judge(error, Phase.DISCOVER), Retry)


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
