"""Find the coordinators of groups and transactional ids, and send them requests."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, final

from aiokafka.errors import KafkaError
from aiokafka.protocol.coordination import FindCoordinatorRequest

from fanout.kafka.cluster import Server
from fanout.kafka.protocol.error_codes import raise_if_refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.kafka.protocol.connections import Connections


@final
class CoordinatorType(IntEnum):
    """What a coordinator coordinates, by its number in FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


@final
class Coordinators:
    """Send requests to the coordinators of one type, and remember which brokers they are.

    Args:
        connections: Connections to the cluster.
        kind: The type of the coordinators.
        has_moved: Returns whether an answer says that another broker coordinates now.
    """

    def __init__(
        self, connections: Connections, kind: CoordinatorType, has_moved: Callable[[Any], bool]
    ) -> None:
        self._connections = connections
        self._kind = kind
        self._has_moved = has_moved
        self._found: dict[str, int] = {}

    async def send(self, key: str, request: Any) -> Any:
        """Send a request to the coordinator, and once more if a remembered one fails.

        A remembered coordinator may have moved, one that was just found not. The request may have
        been carried out twice.

        Args:
            key: The name of the group, or the transactional id.
            request: The request.

        Raises:
            KafkaError: If there is no coordinator at the moment, or it does not answer.
        """
        if key in self._found:
            try:
                response = await self.send_once(key, request)
            except KafkaError as error:
                if not error.retriable:
                    raise
            else:
                if not self._has_moved(response):
                    return response
        return await self.send_once(key, request)

    async def send_once(self, key: str, request: Any) -> Any:
        """Send a request to the coordinator once; find the coordinator first if it is not known.

        Raises:
            KafkaError: If there is no coordinator at the moment, or it does not answer; the request
                may have been carried out.
        """
        coordinator = self._found.get(key)
        if coordinator is None:
            coordinator = await self._find(key)
        try:
            response = await self._connections.send(coordinator, request)
        except KafkaError:
            self._found.pop(key, None)
            raise
        if self._has_moved(response):
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
