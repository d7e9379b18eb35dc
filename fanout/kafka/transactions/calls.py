"""The calls of Kafka's protocol that finish a transaction, each made once.

The coordinator of a transactional id is called in version 0 of KIP-98's calls, all that aiokafka
has: there a transaction leaves its epoch as it is, so that a token stays good until somebody begins
anew. What the error codes mean there (TransactionCoordinator.scala):

- 47 INVALID_PRODUCER_EPOCH: the epoch is not the newest: somebody has begun anew, or the broker has
  aborted the transaction, because it expired, which takes an epoch of its own.
- 48 INVALID_TXN_STATE: the epoch is the newest, but its transaction was ended the other way, or
  nothing was ever written in it.
- 49 INVALID_PRODUCER_ID_MAPPING: the broker has no such transactional id, which it forgets after a
  week without use, or has another producer id for it: its epochs were used up.
- 51 CONCURRENT_TRANSACTIONS: something is still being ended; it passes.
- 14, 15, 16: the coordinator is starting or moving; it passes.
- 53, 30, 29: the transactional id, the group, or the topic may not be used.
- 88 UNSTABLE_OFFSET_COMMIT: an open transaction has an offset here, so far (KIP-447).
- 105 TRANSACTIONAL_ID_NOT_FOUND: the broker has no such transactional id (KIP-664).

Errors pass as the `aiokafka.errors.KafkaError` of their code, and are retriable where the same call
may work later.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, final

from aiokafka.errors import (
    ConcurrentTransactions,
    GroupCoordinatorNotAvailableError,
    IncompatibleBrokerVersion,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    KafkaError,
    NodeNotReadyError,
    NotCoordinatorForGroupError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from fanout.kafka.protocol.coordinators import Coordinators, CoordinatorType
from fanout.kafka.protocol.error_codes import raise_for_code, raise_if_refused
from fanout.kafka.protocol.messages.transactions import (
    CommittedOffsetsRequest,
    DescribeTransactionsRequest,
)
from fanout.kafka.protocol.metadata import fetch_metadata
from fanout.kafka.transactions.commit_token import Incarnation
from fanout.kafka.transactions.outcome import TransactionDescription, TransactionState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.kafka.protocol.connections import Connections
    from fanout.kafka.transactions.commit_token import CommitToken

__all__ = ("Markers", "NotYetError", "TransactionCalls")

_MOVED: Final = {GroupCoordinatorNotAvailableError.errno, NotCoordinatorForGroupError.errno}
_NOT_OPEN: Final = {
    InvalidProducerEpoch.errno,
    InvalidTxnState.errno,
    InvalidProducerIdMapping.errno,
}
_UNSTABLE_OFFSET: Final = 88
_ID_NOT_FOUND: Final = 105
_MARKED_PARTITION: Final = 0
_BROKER: Final = 4  # the kind of a resource whose configuration is asked for
_MAX_TIMEOUT: Final = "transaction.max.timeout.ms"


@final
class NotYetError(KafkaError):  # type: ignore[misc]  # aiokafka is untyped
    """A transaction is still being ended, so that the same call has another answer soon."""

    retriable = True


@final
@dataclass(frozen=True, slots=True)
class Markers:
    """What a marker group says.

    Args:
        newest: The newest batch that is marked as committed; None where none is.
        pending: Whether an open transaction has set a marker, whatever becomes of it.
    """

    newest: int | None
    pending: bool


@final
class TransactionCalls:
    """Make the calls, to the brokers that coordinate what they are about.

    Args:
        connections: To the cluster.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._ids = Coordinators(connections, CoordinatorType.TRANSACTION, _has_moved)
        self._groups = Coordinators(connections, CoordinatorType.GROUP, _has_moved)

    async def begin(self, transactional_id: str, seconds: float) -> Incarnation | None:
        """Take a transactional id over (InitProducerId).

        Returns:
            Who may write in it from now on; None where the broker allows no such timeout.
        """
        request = InitProducerIdRequest(transactional_id, round(seconds * 1000))
        response = await self._ids.send(transactional_id, request)
        if response.error_code == InvalidTransactionTimeout.errno:
            return None
        _check_ended(response.error_code, transactional_id)
        raise_if_refused(response.error_code, transactional_id, transactional_id=transactional_id)
        return Incarnation(response.producer_id, response.producer_epoch)

    async def announce_mark(self, token: CommitToken) -> bool:
        """Let the transaction cover the marker group (AddOffsetsToTxn).

        Returns:
            Whether the transaction may still be written to.
        """
        request = AddOffsetsToTxnRequest(
            token.transactional_id,
            token.incarnation.producer_id,
            token.incarnation.epoch,
            token.marker_group,
        )
        response = await self._ids.send(token.transactional_id, request)
        if response.error_code in _NOT_OPEN:
            return False
        _check(response.error_code, token)
        return True

    async def mark(self, token: CommitToken) -> bool:
        """Set the marker in each topic that the transaction wrote to (TxnOffsetCommit).

        Returns:
            Whether the transaction may still be written to.
        """
        request = TxnOffsetCommitRequest(
            token.transactional_id,
            token.marker_group,
            token.incarnation.producer_id,
            token.incarnation.epoch,
            [(topic, [(_MARKED_PARTITION, token.batch_id, "")]) for topic in token.topics],
        )
        response = await self._groups.send(token.marker_group, request)
        for topic, partitions in response.errors:
            for _, code in partitions:
                if code in _NOT_OPEN:
                    return False
                _check(code, token, topic)
        return True

    async def end(self, transactional_id: str, who: Incarnation, *, commit: bool) -> bool:
        """End what is open, one way or the other (EndTxn).

        It is sent once. What was carried out, although its answer was lost, is not tried blindly
        again: a zombie may have opened another transaction with the same epoch meanwhile.

        Returns:
            Whether it is ended this way; nobody but the same incarnation can have done so before.
        """
        request = EndTxnRequest(transactional_id, who.producer_id, who.epoch, commit)
        response = await self._ids.send_once(transactional_id, request)
        if response.error_code in _NOT_OPEN:
            return False
        _check_ended(response.error_code, transactional_id)
        raise_if_refused(response.error_code, transactional_id, transactional_id=transactional_id)
        return True

    async def marks(
        self, group: str, topics: Sequence[str] | None, *, stable: bool = True
    ) -> Markers:
        """Read the markers of a group in some topics, or in all with a committed one (OffsetFetch).

        Args:
            group: The group.
            topics: The topics; None for all.
            stable: Whether to "require stable" (KIP-447): in a topic that an open transaction has
                marked, or one that is committed without all partitions having been told, the
                marker is pending then, and not what it was before.
        """
        request = CommittedOffsetsRequest(group, topics, stable=stable)
        try:
            response = await self._groups.send(group, request)
        except IncompatibleBrokerVersion as error:
            raise IncompatibleBrokerVersion(
                "exactly-once needs Kafka 2.5 or later, whose brokers tell a marker that is not "
                "there from one of an open transaction (KIP-447)"
            ) from error
        raise_if_refused(response.error_code, group, group=group)
        newest, pending = -1, False
        for topic, partitions, _ in response.topics:
            for _, offset, _, _, code, _ in partitions:
                if code == _UNSTABLE_OFFSET:
                    pending = True
                else:
                    raise_if_refused(code, group, topic=topic, operation="DESCRIBE")
                    newest = max(newest, offset)
        return Markers(newest if newest >= 0 else None, pending)

    async def describe(self, transactional_id: str) -> TransactionDescription | None:
        """Ask where a transactional id stands (DescribeTransactions); None before Kafka 3.0."""
        request = DescribeTransactionsRequest(transactional_id)
        try:
            response = await self._ids.send(transactional_id, request)
        except IncompatibleBrokerVersion:
            return None
        ((code, _, phase, timeout, started, producer_id, epoch, topics, _),) = response.states
        if code == _ID_NOT_FOUND:
            return TransactionDescription(phase=TransactionState.UNKNOWN, partitions={})
        raise_if_refused(code, transactional_id, transactional_id=transactional_id)
        if phase not in {known.value for known in TransactionState}:
            raise UnsupportedVersionError(f"the brokers name a state that is not known: {phase}")
        return TransactionDescription(
            phase=TransactionState(phase),
            incarnation=Incarnation(producer_id, epoch),
            timeout=timeout / 1000,
            started_at=datetime.fromtimestamp(started / 1000, UTC) if started >= 0 else None,
            partitions={topic: tuple(sorted(numbers)) for topic, numbers, _ in topics},
        )

    async def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has."""
        response = await fetch_metadata(self._connections, [topic])
        ((code, _, _, partitions),) = response.topics
        raise_if_refused(code, topic, topic=topic, operation="DESCRIBE")
        return len(partitions)

    async def max_timeout(self) -> float:
        """Return the longest timeout that a broker allows, in seconds."""
        response = await fetch_metadata(self._connections, [])
        if not response.brokers:
            raise NodeNotReadyError("the broker is just starting, and knows none")
        broker = response.brokers[0][0]
        request = DescribeConfigsRequest([(_BROKER, str(broker), [_MAX_TIMEOUT])])
        response = await self._connections.send(broker, request)
        ((code, _, _, _, entries),) = response.resources
        raise_for_code(code, _MAX_TIMEOUT)
        ((_, value, *_),) = entries
        return int(value) / 1000


def _has_moved(response: Any) -> bool:
    """Return whether an answer of any of these calls says that another broker coordinates now."""
    codes = {getattr(response, "error_code", 0)}
    if hasattr(response, "errors"):
        codes |= {code for _, partitions in response.errors for _, code in partitions}
    if hasattr(response, "states"):
        codes |= {state[0] for state in response.states}
    return not codes.isdisjoint(_MOVED)


def _check(code: int, token: CommitToken, topic: str = "") -> None:
    """Raise the error of a code that marking a transaction was answered with."""
    group = token.marker_group
    what = f"{token.transactional_id}, marked in {group}"
    if code == UnknownTopicOrPartitionError.errno:
        what = f"the topic {topic} does not exist, so that nothing can be marked as committed in it"
    _check_ended(code, token.transactional_id)
    raise_if_refused(code, what, transactional_id=token.transactional_id, group=group, topic=topic)


def _check_ended(code: int, transactional_id: str) -> None:
    if code == ConcurrentTransactions.errno:
        raise NotYetError(f"a transaction of {transactional_id} is still being ended (code 51)")
