"""Turn the error codes of Kafka's answers into aiokafka's errors.

The meaning of an error is decided elsewhere: for reading in `fanout.kafka.reading.policy`, for
writing in `fanout.kafka.writing.policy`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, final

from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    KafkaError,
    KafkaProtocolError,
    NoError,
    NotCoordinatorForGroupError,
    ProducerFenced,
    UnknownError,
    for_code,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MOVED_COORDINATOR: Final = frozenset(
    {GroupCoordinatorNotAvailableError.errno, NotCoordinatorForGroupError.errno}
)
"""The codes of a broker that does not coordinate the group or transactional id any more."""

CODE_NAMES: Final[Mapping[int, str]] = MappingProxyType(
    dict(
        enumerate(
            """
            UNKNOWN_SERVER_ERROR NONE OFFSET_OUT_OF_RANGE CORRUPT_MESSAGE
            UNKNOWN_TOPIC_OR_PARTITION INVALID_FETCH_SIZE LEADER_NOT_AVAILABLE
            NOT_LEADER_OR_FOLLOWER REQUEST_TIMED_OUT BROKER_NOT_AVAILABLE REPLICA_NOT_AVAILABLE
            MESSAGE_TOO_LARGE STALE_CONTROLLER_EPOCH OFFSET_METADATA_TOO_LARGE NETWORK_EXCEPTION
            COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR
            INVALID_TOPIC_EXCEPTION RECORD_LIST_TOO_LARGE NOT_ENOUGH_REPLICAS
            NOT_ENOUGH_REPLICAS_AFTER_APPEND INVALID_REQUIRED_ACKS ILLEGAL_GENERATION
            INCONSISTENT_GROUP_PROTOCOL INVALID_GROUP_ID UNKNOWN_MEMBER_ID
            INVALID_SESSION_TIMEOUT REBALANCE_IN_PROGRESS INVALID_COMMIT_OFFSET_SIZE
            TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED
            INVALID_TIMESTAMP UNSUPPORTED_SASL_MECHANISM ILLEGAL_SASL_STATE UNSUPPORTED_VERSION
            TOPIC_ALREADY_EXISTS INVALID_PARTITIONS INVALID_REPLICATION_FACTOR
            INVALID_REPLICA_ASSIGNMENT INVALID_CONFIG NOT_CONTROLLER INVALID_REQUEST
            UNSUPPORTED_FOR_MESSAGE_FORMAT POLICY_VIOLATION OUT_OF_ORDER_SEQUENCE_NUMBER
            DUPLICATE_SEQUENCE_NUMBER INVALID_PRODUCER_EPOCH INVALID_TXN_STATE
            INVALID_PRODUCER_ID_MAPPING INVALID_TRANSACTION_TIMEOUT CONCURRENT_TRANSACTIONS
            TRANSACTION_COORDINATOR_FENCED TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            SECURITY_DISABLED OPERATION_NOT_ATTEMPTED KAFKA_STORAGE_ERROR LOG_DIR_NOT_FOUND
            SASL_AUTHENTICATION_FAILED UNKNOWN_PRODUCER_ID REASSIGNMENT_IN_PROGRESS
            DELEGATION_TOKEN_AUTH_DISABLED DELEGATION_TOKEN_NOT_FOUND
            DELEGATION_TOKEN_OWNER_MISMATCH DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
            DELEGATION_TOKEN_AUTHORIZATION_FAILED DELEGATION_TOKEN_EXPIRED
            INVALID_PRINCIPAL_TYPE NON_EMPTY_GROUP GROUP_ID_NOT_FOUND FETCH_SESSION_ID_NOT_FOUND
            INVALID_FETCH_SESSION_EPOCH LISTENER_NOT_FOUND TOPIC_DELETION_DISABLED
            FENCED_LEADER_EPOCH UNKNOWN_LEADER_EPOCH UNSUPPORTED_COMPRESSION_TYPE
            STALE_BROKER_EPOCH OFFSET_NOT_AVAILABLE MEMBER_ID_REQUIRED
            PREFERRED_LEADER_NOT_AVAILABLE GROUP_MAX_SIZE_REACHED FENCED_INSTANCE_ID
            ELIGIBLE_LEADERS_NOT_AVAILABLE ELECTION_NOT_NEEDED NO_REASSIGNMENT_IN_PROGRESS
            GROUP_SUBSCRIBED_TO_TOPIC INVALID_RECORD UNSTABLE_OFFSET_COMMIT
            THROTTLING_QUOTA_EXCEEDED PRODUCER_FENCED RESOURCE_NOT_FOUND DUPLICATE_RESOURCE
            UNACCEPTABLE_CREDENTIAL INCONSISTENT_VOTER_SET INVALID_UPDATE_VERSION
            FEATURE_UPDATE_FAILED PRINCIPAL_DESERIALIZATION_FAILURE SNAPSHOT_NOT_FOUND
            POSITION_OUT_OF_RANGE UNKNOWN_TOPIC_ID DUPLICATE_BROKER_REGISTRATION
            BROKER_ID_NOT_REGISTERED INCONSISTENT_TOPIC_ID INCONSISTENT_CLUSTER_ID
            TRANSACTIONAL_ID_NOT_FOUND FETCH_SESSION_TOPIC_ID_ERROR INELIGIBLE_REPLICA
            NEW_LEADER_ELECTED OFFSET_MOVED_TO_TIERED_STORAGE FENCED_MEMBER_EPOCH
            UNRELEASED_INSTANCE_ID UNSUPPORTED_ASSIGNOR STALE_MEMBER_EPOCH
            MISMATCHED_ENDPOINT_TYPE UNSUPPORTED_ENDPOINT_TYPE UNKNOWN_CONTROLLER_ID
            UNKNOWN_SUBSCRIPTION_ID TELEMETRY_TOO_LARGE INVALID_REGISTRATION
            TRANSACTION_ABORTABLE INVALID_RECORD_STATE SHARE_SESSION_NOT_FOUND
            INVALID_SHARE_SESSION_EPOCH FENCED_STATE_EPOCH INVALID_VOTER_KEY DUPLICATE_VOTER
            VOTER_NOT_FOUND INVALID_REGULAR_EXPRESSION REBOOTSTRAP_REQUIRED
            STREAMS_INVALID_TOPOLOGY STREAMS_INVALID_TOPOLOGY_EPOCH STREAMS_TOPOLOGY_FENCED
            SHARE_SESSION_LIMIT_REACHED
            """.split(),  # noqa: SIM905 - a list has a line for each of 135 names
            -1,
        )
    )
)
"""The names of all codes (Errors.java of Kafka 4.3)."""

RETRIABLE: Final = frozenset(
    {
        2,
        3,
        5,
        6,
        7,
        9,
        13,
        14,
        15,
        16,
        19,
        20,
        41,
        51,
        56,
        70,
        71,
        72,
        74,
        75,
        78,
        80,
        83,
        84,
        88,
        89,
        100,
        103,
        106,
        122,
        123,
        133,
    }
)
"""The codes of errors that pass by themselves, as Java's client has them (Kafka 4.3).

