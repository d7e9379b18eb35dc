"""The error table of Kafka: which kind each error is, and what each kind means.

The errors are aiokafka's: those of the codes that Fetch, ListOffsets, Metadata and OffsetFetch may
answer (https://kafka.apache.org/protocol#protocol_error_codes), and those of its connections. An
error that is not in the table is judged by whether aiokafka takes it for one that passes.
"""

from __future__ import annotations

import ssl
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias, final

from aiokafka import errors as kafka

from fanout.core.policy import Fatal, Pace, Phase, PolicyRow, PolicyTable, Retry, kind_by_type
from fanout.errors import (
    FanOutError,
    MalformedEventError,
    SubscribeTimeoutError,
    SubscriptionEndedError,
    SubscriptionSilentError,
)
from fanout.kafka.protocol.error_codes import BrokerError, code_of
from fanout.kafka.reading.transport import LogDivergedError, TopicReplacedError

if TYPE_CHECKING:
    from collections.abc import Mapping


@final
class Remedy(Enum):
    """A check that decides how to go on after an error."""

    FIND_TOPIC = "check whether the partition was deleted"
    FIND_OFFSET = "check whether the records at a position are lost"


Treatment: TypeAlias = Retry | Fatal | Remedy


@final
class ErrorKind(Enum):
    """The causes of errors."""

    PASSING = "an election, a broker that starts or stops, load, or the network"
    UNKNOWN_TOPIC = "a topic or partition that this broker does not know"
    OFFSET = "an offset that the partition does not have"
    ACCESS = "authentication failed, or a permission is missing"
    REFUSED = "the request itself is wrong, or the broker cannot do it"
    UNKNOWN = "an error that is not in the table"
    DAMAGE = "records or an answer that break their format"
    FINAL = "an error of the library that a retry cannot change"
    UNEXPECTED = "an unexpected error"


_REPORT: Final = "an error that fanout does not know; please report it"
_OF_OTHERS: Final = "Kafka does not define it as an answer to a reader: see the broker's log"

ROWS: Final[Mapping[ErrorKind, PolicyRow[Remedy]]] = {
    ErrorKind.PASSING: PolicyRow(Retry()),
    # A broker that has just started reports topics as unknown that it has not loaded yet.
    ErrorKind.UNKNOWN_TOPIC: PolicyRow(Remedy.FIND_TOPIC),
    ErrorKind.OFFSET: PolicyRow(Remedy.FIND_OFFSET),
    # If access has never worked, the setup is wrong and a user is watching: fail after one call. If
    # it has worked, a secret was rotated or a permission changed, and the records wait: retry
    # without end, slowly and with a log line each time, so that the stream recovers by itself.
    ErrorKind.ACCESS: PolicyRow(Retry(Pace.SLOW), first=Fatal()),
    ErrorKind.REFUSED: PolicyRow(Fatal()),
    # A broker may have a code that is newer than this table, and many of them pass: those that last
    # longer than about ten minutes of the largest waits are fatal.
    ErrorKind.UNKNOWN: PolicyRow(Retry(hint=_REPORT, limit=40)),
    # The same bytes fail the same way each time, so the retries are limited.
    ErrorKind.DAMAGE: PolicyRow(Retry(limit=3)),
    ErrorKind.FINAL: PolicyRow(Fatal()),
    ErrorKind.UNEXPECTED: PolicyRow(Fatal("an unexpected error; please report it")),
}

_KAFKA: Final[Mapping[type[Exception], ErrorKind]] = {
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
        ErrorKind.PASSING,
    ),
    kafka.UnknownTopicOrPartitionError: ErrorKind.UNKNOWN_TOPIC,
    kafka.OffsetOutOfRangeError: ErrorKind.OFFSET,
    LogDivergedError: ErrorKind.OFFSET,
    TopicReplacedError: ErrorKind.OFFSET,
    kafka.CorruptRecordException: ErrorKind.DAMAGE,
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
        ErrorKind.ACCESS,
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
        ErrorKind.REFUSED,
    ),
    kafka.IllegalArgumentError: ErrorKind.UNEXPECTED,
    kafka.IllegalStateError: ErrorKind.UNEXPECTED,
}

