"""Notice a broker that hangs: it answers nothing, and its cluster does without it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from aiokafka.errors import KafkaError, RequestTimedOutError
from aiokafka.protocol.metadata import MetadataRequest

from fanout.core.cancellation import prefer_cancellation
from fanout.kafka.cluster import Server

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fanout.core.cancellation import TaskScope

SUSPICIOUS: Final = 3.0
"""The seconds after which a broker may hang. It answers in milliseconds, but for a fetch that waits
for records and a write that waits for replicas. A cluster misses a broker after 9 seconds
(`broker.session.timeout.ms`)."""
_PAUSE: Final = 1.0  # seconds
# For how many seconds a broker that hung comes after others where any broker can be asked.
_AVOIDED: Final = 60.0
_NO_TOPICS: Final = MetadataRequest([])


class Watched(Protocol):
    """The connections of a client."""

    @property
    def servers(self) -> Iterable[Server]:
        """The first brokers to connect to."""

    @property
    def advertised(self) -> Iterable[Server]:
        """The addresses that brokers have told of themselves."""

    async def send_to(self, server: Server, request: Any) -> Any:
        """Send a request to a server by its address, and return its answer."""

    def break_off(self, server: Server, error: KafkaError) -> None:
        """Close the connections to a server; requests that wait for it fail with an error."""


@final
class HangWatch:
    """Ask other brokers about one that answers nothing, and break off with it if it is gone.

    A broker that hangs keeps its connections open: a request would wait for its whole timeout,
    while another broker leads the partitions already. The metadata of a cluster list only brokers
    that its controller hears of (KIP-631: others are fenced).

    Args:
        connections: The connections that are watched.
        scope: Runs the look-ups, one for each broker that is suspected.
    """

    def __init__(self, connections: Watched, scope: TaskScope) -> None:
        self._connections = connections
        self._scope = scope
        self._late: Counter[Server] = Counter()
        self._looking: set[Server] = set()
        self._avoided_until: dict[Server, float] = {}
        self._ended = False

    def end(self) -> None:
        """Begin no further look-up."""
        self._ended = True

    def watching(self, server: Server) -> _Watch:
        """Watch a server while a request waits for its answer in the block."""
        return _Watch(self, server)

    def suspect(self, server: Server) -> None:
        """Note that a request waits for long, and look whether the server is gone."""
        self._late[server] += 1
        if server not in self._looking and not self._ended:
            self._looking.add(server)
            self._scope.spawn(self._look(server), f"watch of {server}")

    def acquit(self, server: Server) -> None:
        """Note that such a request waits no longer."""
        self._late[server] -= 1

    def avoid(self, server: Server) -> None:
        """Ask others first for a minute."""
        self._avoided_until[server] = asyncio.get_running_loop().time() + _AVOIDED

    def is_avoided(self, server: Server) -> bool:
        """Return whether others should be asked first, because it timed out a short time ago."""
        return self._avoided_until.get(server, 0.0) > asyncio.get_running_loop().time()

    async def _look(self, server: Server) -> None:
        """Ask about a server until no request waits for it any more."""
        try:
            while self._late[server] > 0:
                if await self._is_gone(server):
                    what = f"{server} does not answer, and its cluster has no such broker any more"
                    self._connections.break_off(server, RequestTimedOutError(what))
                    # A request that waited for this connection makes another one.
                await asyncio.sleep(_PAUSE)
        finally:
            self._looking.discard(server)

    async def _is_gone(self, server: Server) -> bool:
        """Return whether another broker answers, and no longer knows this one as a broker."""
        connections = self._connections
        if server not in connections.advertised:  # an address that no broker tells of itself
            return False
        servers = dict.fromkeys((*connections.advertised, *connections.servers))
        for other in sorted(servers, key=lambda each: (self.is_avoided(each), self._late[each])):
            if other != server:
                try:
                    async with asyncio.timeout(SUSPICIOUS):
                        metadata = await self._connections.send_to(other, _NO_TOPICS)
                except Exception as error:  # noqa: BLE001 - a request that counts reports it
                    prefer_cancellation(error)
                else:
                    alive = {Server(host, port) for _, host, port, *_ in metadata.brokers}
                    return bool(alive) and server not in alive
        return False


@final
class _Watch:
    """The wait of one request; a generator as context manager takes longer to enter and leave."""

    def __init__(self, hangs: HangWatch, server: Server) -> None:
        self._hangs = hangs
        self._server = server
        self._late = False

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SUSPICIOUS, self._suspect)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._timer.cancel()
        if self._late:
            self._hangs.acquit(self._server)
        if isinstance(error, RequestTimedOutError):
            self._hangs.avoid(self._server)

    def _suspect(self) -> None:
        self._late = True
        self._hangs.suspect(self._server)
