"""Find the coordinators of groups and transactional ids, and send them requests."""

from __future__ import annotations

from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, final

from aiokafka.errors import KafkaError
from aiokafka.protocol.coordination import FindCoordinatorRequest

from fanout.kafka.cluster import Server
from fanout.kafka.partitions import partition_rows
from fanout.kafka.protocol.error_codes import MOVED_COORDINATOR, raise_if_refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fanout.kafka.protocol.connections import Connections

# The versions of OffsetFetch since which the rows have one, and since which groups have the rows.
_LEADER_EPOCHS: Final = 5
_SEVERAL_GROUPS: Final = 8


@final
class CoordinatorType(IntEnum):
    """What a coordinator coordinates, by its number in FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


@final
class Coordinators:
    """Send requests to the coordinators of one type, and remember which brokers they are."""

    def __init__(self, connections: Connections, kind: CoordinatorType) -> None:
        self._connections = connections
        self._kind = kind
        self._found: dict[str, int] = {}

    async def send(self, key: str, request: Any) -> Any:
        """Send a request to the coordinator of a key, and once more if a remembered one fails.

        A remembered coordinator may have moved, one that was just found not. The request may have
        been carried out twice.
        """
        if key in self._found:
            try:
                response = await self.send_once(key, request)
            except KafkaError as error:
                if not error.retriable:
                    raise
            else:
                if not _has_moved(response):
                    return response
        return await self.send_once(key, request)

    async def send_once(self, key: str, request: Any) -> Any:
        """Send a request to the coordinator once; find the coordinator first if it is not known.

        After an error the request may have been carried out.
        """
        coordinator = self._found.get(key)
        if coordinator is None:
            coordinator = await self._find(key)
        try:
            response = await self._connections.send(coordinator, request)
        except KafkaError:
            self._found.pop(key, None)
            raise
        if _has_moved(response):
            self._found.pop(key, None)
        else:
            self._found[key] = coordinator
        return response

    async def _find(self, key: str) -> int:
        request = FindCoordinatorRequest(key, self._kind)
        found = await self._connections.send_to_any(request)
        raise_if_refused(found.error_code, key, transactional_id=key, group=key)
        coordinator: int = found.coordinator_id
        self._connections.add_broker(coordinator, Server(found.host, found.port))
        return coordinator


def codes_of(answer: Any) -> set[int]:
    """Return all error codes in the answer of a coordinator."""
    return {*_CODES[answer.API_KEY](answer)}


def _of_answer(answer: Any) -> Iterable[int]:
    return [answer.error_code]


def _of_groups(answer: Any) -> Iterable[int]:
    return (code for code, *_ in answer.groups)


def _of_errors(answer: Any) -> Iterable[int]:
    return (code for _, code, *_ in partition_rows(answer.errors))


def _of_offsets(answer: Any) -> Iterable[int]:
    if answer.API_VERSION >= _SEVERAL_GROUPS:
        rows = [row for _, topics, *_ in answer.groups for row in partition_rows(topics)]
        return [*(code for *_, code, _ in answer.groups), *(row[4] for row in rows)]
    at = 3 if answer.API_VERSION < _LEADER_EPOCHS else 4
    return [answer.error_code, *(row[at] for row in partition_rows(answer.topics))]


# Where the answer to each request has its codes, by the number of the request.
_CODES: Final[Mapping[int, Callable[[Any], Iterable[int]]]] = MappingProxyType(
    {
        8: lambda answer: (code for _, code, *_ in partition_rows(answer.topics)),  # OffsetCommit
        9: _of_offsets,  # OffsetFetch
        15: _of_groups,  # DescribeGroups
        16: _of_answer,  # ListGroups
        22: _of_answer,  # InitProducerId
        24: _of_errors,  # AddPartitionsToTxn
        25: _of_answer,  # AddOffsetsToTxn
        26: _of_answer,  # EndTxn
        28: _of_errors,  # TxnOffsetCommit
        65: lambda answer: (code for code, *_ in answer.states),  # DescribeTransactions
        68: _of_answer,  # ConsumerGroupHeartbeat
        69: _of_groups,  # ConsumerGroupDescribe
        77: _of_groups,  # ShareGroupDescribe
        90: lambda answer: (code for _, _, code, *_ in answer.groups),  # DescribeShareGroupOffsets
    }
)


def _has_moved(answer: Any) -> bool:
    return not MOVED_COORDINATOR.isdisjoint(codes_of(answer))
