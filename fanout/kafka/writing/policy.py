"""What an error of Kafka means to somebody who writes, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiokafka import errors as kafka

from fanout.errors import FanOutError, FencedError, ServiceError, UnwritableRecordError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ("TOO_LARGE", "final_error")

TOO_LARGE: Final = (kafka.MessageSizeTooLargeError, kafka.RecordListTooLargeError)

_FENCED: Final = (
    kafka.InvalidProducerEpoch,
    kafka.InvalidProducerIdMapping,
    kafka.InvalidTxnState,
    kafka.ProducerFenced,
)

# aiokafka takes these for final, or does not know them as passing.
_PASSING: Final = (
    kafka.ConcurrentTransactions,  # the end of the one before is still being written
    kafka.CorruptRecordException,  # the request was damaged on its way
    kafka.OperationNotAttempted,
    kafka.StaleLeaderEpochCodeError,  # its code, 13, is that of a broker that lost a connection
)

_UNWRITABLE: Final[Mapping[type[Exception], str]] = {
    **dict.fromkeys(
        TOO_LARGE,
        "a record is too large for it: raise its max.message.bytes, or write a smaller one",
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
        "records that were confirmed are missing, or somebody else writes under the same name"
    ),
    kafka.UnknownProducerId: "the broker has forgotten who writes: see its retention",
}


def final_error(error: kafka.KafkaError) -> FanOutError | None:
    """Return what is told of an error that is final; None of one that may pass.

    A topic that is not known may be one that a broker has not heard of yet.
    """
    kind = type(error)
    told = str(error) or kind.__name__
    if isinstance(error, _FENCED):
        return FencedError(
            f"{told}: a newer run has taken over the writing, or the transaction has ended or "
            "taken longer than its timeout"
        )
    if kind in _UNWRITABLE:
        return UnwritableRecordError(f"{told}: {_UNWRITABLE[kind]}")
    if error.retriable or isinstance(error, _PASSING):
        return None
    hint = f": {_HINTS[kind]}" if kind in _HINTS else ""
    return ServiceError(f"the cluster refuses the records, {told}{hint}")
