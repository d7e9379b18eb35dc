"""Whose records they are: nobody's, a new producer's, or those of a transaction begun elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupCoordinatorNotAvailableError,
    NotCoordinatorForGroupError,
    OperationNotAttempted,
)
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, InitProducerIdRequest

from fanout.kafka.partitions import Partition, numbers_by_topic
from fanout.kafka.protocol.coordinators import Coordinators, CoordinatorType
from fanout.kafka.protocol.error_codes import error_of, raise_for_code
from fanout.kafka.transactions.commit_token import Incarnation
from fanout.kafka.writing.encoding import NO_PRODUCER_ID, ProducerId

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fanout.kafka.protocol.connections import Connections

__all__ = (
    "Idempotent",
    "OpenTransaction",
    "Transactional",
    "Unconfirmed",
    "WriteMode",
    "obtain_producer_id",
)

_MOVED: Final = {GroupCoordinatorNotAvailableError.errno, NotCoordinatorForGroupError.errno}
_GRANT: Final = (
    "grant the principal WRITE on the topic (or before Kafka 2.8 IDEMPOTENT_WRITE on the cluster)"
)
_NO_TIMEOUT: Final = 2**31 - 1


@final
@dataclass(frozen=True, slots=True)
class Transactional:
    """Write as part of a transaction that somebody else has begun, and will end.

    Args:
        transactional_id: The transaction's name.
        incarnation: Who may write in it.
    """

    transactional_id: str
    incarnation: Incarnation


@final
@dataclass(frozen=True, slots=True)
class Idempotent:
    """Write until all in-sync replicas have the records, each once as long as the writer lives."""


@final
@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """Write without hearing from brokers: records may be lost, or come twice (`acks=0`)."""


WriteMode: TypeAlias = Transactional | Idempotent | Unconfirmed


async def obtain_producer_id(connections: Connections, mode: WriteMode) -> ProducerId:
    """Return who writes, for the cluster.

    Raises:
        KafkaError: If the cluster gives out no number.
    """
    match mode:
        case Transactional(_, Incarnation(producer_id, epoch)):
            return ProducerId(producer_id, epoch, transactional=True)
        case Unconfirmed():
            return NO_PRODUCER_ID
        case Idempotent():
            request = InitProducerIdRequest(None, _NO_TIMEOUT)
            response = await connections.send_to_any(request)
            forbidden = response.error_code == ClusterAuthorizationFailedError.errno
            raise_for_code(response.error_code, _GRANT if forbidden else "a producer id")
            return ProducerId(response.producer_id, response.producer_epoch)


@final
class OpenTransaction:
    """Tell the coordinator of a transaction which partitions are written to.

    Args:
        connections: The connections to the cluster.
        joined: The transaction.
    """

    def __init__(self, connections: Connections, joined: Transactional) -> None:
        self._joined = joined
        self._coordinators = Coordinators(connections, CoordinatorType.TRANSACTION, _has_moved)

    @property
    def name(self) -> str:
        """The transactional id."""
        return self._joined.transactional_id

    async def add(self, partitions: Sequence[Partition]) -> None:
        """Add partitions; those that are in it already may come again.

        Raises:
            KafkaError: If they cannot be added now, or at all.
        """
        joined = self._joined
        request = AddPartitionsToTxnRequest(
            joined.transactional_id,
            joined.incarnation.producer_id,
            joined.incarnation.epoch,
            numbers_by_topic(partitions),
        )
        response = await self._coordinators.send(joined.transactional_id, request)
        errors = [error_of(code, partition) for partition, code in _rows(response)]
        # Where one cannot be added, no other is, and theirs says nothing but that.
        errors.sort(key=lambda error: isinstance(error, OperationNotAttempted))
        for error in errors:
            if error is not None:
                raise error


def _has_moved(response: Any) -> bool:
    return not _MOVED.isdisjoint(code for _, code in _rows(response))


def _rows(response: Any) -> Iterator[tuple[Partition, int]]:
    for topic, partitions in response.errors:
        for number, code in partitions:
            yield Partition(topic, number), code
