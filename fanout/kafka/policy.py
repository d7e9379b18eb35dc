"""What each error of Kafka means, as a table.

The errors are aiokafka's: those of the codes that Fetch, ListOffsets, Metadata and OffsetFetch may
answer (https://kafka.apache.org/protocol#protocol_error_codes), and those of its connections. An
error that is not in the table is judged by whether aiokafka takes it for one that passes.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias, final

from aiokafka import errors as kafka

from fanout.core.policy import Fatal, Pace, Retry
from fanout.errors import (
    FanOutError,
    MalformedEventError,
    SubscribeTimeoutError,
    SubscriptionEndedError,
    SubscriptionSilentError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("Remedy", "Treatment", "judge")


@final
class Remedy(Enum):
    """What is done about an error before it is known whether to ask again."""

    FIND_TOPIC = "find out whether the partition is gone"
    FIND_PLACE = "find out whether the records at a position are lost"


Treatment: TypeAlias = Retry | Fatal | Remedy


@final
class _Kind(Enum):
    """What an error is about."""

    PASSING = "an election, a broker that starts or stops, load, or the network"
    GONE = "a topic or partition that this broker does not know"
    PLACE = "an offset that the partition does not have"
    ACCESS = "the caller is not believed, or may not do it"
    REFUSED = "the request itself is wrong, or the broker cannot do it"
    UNKNOWN = "an error that nobody has decided on"
    DAMAGE = "records or an answer that break their format"
    FOR_GOOD = "an error of ours that asking again cannot change"
    MISTAKE = "an error that nobody expected"


@final
@dataclass(frozen=True, slots=True)
class _Row:
    """What an error means; `first` while nothing of its phase has worked yet in this run."""

    first: Treatment
    later: Treatment


def _always(treatment: Treatment) -> _Row:
    return _Row(treatment, treatment)


_REPORT: Final = "an error that fanout does not know; please report it"

_TABLE: Final[Mapping[_Kind, _Row]] = {
    _Kind.PASSING: _always(Retry()),
    # A broker that has just started says so of topics that it has not heard of yet.
    _Kind.GONE: _always(Remedy.FIND_TOPIC),
    _Kind.PLACE: _always(Remedy.FIND_PLACE),
    # What has never worked is a mistake in the setup, and somebody is watching: fail after one
    # call. What has worked is a rotation or a rule that was changed, and the records wait: ask
    # for ever, slowly and loudly, so that it comes back by itself.
    _Kind.ACCESS: _Row(Fatal(), Retry(Pace.SLOW)),
    _Kind.REFUSED: _always(Fatal()),
    # Codes that are younger than aiokafka come as one error, and many of them are passing: about
    # ten minutes of the largest waits tell them apart.
    _Kind.UNKNOWN: _always(Retry(hint=_REPORT, limit=40)),
    # The same bytes fail the same way each time, so an endless loop ends here.
    _Kind.DAMAGE: _always(Retry(limit=3)),
    _Kind.FOR_GOOD: _always(Fatal()),
    _Kind.MISTAKE: _always(Fatal("an error that nobody expected here; please report it")),
}

_KAFKA: Final[Mapping[type[Exception], _Kind]] = {
    **dict.fromkeys(
        (
            kafka.BrokerNotAvailableError,
            kafka.Cancelled,
            kafka.CorrelationIdError,
            kafka.FetchSessionIdNotFound,
            kafka.GroupCoordinatorNotAvailableError,
            kafka.GroupLoadInProgressError,
            kafka.InvalidFetchSessionEpoch,
            kafka.KafkaConnectionError,
            kafka.KafkaProtocolError,
            kafka.KafkaStorageError,
            kafka.KafkaTimeoutError,
            kafka.KafkaUnavailableError,
            kafka.LeaderNotAvailableError,
            kafka.ListenerNotFound,
            kafka.MetadataEmptyBrokerList,
            kafka.NoBrokersAvailable,
            kafka.NodeNotReadyError,
            kafka.NotControllerError,
            kafka.NotCoordinatorForGroupError,
            kafka.NotEnoughReplicasError,
            kafka.NotLeaderForPartitionError,
            kafka.QuotaViolationError,
            kafka.ReassignmentInProgress,
            kafka.ReplicaNotAvailableError,
            kafka.RequestTimedOutError,
            kafka.StaleControllerEpochError,
            # Its code, 13, has long been that of a broker which lost its own connection.
            kafka.StaleLeaderEpochCodeError,
            kafka.StaleMetadata,
            kafka.TooManyInFlightRequests,
        ),
        _Kind.PASSING,
    ),
    kafka.UnknownTopicOrPartitionError: _Kind.GONE,
    kafka.OffsetOutOfRangeError: _Kind.PLACE,
    kafka.CorruptRecordException: _Kind.DAMAGE,
    **dict.fromkeys(
        (
            kafka.AuthenticationFailedError,
            kafka.AuthenticationMethodNotSupported,
            kafka.ClusterAuthorizationFailedError,
            kafka.DelegationTokenAuthDisabled,
            kafka.DelegationTokenAuthorizationFailed,
            kafka.DelegationTokenExpired,
            kafka.DelegationTokenNotFound,
            kafka.DelegationTokenOwnerMismatch,
            kafka.DelegationTokenRequestNotAllowed,
            kafka.GroupAuthorizationFailedError,
            kafka.IllegalSaslStateError,
            kafka.InvalidPrincipalType,
            kafka.SaslAuthenticationFailed,
            kafka.SecurityDisabled,
            kafka.TopicAuthorizationFailedError,
            kafka.TransactionalIdAuthorizationFailed,
            kafka.UnsupportedSaslMechanismError,
        ),
        _Kind.ACCESS,
    ),
    **dict.fromkeys(
        (
            kafka.IncompatibleBrokerVersion,
            kafka.InvalidConfigurationError,
            kafka.InvalidFetchRequestError,
            kafka.InvalidGroupIdError,
            kafka.InvalidRequestError,
            kafka.InvalidTimestampError,
            kafka.InvalidTopicError,
            kafka.KafkaConfigurationError,
            kafka.MessageSizeTooLargeError,
            kafka.OffsetMetadataTooLargeError,
            kafka.PolicyViolationError,
            kafka.RecordListTooLargeError,
            kafka.RecordTooLargeError,
            kafka.UnrecognizedBrokerVersion,
            kafka.UnsupportedCodecError,
            kafka.UnsupportedForMessageFormatError,
            kafka.UnsupportedVersionError,
        ),
        _Kind.REFUSED,
    ),
    kafka.IllegalArgumentError: _Kind.MISTAKE,
    kafka.IllegalStateError: _Kind.MISTAKE,
}

# The first that fits counts.
_TYPES: Final[tuple[tuple[tuple[type[Exception], ...], _Kind], ...]] = (
    ((MalformedEventError,), _Kind.DAMAGE),
    ((SubscribeTimeoutError, SubscriptionEndedError, SubscriptionSilentError), _Kind.PASSING),
    ((FanOutError,), _Kind.FOR_GOOD),
    ((ssl.SSLCertVerificationError,), _Kind.ACCESS),
    ((OSError, EOFError), _Kind.PASSING),
    ((Exception,), _Kind.MISTAKE),
)

_HINTS: Final[Mapping[type[Exception], str]] = {
    kafka.TopicAuthorizationFailedError: "grant READ and DESCRIBE on the topic to the principal",
    kafka.GroupAuthorizationFailedError: "grant READ on the group to the principal",
    kafka.ClusterAuthorizationFailedError: "grant the principal what the broker's log names",
    kafka.CorruptRecordException: (
        "the broker finds its own log damaged: see its log, and restore the partition"
    ),
    kafka.UnsupportedVersionError: "fanout reads from Kafka 0.11 and later",
    kafka.IncompatibleBrokerVersion: "fanout reads from Kafka 0.11 and later",
}


def judge(error: Exception, *, first: bool) -> Treatment:
    """Say what an error means, with what a person can do about it.

    Args:
        error: Anything that connecting, listing or a subscription raised.
        first: Whether what was being done has not worked yet in this run of the stream: no
            listing, no look-up of an offset, or no answer to a fetch.
    """
    row = _TABLE[_kind_of(error)]
    treatment = row.first if first else row.later
    if isinstance(treatment, Remedy):
        return treatment
    return replace(treatment, hint=_HINTS.get(type(error), "") or treatment.hint)


def _kind_of(error: Exception) -> _Kind:
    if isinstance(error, kafka.KafkaError):
        passing = _Kind.PASSING if error.retriable else _Kind.UNKNOWN
        return _KAFKA.get(type(error), passing)
    return next(kind for types, kind in _TYPES if isinstance(error, types))
