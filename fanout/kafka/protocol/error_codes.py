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

RETRIABLE: Final[Mapping[int, str]] = MappingProxyType(
    {
        2: "CORRUPT_MESSAGE",
        3: "UNKNOWN_TOPIC_OR_PARTITION",
        5: "LEADER_NOT_AVAILABLE",
        6: "NOT_LEADER_OR_FOLLOWER",
        7: "REQUEST_TIMED_OUT",
        9: "REPLICA_NOT_AVAILABLE",
        13: "NETWORK_EXCEPTION",
        14: "COORDINATOR_LOAD_IN_PROGRESS",
        15: "COORDINATOR_NOT_AVAILABLE",
        16: "NOT_COORDINATOR",
        19: "NOT_ENOUGH_REPLICAS",
        20: "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        41: "NOT_CONTROLLER",
        51: "CONCURRENT_TRANSACTIONS",
        56: "KAFKA_STORAGE_ERROR",
        70: "FETCH_SESSION_ID_NOT_FOUND",
        71: "INVALID_FETCH_SESSION_EPOCH",
        72: "LISTENER_NOT_FOUND",
        74: "FENCED_LEADER_EPOCH",
        75: "UNKNOWN_LEADER_EPOCH",
        78: "OFFSET_NOT_AVAILABLE",
        80: "PREFERRED_LEADER_NOT_AVAILABLE",
        83: "ELIGIBLE_LEADERS_NOT_AVAILABLE",
        84: "ELECTION_NOT_NEEDED",
        88: "UNSTABLE_OFFSET_COMMIT",
        89: "THROTTLING_QUOTA_EXCEEDED",
        100: "UNKNOWN_TOPIC_ID",
        103: "INCONSISTENT_TOPIC_ID",
        106: "FETCH_SESSION_TOPIC_ID_ERROR",
        122: "SHARE_SESSION_NOT_FOUND",
        123: "INVALID_SHARE_SESSION_EPOCH",
        133: "SHARE_SESSION_LIMIT_REACHED",
    }
)
"""The codes of errors that pass by themselves, with their names (Errors.java of Kafka 4.3).

aiokafka takes some of them for final, and does not know others."""

_TRANSACTIONAL_ID_REFUSED: Final = 53
_GROUP_REFUSED: Final = 30
_TOPIC_REFUSED: Final = 29


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
    kind, name = _KINDS.get(code) or for_code(code), RETRIABLE.get(code, "")
    unknown = f"{what} (code {code}{name and f', {name}'})"
    error: KafkaError = kind(unknown if kind is UnknownError else str(what))
    error.retriable = error.retriable or bool(name)
    return error


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
