"""The meaning of Kafka's errors for writers, as a table: final with its message, or passing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiokafka import errors as kafka

from fanout.errors import (
    BatchNotWrittenError,
    FanOutError,
    FencedError,
    ServiceError,
    UnwritableRecordError,
)
from fanout.kafka.protocol.error_codes import (
    InvalidRecordError,
    TransactionAbortableError,
    code_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

TOO_LARGE: Final = (kafka.MessageSizeTooLargeError, kafka.RecordListTooLargeError)

_FENCED: Final = (
    kafka.InvalidProducerEpoch,
    kafka.InvalidTxnState,
    kafka.ProducerFenced,
)

FORGOTTEN: Final = (
    "the brokers have deleted the transactional id, which was not used for "
    "transactional.id.expiration.ms, 7 days by default; nothing is lost that was committed: open "
    "the writer again, and write what follows the last commit"
)
"""Why a transactional id that was idle for long cannot be used, and what to do."""

_START_AGAIN: Final[Mapping[type[Exception], str]] = {
    TransactionAbortableError: (
        "the brokers take nothing more into this transaction, and none of it is seen: open the "
        "writer again, and write what follows the last commit"
    ),
    kafka.InvalidProducerIdMapping: FORGOTTEN,
}

# These errors pass, although aiokafka does not mark them as retriable.
_PASSING: Final = (
    kafka.ConcurrentTransactions,  # the transaction before is still being ended
    kafka.CorruptRecordException,  # the request was damaged on its way
    kafka.OperationNotAttempted,
    kafka.StaleLeaderEpochCodeError,  # its code, 13, comes from a broker that lost a connection
)

_UNWRITABLE: Final[Mapping[type[Exception], str]] = {
    **dict.fromkeys(
        TOO_LARGE,
        "a record is too large for it: raise its max.message.bytes, or write a smaller one",
    ),
    InvalidRecordError: (
        "the topic does not take such a record: a compacted one takes none without a key, and some "
        "brokers check records against a schema"
    ),
    kafka.InvalidTimestampError: (
        "the timestamp of a record is further from the broker's clock than the topic allows: see "
        "its message.timestamp.before.max.ms and message.timestamp.after.max.ms"
    ),
}

_HINTS: Final[Mapping[type[Exception], str]] = {
    kafka.TopicAuthorizationFailedError: "grant the principal WRITE on the topic",
    kafka.ClusterAuthorizationFailedError: "grant the principal what the broker's log names",
    kafka.OutOfOrderSequenceNumber: (
        "confirmed records are missing, or another writer uses the same producer id"
    ),
    kafka.UnknownProducerId: "the broker has deleted the producer: check its retention",
    kafka.SaslAuthenticationFailed: (
        "the broker does not take the password or the token any more: give a valid one, and open "
        "the writer again"
    ),
    kafka.TransactionalIdAuthorizationFailed: "grant the principal WRITE on the transactional id",
    kafka.GroupAuthorizationFailedError: "grant the principal READ on the group",
    kafka.InvalidTransactionTimeout: (
        "the brokers allow no transaction to take that long: see transaction.max.timeout.ms"
    ),
    kafka.InvalidTopicError: "the topic is an internal one, or its name is not allowed",
    kafka.UnsupportedForMessageFormatError: "the topic has a message format of before Kafka 0.11",
    **dict.fromkeys(
        (kafka.IllegalGenerationError, kafka.UnknownMemberIdError),
        "the group has members of another application: name a group of its own",
    ),
}
_CODE_HINTS: Final[Mapping[int, str]] = {
    -1: "the broker met an error that it did not expect: see its log",
    76: "the broker does not know the compression.type",
    **dict.fromkeys(
        (82, 110, 113), "the group has members of another application: name a group of its own"
    ),
}
_OF_OTHERS: Final = "Kafka does not define it as an answer to a writer: see the broker's log"


def final_error(error: kafka.KafkaError) -> FanOutError | None:
    """Return the error to raise for a final error of Kafka; None for an error that may pass.

    An unknown topic may pass: a broker may not know a new topic yet.
    """
    kind = type(error)
    message = str(error) or kind.__name__
    if isinstance(error, _FENCED):
        return FencedError(
            f"{message}: a newer run has taken over the writing, or the transaction has ended or "
            "taken longer than its timeout"
        )
    if kind in _START_AGAIN:
        return BatchNotWrittenError(f"{message}: {_START_AGAIN[kind]}")
    if kind in _UNWRITABLE:
        return UnwritableRecordError(f"{message}: {_UNWRITABLE[kind]}")
    if error.retriable or isinstance(error, _PASSING):
        return None
    code = code_of(error)
    hint = _HINTS.get(kind) or _CODE_HINTS.get(code, _OF_OTHERS if code else "")
    return ServiceError(f"the cluster refuses the records, {message}{hint and f': {hint}'}")
