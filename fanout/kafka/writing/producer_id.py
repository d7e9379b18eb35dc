"""The modes of writing, and the producer ids that they need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, final

from aiokafka.errors import ClusterAuthorizationFailedError, OperationNotAttempted
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, InitProducerIdRequest

from fanout.kafka.partitions import numbers_by_topic, partition_rows
from fanout.kafka.protocol.coordinators import Coordinators, CoordinatorType
from fanout.kafka.protocol.error_codes import check_complete, error_of, raise_for_code
from fanout.kafka.transactions.commit_token import Incarnation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fanout.kafka.partitions import Partition
    from fanout.kafka.protocol.connections import Connections

_GRANT: Final = (
    "grant the principal WRITE on the topic (or before Kafka 2.8 IDEMPOTENT_WRITE on the cluster)"
)
_NO_TIMEOUT: Final = 2**31 - 1


@final
@dataclass(frozen=True, slots=True)
class ProducerId:
    """A producer, by which brokers recognise repeated batches and fence former producers.

    The cluster assigns the number, -1 for none, and the epoch.
    """

    producer_id: int
    epoch: int
    transactional: bool = False


NO_PRODUCER_ID: Final = ProducerId(-1, -1)
"""The producer of records without idempotence."""


@final
@dataclass(frozen=True, slots=True)
class Transactional:
    """Write as part of a transaction that another process has begun and will end."""

    transactional_id: str
    incarnation: Incarnation


@final
@dataclass(frozen=True, slots=True)
class Idempotent:
    """Write to all in-sync replicas, each record once during the life of the writer."""


@final
@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """Write without confirmation: records may be lost or repeated (`acks=0`)."""


WriteMode: TypeAlias = Transactional | Idempotent | Unconfirmed


async def obtain_producer_id(connections: Connections, mode: WriteMode) -> ProducerId:
    """Return the producer id of a mode, assigned by the cluster where the mode needs a new one."""
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
    """Add partitions to an open transaction, as its coordinator requires before a write."""

    def __init__(self, connections: Connections, mode: Transactional) -> None:
        self._mode = mode
        self._coordinators = Coordinators(connections, CoordinatorType.TRANSACTION)

    @property
    def name(self) -> str:
        """The transactional id."""
        return self._mode.transactional_id

    async def add(self, partitions: Sequence[Partition]) -> None:
        """Add partitions; those already added may be passed again."""
        mode = self._mode
        request = AddPartitionsToTxnRequest(
            mode.transactional_id,
            mode.incarnation.producer_id,
            mode.incarnation.epoch,
            numbers_by_topic(partitions),
        )
        response = await self._coordinators.send(mode.transactional_id, request)
        rows = dict(partition_rows(response.errors))
        check_complete(partitions, rows, "adding partitions to a transaction")
        errors = [error_of(code, partition) for partition, code in rows.items()]
        # If one partition fails, none is added, and the errors of the others say only that.
        errors.sort(key=lambda error: isinstance(error, OperationNotAttempted))
        for error in errors:
            if error is not None:
                raise error
