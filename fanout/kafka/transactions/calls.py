"""Make the calls of Kafka's protocol that begin, mark and end transactions, each once.

The coordinator of a transactional id is called in version 0 of KIP-98's calls, all that aiokafka
has: there a transaction keeps its epoch when it ends, so a token stays valid until the next run.
The error codes mean there (TransactionCoordinator.scala):

- 47 INVALID_PRODUCER_EPOCH: the epoch is not the newest: another run has begun, or the broker has
  aborted the expired transaction, which raises the epoch.
- 48 INVALID_TXN_STATE: the epoch is the newest, but its transaction was ended the other way, or
  nothing was ever written in it.
- 49 INVALID_PRODUCER_ID_MAPPING: the broker has no such transactional id, because it deletes unused
  ids after a week, or has another producer id for it, because its epochs were used up.
- 51 CONCURRENT_TRANSACTIONS: a transaction is still being ended; it passes.
- 14, 15, 16: the coordinator is starting or moving; it passes.
- 53, 30, 29: the transactional id, the group, or the topic may not be used.
- 88 UNSTABLE_OFFSET_COMMIT: an open transaction has set an offset here (KIP-447).
- 105 TRANSACTIONAL_ID_NOT_FOUND: the broker has no such transactional id (KIP-664).

Where a member of the group sets its offsets by TxnOffsetCommit (KIP-447), the group's coordinator
answers (ConsumerGroup.validateOffsetCommit):

- 22 ILLEGAL_GENERATION, 110, 113: the epoch is older than the assignment of a partition. The member
  may have a newer epoch and the partition still, or have lost it.
- 25 UNKNOWN_MEMBER_ID: the member was not heard for a session, and has lost everything.
- 82 FENCED_INSTANCE_ID: another process has come with the static id of this one.

Errors pass unchanged as the `aiokafka.errors.KafkaError` of their code, and are retriable where the
same call may work later.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Final, final

from aiokafka.errors import (
    ConcurrentTransactions,
    IncompatibleBrokerVersion,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    KafkaError,
    NodeNotReadyError,
    NoError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.transaction import (
    AddOffsetsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)

from fanout.errors import FanOutError
from fanout.kafka.group.calls import GroupOffsets
from fanout.kafka.partitions import Partition, partition_rows
from fanout.kafka.protocol.cluster_metadata import fetch_metadata
from fanout.kafka.protocol.coordinators import Coordinators, CoordinatorType
from fanout.kafka.protocol.error_codes import (
    CODE_NAMES,
    check_complete,
    raise_for_code,
    raise_if_refused,
)
from fanout.kafka.protocol.messages.transactions import (
    CommittedOffsetsRequest,
    DescribeTransactionsRequest,
    TxnOffsetCommitRequest,
)
from fanout.kafka.reading.offsets import cursor_before
from fanout.kafka.transactions.commit_token import Incarnation
from fanout.kafka.transactions.outcome import TransactionDescription, TransactionState

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fanout.core.positions import Cursor
    from fanout.kafka.protocol.connections import Connections
    from fanout.kafka.transactions.commit_token import CommitToken

_NOT_OPEN: Final = {
    InvalidProducerEpoch.errno,
    InvalidTxnState.errno,
    InvalidProducerIdMapping.errno,
}
_MEMBER_REFUSED: Final = frozenset({22, 25, 82, 110, 113})
_NO_MEMBER: Final = ("", -1, None)
_UNSTABLE_OFFSET: Final = 88
_ID_NOT_FOUND: Final = 105
_MARKED_PARTITION: Final = 0
_BROKER: Final = 4  # the type of a resource whose configuration is requested
_MAX_TIMEOUT: Final = "transaction.max.timeout.ms"


@final
class NotYetError(KafkaError):  # type: ignore[misc]  # aiokafka is untyped
    """A transaction is still being ended, so the same call may work soon."""

    retriable = True


@final
class MemberRefusedError(FanOutError):
    """A group's coordinator takes no offsets from a member, by the epoch that it has named."""


@final
@dataclass(frozen=True, slots=True)
class Markers:
    """The newest batch that a group marks as committed, and what its marker tells of that batch.

    `pending` says whether a transaction that is still open has set a marker.
    """

    newest: int | None
    pending: bool
    content: str = ""