# The codes for which aiokafka has no class, and which readers are answered. Those of the codes
# that Java's client retries pass as well; all others are answered to nobody who reads.
_CODES: Final[Mapping[int, ErrorKind]] = {
    76: ErrorKind.REFUSED,  # UNSUPPORTED_COMPRESSION_TYPE
    77: ErrorKind.PASSING,  # STALE_BROKER_EPOCH
    93: ErrorKind.ACCESS,  # UNACCEPTABLE_CREDENTIAL
    97: ErrorKind.ACCESS,  # PRINCIPAL_DESERIALIZATION_FAILURE
    104: ErrorKind.REFUSED,  # INCONSISTENT_CLUSTER_ID
    107: ErrorKind.PASSING,  # INELIGIBLE_REPLICA
    108: ErrorKind.PASSING,  # NEW_LEADER_ELECTED
    114: ErrorKind.REFUSED,  # MISMATCHED_ENDPOINT_TYPE
    115: ErrorKind.REFUSED,  # UNSUPPORTED_ENDPOINT_TYPE
    129: ErrorKind.PASSING,  # REBOOTSTRAP_REQUIRED
}
_CODE_HINTS: Final[Mapping[int, str]] = {
    -1: "the broker met an error that it did not expect: see its log",
    76: "the records are compressed with zstd, and this broker sends them to newer clients alone",
    93: "check the username and the password",
    97: "the broker cannot read the name of this client: see its log",
    104: "the address is that of another cluster: check the bootstrap servers",
    114: "the address is that of a controller: name the brokers",
    115: "the address is that of a controller: name the brokers",
}

# The first that fits counts.
_TYPES: Final[tuple[tuple[tuple[type[Exception], ...], ErrorKind], ...]] = (
    ((MalformedEventError,), ErrorKind.DAMAGE),
    ((SubscribeTimeoutError, SubscriptionEndedError, SubscriptionSilentError), ErrorKind.PASSING),
    ((FanOutError,), ErrorKind.FINAL),
    ((ssl.SSLCertVerificationError,), ErrorKind.ACCESS),
    ((OSError, EOFError), ErrorKind.PASSING),
    ((Exception,), ErrorKind.UNEXPECTED),
)

_HINTS: Final[Mapping[type[Exception], str]] = {
    kafka.TopicAuthorizationFailedError: "grant READ and DESCRIBE on the topic to the principal",
    kafka.GroupAuthorizationFailedError: "grant READ on the group to the principal",
    kafka.ClusterAuthorizationFailedError: "grant the principal what the broker's log names",
    kafka.CorruptRecordException: (
        "the broker finds its own log damaged: see its log, and restore the partition"
    ),
    kafka.ProducerFenced: _OF_OTHERS,
    kafka.UnsupportedVersionError: "fanout reads from Kafka 0.11 and later",
    kafka.IncompatibleBrokerVersion: "fanout reads from Kafka 0.11 and later",
}


def judge(error: Exception, *, first: bool) -> Treatment:
    """Return how to go on after an error; it is the `first` where the operation has not worked yet.

    The operation is a listing, a look-up of an offset, or a fetch, in this run of the stream.
    """
    return _TABLE.judge(error, Phase.STREAM, first=first)  # the phase makes no difference


def _kind_of(error: Exception) -> ErrorKind:
    if isinstance(error, kafka.KafkaError):
        passing = ErrorKind.PASSING if error.retriable else ErrorKind.UNKNOWN
        if isinstance(error, BrokerError):
            return _CODES.get(error.errno, passing)
        return _KAFKA.get(type(error), passing)
    return kind_by_type(error, _TYPES)


def _hint_of(error: Exception) -> str:
    code = code_of(error)
    if hint := _HINTS.get(type(error)) or _CODE_HINTS.get(code, ""):
        return hint
    ours = _kind_of(error) is not ErrorKind.UNKNOWN
    return _OF_OTHERS if code and not ours else ""


_TABLE: Final = PolicyTable(ROWS, kind_of=_kind_of, hint_of=_hint_of)
