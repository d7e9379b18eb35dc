"""The connections to the brokers of one cluster, opened when they are needed."""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from contextlib import asynccontextmanager
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Protocol, final

from aiokafka.errors import (
    AuthenticationFailedError,
    KafkaConnectionError,
    KafkaError,
    RequestTimedOutError,
    StaleMetadata,
)

from fanout.kafka.protocol.broker_connection import (
    BrokerConnection,
    TokenProvider,
    keep_freed_memory,
)
from fanout.kafka.security import Security

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from fanout.kafka.cluster import Cluster, Server

__all__ = ("Connections", "Lane", "Timeouts", "open_connections")


class Timeouts(Protocol):
    """How long is waited, in seconds: what the options of readers and writers have in common."""

    @property
    def request_timeout(self) -> float:
        """How long a broker may take to answer."""

    @property
    def connections_max_idle(self) -> float:
        """After how long an idle connection is closed."""


@asynccontextmanager
async def open_connections(cluster: Cluster, options: Timeouts) -> AsyncIterator[Connections]:
    """Prepare connections to a cluster; leaving the context closes every one at once.

    Args:
        cluster: The cluster.
        options: Timeouts.

    Raises:
        OptionError: A server would be used without TLS, or a file cannot be used.
    """
    if isinstance(cluster.security, Security):
        security = cluster.security
    else:
        security = await asyncio.to_thread(cluster.load_security)
    for server in cluster.addresses:
        security.check_host(server.host)
    context = await asyncio.to_thread(security.create_context)
    connections = Connections(
        cluster.addresses,
        security=security,
        context=context,
        client_id=cluster.client_id,
        options=options,
    )
    try:
        yield connections
    finally:
        await connections.close()


@final
class Lane(Enum):
    """Which connection to a broker is used; each answers in the order of requests."""

    CALLS = auto()
    """For what is answered at once."""
    FETCHES = auto()
    """For what the broker may hold back until there are records."""
    WRITES = auto()
    """For records, which the broker may hold back until its replicas have them."""


@final
class Connections:
    """Send requests to brokers.

    Nothing is tried again here, nothing runs in the background but one reader per connection.

    Args:
        servers: Where the cluster is found at first.
        security: How brokers are talked to.
        context: What TLS needs.
        client_id: What the brokers' logs and quotas call us.
        options: Timeouts.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        *,
        security: Security,
        context: ssl.SSLContext | None,
        client_id: str,
        options: Timeouts,
    ) -> None:
        self._servers = tuple(servers)
        self._security = security
        self._context = context
        self._client_id = client_id
        self._options = options
        self._brokers: dict[int, Server] = {}
        self._open: dict[tuple[Server, Lane], BrokerConnection] = {}
        self._opening: defaultdict[tuple[Server, Lane], asyncio.Lock] = defaultdict(asyncio.Lock)
        keep_freed_memory()

    def know(self, brokers: Mapping[int, Server]) -> None:
        """Go by these addresses from now on, those that the cluster itself told last."""
        self._brokers = dict(brokers)

    def add(self, broker: int, server: Server) -> None:
        """Go by this broker's address as well."""
        self._brokers[broker] = server

    async def send(
        self, broker: int, request: Any, lane: Lane = Lane.CALLS, *, answered: bool = True
    ) -> Any:
        """Send a request to a broker and return its answer.

        Args:
            broker: The broker.
            request: The request.
            lane: The connection.
            answered: Whether the broker answers such a request; else None is returned when the
                request is on its way.

        Raises:
            KafkaError: The broker is unknown, cannot be reached, does not answer in time, or
                refuses us as who we are.
        """
        server = self._brokers.get(broker)
        if server is None:
            raise StaleMetadata(f"broker {broker} is not among those that the cluster told last")
        return await self._send(server, request, lane, answered=answered)

    async def send_to_any(self, request: Any) -> Any:
        """Send a request to one broker after the other until one answers.

        Those that answered last come first.

        Raises:
            KafkaError: What the last one failed by, or the first that is final.
        """
        everyone = dict.fromkeys((*self._brokers.values(), *self._servers))
        failure: KafkaError | None = None
        for server in sorted(everyone, key=self._is_closed):
            try:
                return await self._send(server, request, Lane.CALLS)
            except KafkaError as error:
                if not error.retriable:
                    raise
                failure = error
        assert failure is not None
        raise failure

    async def close(self) -> None:
        """Close every connection at once; no broker has to agree."""
        closing = [connection.close() for connection in self._open.values()]
        self._open.clear()
        await asyncio.gather(*closing)

    async def _send(
        self, server: Server, request: Any, lane: Lane, *, answered: bool = True
    ) -> Any:
        connection = await self._connection(server, lane)
        try:
            if answered:
                return await connection.send(request)
            async with asyncio.timeout(self._options.request_timeout):
                return await connection.send(request, expect_response=False)
        except ConnectionError as error:
            raise KafkaConnectionError(f"the connection to {server} broke") from error
        except TimeoutError as error:
            # Every later answer on it would come behind the one that does not.
            connection.close()
            raise self._timed_out(server) from error
        except KafkaError as error:
            if _is_tls_refusal(error.__cause__):
                raise _refused(server, error.__cause__) from error
            raise

    def _is_closed(self, server: Server) -> bool:
        connection = self._open.get((server, Lane.CALLS))
        return connection is None or not connection.connected()

    async def _connection(self, server: Server, lane: Lane) -> BrokerConnection:
        async with self._opening[server, lane]:
            connection = self._open.get((server, lane))
            if connection is None or not connection.connected():
                self._security.check_host(server.host)
                connection = await self._connect(server)
                self._open[server, lane] = connection
            return connection

    async def _connect(self, server: Server) -> BrokerConnection:
        security = self._security
        connection = BrokerConnection(
            server.host,
            server.port,
            client_id=self._client_id,
            request_timeout_ms=self._options.request_timeout * 1000,
            max_idle_ms=self._options.connections_max_idle * 1000,
            ssl_context=self._context,
            security_protocol=security.protocol,
            sasl_mechanism=security.sasl,
            sasl_plain_username=security.username,
            sasl_plain_password=security.password,
            sasl_oauth_token_provider=security.token and TokenProvider(security.token),
        )
        try:
            async with asyncio.timeout(self._options.request_timeout):
                await connection.connect()
        except TimeoutError as error:
            raise self._timed_out(server) from error
        except KafkaError as error:
            if _is_tls_refusal(error.__cause__):
                raise _refused(server, error.__cause__) from error
            raise
        except (OSError, ValueError) as error:
            # A broker that does not know the password of SCRAM either is a ValueError.
            if isinstance(error, ValueError) or _is_tls_refusal(error):
                raise _refused(server, error) from error
            raise KafkaConnectionError(f"cannot connect to {server}: {error}") from error
        return connection

    def _timed_out(self, server: Server) -> KafkaError:
        error: KafkaError = RequestTimedOutError(
            f"{server} did not answer within {self._options.request_timeout:g} seconds"
        )
        return error


def _is_tls_refusal(error: BaseException | None) -> bool:
    """Return whether TLS failed by what was said, not by a connection that broke."""
    broken = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    return isinstance(error, ssl.SSLError) and not isinstance(error, broken)


def _refused(server: Server, error: BaseException | None) -> KafkaError:
    refused: KafkaError = AuthenticationFailedError(
        f"{server} and we do not trust each other: {error}"
    )
    return refused