@final
class TransactionCalls:
    """Make the calls to the coordinators of transactional ids and marker groups."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._ids = Coordinators(connections, CoordinatorType.TRANSACTION)
        self._groups = Coordinators(connections, CoordinatorType.GROUP)

    async def begin(self, transactional_id: str, seconds: float) -> Incarnation | None:
        """Begin a run of an id (InitProducerId); None where the broker allows no such timeout."""
        request = InitProducerIdRequest(transactional_id, round(seconds * 1000))
        response = await self._ids.send(transactional_id, request)
        if response.error_code == InvalidTransactionTimeout.errno:
            return None
        _check_ended(response.error_code, transactional_id)
        raise_if_refused(response.error_code, transactional_id, transactional_id=transactional_id)
        return Incarnation(response.producer_id, response.producer_epoch)

    async def add_marker_group(self, token: CommitToken) -> bool:
        """Add the marker group to the transaction; see `add_group`."""
        return await self.add_group(token.transactional_id, token.incarnation, token.marker_group)

    async def mark(self, token: CommitToken, content: str = "") -> bool:
        """Set the marker, with its content, in each topic of the transaction; see `set_offsets`."""
        offsets = {Partition(topic, _MARKED_PARTITION): token.batch_id for topic in token.topics}
        markers = GroupOffsets(token.marker_group, offsets, dict.fromkeys(token.topics, content))
        return await self.set_offsets(token.transactional_id, token.incarnation, markers)

    async def add_group(self, transactional_id: str, incarnation: Incarnation, group: str) -> bool:
        """Add a group to the transaction (AddOffsetsToTxn), which begins with it if none is open.

        Return whether the transaction may still be written to.
        """
        request = AddOffsetsToTxnRequest(
            transactional_id, incarnation.producer_id, incarnation.epoch, group
        )
        response = await self._ids.send(transactional_id, request)
        if response.error_code in _NOT_OPEN:
            return False
        _check(response.error_code, transactional_id, group)
        return True

    async def set_offsets(
        self, transactional_id: str, incarnation: Incarnation, stored: GroupOffsets
    ) -> bool:
        """Set offsets of an added group in the transaction (TxnOffsetCommit).

        Return whether the transaction may still be written to.

        Raises:
            MemberRefusedError: If the group may have another member for a partition by now.
        """
        group, member = stored.group, stored.member
        transaction = (transactional_id, group, incarnation.producer_id, incarnation.epoch)
        wire = _NO_MEMBER if member is None else member.wire
        request = TxnOffsetCommitRequest(transaction, wire, stored.rows)
        response = await self._groups.send(group, request)
        codes = {partition: code for partition, code, *_ in partition_rows(response.errors)}
        for partition, code in codes.items():
            if code in _NOT_OPEN:
                return False
            if member is not None and code in _MEMBER_REFUSED:
                raise MemberRefusedError(
                    f"the group {group} refuses offsets of this member: {CODE_NAMES[code]}"
                )
            _check(code, transactional_id, group, partition.topic)
        check_complete(stored.offsets, codes, f"setting offsets of {group}")
        return True

    async def positions(self, group: str) -> dict[Partition, Cursor]:
        """Read all offsets of a group (OffsetFetch), or NotYetError if a transaction is open."""
        response = await self._groups.send(group, CommittedOffsetsRequest(group, None, stable=True))
        raise_if_refused(response.error_code, group, group=group)
        found: dict[Partition, Cursor] = {}
        for partition, offset, epoch, _, code, _ in partition_rows(response.topics):
            if code == _UNSTABLE_OFFSET:
                raise NotYetError(f"a transaction with offsets of {group} is still open")
            raise_if_refused(code, group, topic=partition.topic, operation="DESCRIBE")
            if offset >= 0:
                found[partition] = cursor_before(offset, epoch)
        return found

    async def end(self, transactional_id: str, incarnation: Incarnation, *, commit: bool) -> bool:
        """Commit or abort the open transaction (EndTxn); return whether it has ended this way.

        The request is sent once. It is not retried blindly after a lost answer: a zombie may have
        opened another transaction with the same epoch meanwhile. An earlier call of this producer
        may have ended it.
        """
        request = EndTxnRequest(
            transactional_id, incarnation.producer_id, incarnation.epoch, commit
        )
        response = await self._ids.send_once(transactional_id, request)
        if response.error_code in _NOT_OPEN:
            return False
        _check_ended(response.error_code, transactional_id)
        raise_if_refused(response.error_code, transactional_id, transactional_id=transactional_id)
        return True

    async def markers(
        self, group: str, topics: Sequence[str] | None, *, stable: bool = True
    ) -> Markers:
        """Read the markers of a group in some topics, or in all with a committed one (OffsetFetch).

        With `stable` ("require stable" of KIP-447) the marker of an open transaction, or one whose
        commit has not reached all partitions, is reported as pending, instead of the marker before
        it.
        """
        request = CommittedOffsetsRequest(group, topics, stable=stable)
        try:
            response = await self._groups.send(group, request)
        except IncompatibleBrokerVersion as error:
            raise IncompatibleBrokerVersion(
                "exactly-once needs Kafka 2.5 or later, whose brokers distinguish a missing marker "
                "from one of an open transaction (KIP-447)"
            ) from error
        raise_if_refused(response.error_code, group, group=group)
        newest, content, pending = -1, "", False
        for partition, offset, _, metadata, code, _ in partition_rows(response.topics):
            if code == _UNSTABLE_OFFSET:
                pending = True
            else:
                raise_if_refused(code, group, topic=partition.topic, operation="DESCRIBE")
                newest, content = max((newest, content), (offset, metadata or ""))
        return Markers(newest if newest >= 0 else None, pending, content)

    async def describe(self, transactional_id: str) -> TransactionDescription | None:
        """Return the description of a transactional id (DescribeTransactions); None before 3.0."""
        request = DescribeTransactionsRequest(transactional_id)
        try:
            response = await self._ids.send(transactional_id, request)
        except IncompatibleBrokerVersion:
            return None
        ((code, _, state, timeout, started, producer_id, epoch, topics, _),) = response.states
        if code == _ID_NOT_FOUND:
            return TransactionDescription(state=TransactionState.UNKNOWN, partitions={})
        raise_if_refused(code, transactional_id, transactional_id=transactional_id)
        if state not in {known.value for known in TransactionState}:
            raise UnsupportedVersionError(f"the brokers name an unknown state: {state}")
        return TransactionDescription(
            state=TransactionState(state),
            incarnation=Incarnation(producer_id, epoch),
            timeout=timeout / 1000,
            started_at=datetime.fromtimestamp(started / 1000, UTC) if started >= 0 else None,
            partitions={topic: tuple(sorted(numbers)) for topic, numbers, _ in topics},
        )

    async def partition_counts(
        self, topics: Collection[str], others: Collection[str]
    ) -> dict[str, int]:
        """Return how many partitions topics have, and those of the others that can be described."""
        response = await fetch_metadata(self._connections, sorted({*topics, *others}))
        counts = {}
        for topic in sorted(response.topics, key=attrgetter("name")):
            name, code = topic.name, topic.error_code
            if name in topics:
                raise_if_refused(code, name, topic=name, operation="DESCRIBE")
            if code == NoError.errno:
                counts[name] = len(topic.leaders)
        return counts

    async def max_timeout(self) -> float | None:
        """Return the longest timeout that a broker allows, in seconds; None if it does not say."""
        brokers = (await fetch_metadata(self._connections, [])).brokers
        if not brokers:
            raise NodeNotReadyError("the broker is just starting, and lists no brokers")
        broker = min(brokers)
        request = DescribeConfigsRequest([(_BROKER, str(broker), [_MAX_TIMEOUT])])
        response = await self._connections.send(broker, request)
        ((code, _, _, _, entries),) = response.resources
        raise_for_code(code, _MAX_TIMEOUT)
        values = [value for name, value, *_ in entries if name == _MAX_TIMEOUT]
        return int(values[0]) / 1000 if values and values[0] else None


def _check(code: int, transactional_id: str, group: str, topic: str = "") -> None:
    """Raise the error of a code in the answer to a call that sets offsets in a transaction."""
    what = f"{transactional_id}, with offsets of {group}"
    if code == UnknownTopicOrPartitionError.errno:
        what = f"the topic {topic} does not exist, so a transaction cannot be marked in it"
    _check_ended(code, transactional_id)
    raise_if_refused(code, what, transactional_id=transactional_id, group=group, topic=topic)


def _check_ended(code: int, transactional_id: str) -> None:
    if code == ConcurrentTransactions.errno:
        raise NotYetError(f"a transaction of {transactional_id} is still being ended (code 51)")
