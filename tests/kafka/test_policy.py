from __future__ import annotations

import inspect
import ssl
from types import MappingProxyType

import pytest
from aiokafka import errors as kafka

from fanout.core.policy import Fatal, Pace, Retry
from fanout.errors import (
    DamagedFrameError,
    DecodeFailedError,
    MalformedEventError,
    SetupError,
    SubscribeTimeoutError,
    SubscriptionEndedError,
    SubscriptionSilentError,
)
from fanout.kafka.reading.policy import Remedy, Treatment, judge

# What each error means before anything of its phase has worked, and later, written down a second
# time. An error that aiokafka gains fails a test until the policy has a row for it.
Means = str
PASSING = ("again", "again")
GONE = ("find topic", "find topic")
PLACE = ("find place", "find place")
ACCESS = ("fatal", "slow")
REFUSED = ("fatal", "fatal")
DAMAGE = ("3 times", "3 times")
UNKNOWN = ("40 times", "40 times")

ERRORS: MappingProxyType[str, tuple[Means, Means]] = MappingProxyType(
    {
        "AuthenticationFailedError": ACCESS,
        "AuthenticationMethodNotSupported": ACCESS,
        "BrokerNotAvailableError": PASSING,
        "Cancelled": PASSING,
        "ClusterAuthorizationFailedError": ACCESS,
        "CorrelationIdError": PASSING,
        "CorruptRecordException": DAMAGE,
        "DelegationTokenAuthDisabled": ACCESS,
        "DelegationTokenAuthorizationFailed": ACCESS,
        "DelegationTokenExpired": ACCESS,
        "DelegationTokenNotFound": ACCESS,
        "DelegationTokenOwnerMismatch": ACCESS,
        "DelegationTokenRequestNotAllowed": ACCESS,
        "FetchSessionIdNotFound": PASSING,
        "GroupAuthorizationFailedError": ACCESS,
        "GroupCoordinatorNotAvailableError": PASSING,
        "GroupLoadInProgressError": PASSING,
        "IllegalArgumentError": REFUSED,
        "IllegalSaslStateError": ACCESS,
        "IllegalStateError": REFUSED,
        "IncompatibleBrokerVersion": REFUSED,
        "InvalidConfigurationError": REFUSED,
        "InvalidFetchRequestError": REFUSED,
        "InvalidFetchSessionEpoch": PASSING,
        "InvalidGroupIdError": REFUSED,
        "InvalidPrincipalType": ACCESS,
        "InvalidRequestError": REFUSED,
        "InvalidTimestampError": REFUSED,
        "InvalidTopicError": REFUSED,
        "KafkaConfigurationError": REFUSED,
        "KafkaConnectionError": PASSING,
        "KafkaProtocolError": PASSING,
        "KafkaStorageError": PASSING,
        "KafkaTimeoutError": PASSING,
        "KafkaUnavailableError": PASSING,
        "LeaderNotAvailableError": PASSING,
        "ListenerNotFound": PASSING,
        "MessageSizeTooLargeError": REFUSED,
        "MetadataEmptyBrokerList": PASSING,
        "NoBrokersAvailable": PASSING,
        "NodeNotReadyError": PASSING,
        "NotControllerError": PASSING,
        "NotCoordinatorForGroupError": PASSING,
        "NotEnoughReplicasAfterAppendError": PASSING,
        "NotEnoughReplicasError": PASSING,
        "NotLeaderForPartitionError": PASSING,
        "OffsetMetadataTooLargeError": REFUSED,
        "OffsetOutOfRangeError": PLACE,
        "PolicyViolationError": REFUSED,
        "QuotaViolationError": PASSING,
        "ReassignmentInProgress": PASSING,
        "RecordListTooLargeError": REFUSED,
        "RecordTooLargeError": REFUSED,
        "ReplicaNotAvailableError": PASSING,
        "RequestTimedOutError": PASSING,
        "SaslAuthenticationFailed": ACCESS,
        "SecurityDisabled": ACCESS,
        "StaleControllerEpochError": PASSING,
        "StaleLeaderEpochCodeError": PASSING,
        "StaleMetadata": PASSING,
        "TooManyInFlightRequests": PASSING,
        "TopicAuthorizationFailedError": ACCESS,
        "TransactionalIdAuthorizationFailed": ACCESS,
        "UnknownError": UNKNOWN,
        "UnknownTopicOrPartitionError": GONE,
        "UnrecognizedBrokerVersion": REFUSED,
        "UnsupportedCodecError": REFUSED,
        "UnsupportedForMessageFormatError": REFUSED,
        "UnsupportedSaslMechanismError": ACCESS,
        "UnsupportedVersionError": REFUSED,
    }
)
# What is answered to producers, members of groups and administrators; we are none of them.
NEVER_OURS = frozenset(
    {
        "BrokerResponseError",
        "CommitFailedError",
        "ConcurrentTransactions",
        "DuplicateSequenceNumber",
        "GroupIdNotFound",
        "IllegalGenerationError",
        "InconsistentGroupProtocolError",
        "InvalidCommitOffsetSizeError",
        "InvalidPartitionsError",
        "InvalidProducerEpoch",
        "InvalidProducerIdMapping",
        "InvalidReplicationAssignmentError",
        "InvalidReplicationFactorError",
        "InvalidRequiredAcksError",
        "InvalidSessionTimeoutError",
        "InvalidTransactionTimeout",
        "InvalidTxnState",
        "KafkaError",
        "LogDirNotFound",
        "MemberIdRequired",
        "NoError",
        "NoOffsetForPartitionError",
        "NonEmptyGroup",
        "OperationNotAttempted",
        "OutOfOrderSequenceNumber",
        "ProducerClosed",
        "ProducerFenced",
        "RebalanceInProgressError",
        "TopicAlreadyExistsError",
        "TransactionCoordinatorFenced",
        "UnknownMemberIdError",
        "UnknownProducerId",
    }
)


