"""The brokers that coordinate a consumer group or a transactional id: found, asked, remembered."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, final

from aiokafka.errors import KafkaError
from aiokafka.protocol.coordination import FindCoordinatorRequest

from fanout.kafka.cluster import Server
from fanout.kafka.protocol.fields import raise_if_refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from fanout.kafka.protocol.connections import Connections

__all__ = ("CoordinatorType", "Coordinators")


@final
class CoordinatorType(IntEnum):
    """What a coordinator coordinates, by the number that FindCoordinator has for it."""

    GROUP = 0
    TRANSACTION = 1


@final
class Coordinators:
    """Ask the coordinators of one kind.

    Args:
        connections: To the cluster.
        kind: What they coordinate.
        has_moved: Whether an answer says that it is another broker now.
    """

    def __init__(
        self, connections: Connections, kind: CoordinatorType, has_moved: Callable[[Any], bool]
    ) -> None:
        self._connections = connections
        self._kind = kind
        self._has_moved = has_moved
        self._found: dict[str, int] = {}

    async def ask(self, key: str, request: Any) -> Any:
        """Ask the coordinator; one that is remembered may be wrong, one just found not.

        So a call that fails at the first is made at the second as well, and not more. It may then
        have been carried out twice.

        Args:
            key: The name of the group, or the transactional id.
            request: The request.

        Raises:
            KafkaError: There is no coordinator at the moment, or it does not answer.
        """
        if key in self._found:
            try:
                response = await self.ask_once(key, request)
            except KafkaError as error:
                if not error.retriable:
                    raise
            else:
                if not self._has_moved(response):
                    return response
        return await self.ask_once(key, request)

    async def ask_once(self, key: str, request: Any) -> Any:
        """Send a request to the coordinator, which is found first where it is not known.

        Raises:
            KafkaError: There is no coordinator at the moment, or it does not answer; the request
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
        self._connections.add(coordinator, Server(found.host, found.port))
        return coordinator
