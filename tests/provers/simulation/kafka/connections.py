"""The connections of a process to a simulated cluster, of which the product's watch closes some."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from fanout.kafka.cluster import Server
from fanout.kafka.protocol.hang_watch import SUSPICIOUS, HangWatch
from fanout.testing.virtual_time.loop import running_loop

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fanout.core.cancellation import TaskScope
    from tests.provers.simulation.kafka.sent_responses import SentResponses
    from tests.provers.simulation.kafka.service import KafkaSimService
    from tests.provers.simulation.kafka.witness import KafkaWitness

__all__ = ("SimConnections",)

# A suspected broker is asked about once a second.
_PATIENCE: Final = 1.5


@dataclass(frozen=True, slots=True)
class _Listing:
    brokers: Sequence[tuple[int, str, int, None]]


@final
class SimConnections:
    """Reach brokers, and break off with those that the product's watch takes for gone.

    Args:
        service: What answers.
        sent_responses: Records the responses.
        witness: Is told of a request that waits for too long.
        scope: Runs the look-ups of the watch.
    """

    def __init__(
        self,
        service: KafkaSimService,
        sent_responses: SentResponses,
        witness: KafkaWitness,
        scope: TaskScope,
    ) -> None:
        self._service = service
        self._sent_responses = sent_responses
        self._witness = witness
        self._hangs = HangWatch(self, scope)
        self._broken: dict[int, asyncio.Future[Exception]] = {}

    @property
    def servers(self) -> list[Server]:
        """All brokers, whose ports are their numbers."""
        return [Server("broker", number) for number in self._service.cluster.brokers]

    @property
    def advertised(self) -> list[Server]:
        """All brokers."""
        return self.servers

    def end(self) -> None:
        """Begin no further look-up."""
        self._hangs.end()

    @contextmanager
    def watching(self, broker: int) -> Iterator[None]:
        """Watch a broker while a request is under way to it, and how long that takes."""
        service, loop = self._service, running_loop()
        began, blocked = service.now, loop.blocked
        try:
            with self._hangs.watching(Server("broker", broker)):
                yield
        finally:
            missed = service.cluster.missed_since(broker, service.now)
            if missed is not None and loop.blocked == blocked:
                latest = max(began + SUSPICIOUS, missed) + _PATIENCE
                if service.now > latest and service.cluster.hears_all(broker, began, service.now):
                    self._witness.waits(broker, service.now - latest)

    async def reach(self, broker: int, hang: float) -> None:
        """Let a request travel to a broker; see `KafkaSimService.reach`."""
        broken = self._broken.setdefault(broker, asyncio.get_running_loop().create_future())
        await self._service.reach(broker, self._sent_responses, hang, broken)

    async def send_to(self, server: Server, request: Any) -> _Listing:
        """List the brokers that the cluster does not miss."""
        del request
        service = self._service
        await service.reach(server.port, self._sent_responses)
        heard = [n for n in service.cluster.brokers if self._is_heard(n)]
        return _Listing([(number, "broker", number, None) for number in heard])

    def break_off(self, server: Server, error: Exception) -> None:
        """Close the connection to a broker."""
        broken = self._broken.pop(server.port, None)
        if broken is not None:
            broken.set_result(error)

    def _is_heard(self, broker: int) -> bool:
        return self._service.cluster.missed_since(broker, self._service.now) is None