def means(treatment: Treatment) -> Means:
    match treatment:
        case Remedy.FIND_TOPIC:
            return "find topic"
        case Remedy.FIND_OFFSET:
            return "find place"
        case Fatal():
            return "fatal"
        case Retry(Pace.SLOW):
            return "slow"
        case Retry(limit=None):
            return "again"
        case Retry(limit=limit):
            return f"{limit} times"


def both(error: Exception) -> tuple[Means, Means]:
    return means(judge(error, first=True)), means(judge(error, first=False))


@pytest.mark.fault("Access is refused, at first or later")
@pytest.mark.fault("Every request: an error code that Kafka calls retriable")
@pytest.mark.long
@pytest.mark.parametrize("name", sorted(ERRORS))
def test_each_error_of_kafka_means_what_was_decided(name: str) -> None:
    assert both(getattr(kafka, name)()) == ERRORS[name]


@pytest.mark.fault("A broker answers with an error that the policy does not know")
def test_every_error_that_aiokafka_knows_is_decided_on() -> None:
    known = {
        error.__name__
        for _, error in inspect.getmembers(kafka, inspect.isclass)
        if issubclass(error, kafka.KafkaError)
    }
    assert known == ERRORS.keys() | NEVER_OURS


@pytest.mark.parametrize("name", sorted(NEVER_OURS))
def test_what_is_never_answered_to_a_reader_does_not_end_it_at_once(name: str) -> None:
    assert both(getattr(kafka, name)()) == UNKNOWN


@pytest.mark.fault("A broker answers with an error that the policy does not know")
def test_an_error_that_aiokafka_gains_is_judged_by_whether_it_passes() -> None:
    new_error = type("NewError", (kafka.KafkaError,), {"retriable": True})
    assert both(new_error()) == PASSING


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MalformedEventError(), DAMAGE),
        (DamagedFrameError(), DAMAGE),
        (SubscribeTimeoutError(), PASSING),
        (SubscriptionEndedError(), PASSING),
        (SubscriptionSilentError(), PASSING),
        (DecodeFailedError(), REFUSED),
        (SetupError(), REFUSED),
        (ssl.SSLCertVerificationError(), ACCESS),
        (ConnectionResetError(), PASSING),
        (TimeoutError(), PASSING),
        (EOFError(), PASSING),
        (ValueError(), REFUSED),
    ],
)
def test_other_errors_are_judged_by_their_type(
    error: Exception, expected: tuple[Means, Means]
) -> None:
    assert both(error) == expected


@pytest.mark.fault("Access is refused, at first or later")
def test_a_refusal_says_what_to_grant() -> None:
    treatment = judge(kafka.TopicAuthorizationFailedError("t"), first=True)
    assert treatment == Fatal("grant READ and DESCRIBE on the topic to the principal")