aiokafka takes some of them for final, and does not know others."""

_TRANSACTIONAL_ID_REFUSED: Final = 53
_GROUP_REFUSED: Final = 30
_TOPIC_REFUSED: Final = 29


@final
class BrokerError(KafkaError):  # type: ignore[misc]  # aiokafka is untyped
    """An error of a code for which aiokafka has no class, with Kafka's name of the code."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(code, what)
        self.errno = code
        self._what = what

    def __str__(self) -> str:
        name = CODE_NAMES.get(self.errno, "a code that is newer than Kafka 4.3")
        return f"[Error {self.errno}] {name}: {self._what}"


@final
class InvalidRecordError(KafkaError):  # type: ignore[misc]  # aiokafka is untyped
    """A topic does not take a record, such as a compacted topic one without a key."""

    errno = 87
    message = "INVALID_RECORD"


@final
class TransactionAbortableError(KafkaError):  # type: ignore[misc]  # aiokafka is untyped
    """The open transaction has to be aborted, and its records written again (KIP-890)."""

    errno = 120
    message = "TRANSACTION_ABORTABLE"


# aiokafka 0.14 has no class for these codes.
_KINDS: Final[Mapping[int, type[KafkaError]]] = MappingProxyType(
    {87: InvalidRecordError, 90: ProducerFenced, 120: TransactionAbortableError}
)


def error_of(code: int, what: object) -> KafkaError | None:
    """Return the error of a code, with the subject of the call; None for the code of success."""
    if code == NoError.errno:
        return None
    kind = _KINDS.get(code) or for_code(code)
    error: KafkaError
    error = BrokerError(code, str(what)) if kind is UnknownError else kind(str(what))
    error.retriable = error.retriable or code in RETRIABLE
    return error


def code_of(error: BaseException) -> int:
    """Return the code of an error that a broker answered; 0 for every other error."""
    code = getattr(error, "errno", 0) if isinstance(error, KafkaError) else 0
    return code if code in CODE_NAMES else 0


def raise_for_code(code: int, what: object) -> None:
    """Raise the error of a code, with the subject of the call, except for the code of success."""
    error = error_of(code, what)
    if error is not None:
        raise error


def check_complete(asked: Iterable[object], answered: Iterable[object], what: str) -> None:
    """Raise KafkaProtocolError if an answer lacks a row for something that was asked for."""
    found = set(answered)
    missing = [str(each) for each in asked if each not in found]
    if missing:
        raise KafkaProtocolError(f"the answer to {what} has nothing about {', '.join(missing)}")


def raise_if_refused(
    code: int,
    what: str,
    *,
    transactional_id: str = "",
    group: str = "",
    topic: str = "",
    operation: str = "READ",
) -> None:
    """Raise the error of a code, with the missing permission where that is the reason.

    Which operation a call needs on which resource is in Kafka's documentation, "Operations and
    Resources on Protocols".
    """
    missing = {
        _TRANSACTIONAL_ID_REFUSED: f"WRITE on the transactional id {transactional_id}",
        _GROUP_REFUSED: f"READ on the group {group}",
        _TOPIC_REFUSED: f"{operation} on the topic {topic}",
    }
    raise_for_code(code, f"grant the principal {missing[code]}" if code in missing else what)
