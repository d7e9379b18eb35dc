"""Make the first contact with a cluster within a bound, or say why no broker can be used.

Errors that cannot pass, such as a wrong protocol, end it at once. A broker that is starting gets
the whole time. After the first contact every caller has its own rule for retries.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, final

from aiokafka.protocol.metadata import MetadataRequest

from fanout.core.cancellation import prefer_cancellation
from fanout.core.sentence import Option, Sentence, in_brackets, joined
from fanout.errors import FanOutError, ServiceError
from fanout.kafka.cluster import Server
from fanout.kafka.protocol.connections import open_connections
from fanout.kafka.protocol.diagnosis import Diagnosis, diagnose

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fanout.kafka.cluster import Cluster
    from fanout.kafka.protocol.connections import Connections, Timeouts

_APART: Final = 0.25  # seconds between the beginnings with two servers: most need only the first
# Seconds of the first attempt at a server: then it is probed whether another one can help.
_FIRST_ATTEMPT: Final = 3.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0  # seconds between two attempts at one server
_MOST_NAMED: Final = 5
_UNKNOWN: Final = "nothing answers in time; check the address, the firewall and the broker"
# Every listener answers a request for versions; this one only after authentication.
_REQUEST: Final = MetadataRequest([], allow_auto_topic_creation=False)


@asynccontextmanager
async def open_cluster(cluster: Cluster, options: Timeouts) -> AsyncIterator[Connections]:
    """Open connections to a cluster; wait up to its `connect_timeout` until a broker answers.

    Raises:
        OptionError: If a server would be used without TLS, or a file cannot be used.
        ServiceError: If no server can be used; it says what each looks like.
    """
    async with open_connections(cluster, options) as connections:
        await make_contact(connections, cluster.connect_timeout)
        yield connections


async def make_contact(connections: Connections, seconds: float) -> None:
    """Wait until one server of a cluster has answered, and one at the address that it advertises.

    Raises:
        OptionError: If the function for a token returns no string.
        ServiceError: If no server can be used within these seconds; it says what each looks like.
    """
    await _FirstContact(connections, seconds).make()


@final
class _FirstContact:
    """Try all servers side by side until one has answered, and then its brokers."""

    def __init__(self, connections: Connections, seconds: float) -> None:
        self._connections = connections
        self._seconds = seconds
        self._servers = [*dict.fromkeys(connections.servers)]
        self._found: dict[Server, Diagnosis] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._answered: Server | None = None
        self._brokers: list[Server] = []

    async def make(self) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await self._race()
                # Most calls go to the addresses that the brokers advertise.
                if self._brokers and self._answered not in self._brokers:
                    self._servers = self._brokers
                    await self._race()
        except TimeoutError as late:
            error = self._error(in_time=False)
            raise error from error.__cause__ or late

    async def _race(self) -> None:
        """Try all servers; return when one has answered."""
        self._found.clear()
        apart = min(_APART, self._seconds / (2 * len(self._servers)))
        before = self._answered
        async with asyncio.TaskGroup() as group:
            self._tasks = [
                group.create_task(self._reach(server, at * apart))
                for at, server in enumerate(self._servers)
            ]
        if self._answered is before:
            raise self._error(in_time=True)

    async def _reach(self, server: Server, delay: float) -> None:
        """Try one server until it answers, or cannot be used."""
        await asyncio.sleep(delay)
        pause, limit = _FIRST_PAUSE, min(_FIRST_ATTEMPT, self._seconds / 4)
        while True:
            try:
                async with asyncio.timeout(limit):
                    metadata = await self._connections.send_to(server, _REQUEST)
            except Exception as error:  # noqa: BLE001 - it is diagnosed
                prefer_cancellation(error)
                found = await diagnose(server, self._connections.security, error)
                self._found[server] = found
                if not found.passes:
                    return
            else:
                self._answered = server
                self._brokers = [Server(host, port) for _, host, port, *_ in metadata.brokers]
                for task in self._tasks:
                    if task is not asyncio.current_task():
                        task.cancel()
                return
            await asyncio.sleep(pause)
            pause, limit = min(2 * pause, _LONGEST_PAUSE), self._seconds

    def _error(self, *, in_time: bool) -> FanOutError:
        """Return the error that names each server once, and what was found there."""
        alike: dict[str, list[str]] = {}
        for server in self._servers:
            text = self._found[server].text if server in self._found else _UNKNOWN
            alike.setdefault(text, []).append(str(server))
        causes = [found.error for found in self._found.values()]
        if own := [cause for cause in causes if isinstance(cause, FanOutError)]:
            return own[0]
        reasons = [Sentence(f"{_names(names)}: ", text) for text, names in alike.items()]
        tried: str = f"tried with the protocol {self._connections.security.protocol}"
        if not in_time:
            shown = f"connect_timeout={self._seconds:g}"
            limit = Option("connect_timeout", self._seconds, text=shown)
            tried = Sentence(tried, " for ", limit, " seconds")
        if self._answered is not None:
            advertised = f"; {self._answered} answers, and names this address of its brokers: see "
            tried = Sentence(tried, advertised, "their advertised.listeners")
        error = ServiceError(
            "the cluster cannot be reached: ", joined("; ", reasons), in_brackets(tried)
        )
        error.__cause__ = causes[-1] if causes else None
        return error


def _names(servers: list[str]) -> str:
    more = len(servers) - _MOST_NAMED
    return ", ".join(servers[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
