"""Connections to the brokers of one cluster, opened when they are needed."""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from collections import Counter, defaultdict
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Protocol, final

from aiokafka.errors import (
    AuthenticationFailedError,
    KafkaConnectionError,
    KafkaError,
    RequestTimedOutError,
    StaleMetadata,
)

from fanout.core.cancellation import TaskScope
from fanout.core.error_text import text_of
from fanout.errors import FanOutError
from fanout.kafka.protocol.broker_connection import (
    BrokerConnection,
    TokenProvider,
    keep_freed_memory,
)
from fanout.kafka.protocol.hang_watch import SUSPICIOUS, HangWatch
from fanout.kafka.security import Security

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from fanout.kafka.cluster import Cluster, Server


log = logging.getLogger(__name__)


class Timeouts(Protocol):
    """The timeouts, in seconds, that the options of readers and writers have in common."""

    @property
    def request_timeout(self) -> float:
        """How long a broker may take to answer."""

    @property
    def connections_max_idle(self) -> float:
        """After how long an idle connection is closed."""


@final
@dataclass(frozen=True, slots=True)
class CallTimeouts:
    """The timeouts of connections that neither read nor write records, in seconds."""

    request_timeout: float
    connections_max_idle: float = 540.0


@asynccontextmanager
async def open_connections(cluster: Cluster, options: Timeouts) -> AsyncIterator[Connections]:
    """Prepare connections to a cluster; leaving the context closes all of them at once."""
    if isinstance(cluster.security, Security):
        security = cluster.security
    else:
        security = await asyncio.to_thread(cluster.load_security)
    for server in cluster.addresses:
        security.check_host(server.host)
    context = await asyncio.to_thread(security.create_context)
    async with TaskScope() as scope:
        connections = Connections(
            cluster.addresses,
            security=security,
            context=context,
            client_id=cluster.client_id,
            options=options,
            scope=scope,
        )
        try:
            yield connections
        finally:
            await connections.close()


@final
class Lane(Enum):
    """The connections to one broker; each answers in the order of its requests."""

    CALLS = auto()
    """For requests that are answered at once."""
    FETCHES = auto()
    """For fetches, which the broker may hold back until there are records."""
    WRITES = auto()
    """For records, which the broker may hold back until its replicas have them."""


@final
class Connections:
    """Send requests to the brokers of a cluster, without retries.

    In the background there is one reader per connection, and a look-up about a broker that answers
    nothing. `servers` are the first brokers to connect to; `scope` runs the look-ups. `throttled`
    counts the answers by which brokers slow this client down, for a quota. `advertised` has the
    addresses that brokers have told of themselves, the oldest first.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        *,
        security: Security,
        context: ssl.SSLContext | None,
        client_id: str,
        options: Timeouts,
        scope: TaskScope,
    ) -> None:
        self._servers = tuple(servers)
        self._security = security
        self._context = context
        self._client_id = client_id
        self._options = options
        self._brokers: dict[int, Server] = {}
        self._open: dict[tuple[Server, Lane], BrokerConnection] = {}
        self._opening: defaultdict[tuple[Server, Lane], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._connecting: dict[tuple[Server, Lane], BrokerConnection] = {}
        self._failures: Counter[Server] = Counter()
        self._hangs = HangWatch(self, scope)
        # Until when a broker reads no request from a connection, because of a quota.
        self._throttled_until: dict[tuple[Server, Lane], float] = {}
        self.throttled = 0
        self.advertised: dict[Server, None] = {}
        keep_freed_memory()

    @property
    def servers(self) -> tuple[Server, ...]:
        """The first brokers to connect to."""
        return self._servers

    @property
    def security(self) -> Security:
        """Encryption and authentication."""
        return self._security

    def set_brokers(self, brokers: Mapping[int, Server]) -> None:
        """Replace the addresses of brokers by those in the latest metadata."""
        self._brokers = dict(brokers)
        self.advertised.update(dict.fromkeys(brokers.values()))

    def add_broker(self, broker: int, server: Server) -> None:
        """Add or replace the address of one broker."""
        self._brokers[broker] = server
        self.advertised[server] = None

    async def send(
        self, broker: int, request: Any, lane: Lane = Lane.CALLS, *, answered: bool = True
    ) -> Any:
        """Send a request to a broker; return its answer, or None once it is sent if it has none.

        Raises:
            KafkaError: If the broker is unknown, cannot be reached, does not answer in time, or
                refuses the connection.
        """
        server = self._brokers.get(broker)
        if server is None:
            raise StaleMetadata(f"broker {broker} is not in the latest metadata of the cluster")
        return await self._send(server, request, lane, answered=answered)

    async def send_to(self, server: Server, request: Any) -> Any:
        """Send a request to a server by its address, and return its answer."""
        return await self._send(server, request, Lane.CALLS)

    async def send_to_any(self, request: Any) -> Any:
        """Send a request to one broker after the other until one answers, or an error is final.

        Brokers with an open connection come first, and last those that did not answer lately. The
        next broker is asked when one takes seconds; if none answers, they get the whole timeout.
        """
        servers = sorted(dict.fromkeys((*self._brokers.values(), *self._servers)), key=self._rank)
        limit = SUSPICIOUS if len(servers) > 1 else None
        failure: KafkaError | None = None
        while servers:
            late = []
            for server in servers:
                try:
                    async with asyncio.timeout(limit):
                        return await self._send(server, request, Lane.CALLS)
                except TimeoutError:
                    self._hangs.avoid(server)
                    late.append(server)
                except KafkaError as error:
                    if not error.retriable:
                        raise
                    failure = error
            servers, limit = late, None
        assert failure is not None
        raise failure

    def break_off(self, server: Server, error: KafkaError) -> None:
        """Close the connections to a server; requests that wait for it fail with an error."""
        for known in (self._open, self._connecting):
            for (broker, _), connection in known.items():
                if broker == server:
                    connection.close(exc=error)

    async def close(self) -> None:
        """Close every connection at once, without waiting for brokers."""
        self._hangs.end()
        closing = [connection.close() for connection in self._open.values()]
        self._open.clear()
        await asyncio.gather(*closing)

    async def _send(
        self, server: Server, request: Any, lane: Lane, *, answered: bool = True
    ) -> Any:
        await self._wait_for_quota(server, lane)
        with self._hangs.watching(server):
            return await self._exchange(server, request, lane, answered=answered)

    async def _exchange(self, server: Server, request: Any, lane: Lane, *, answered: bool) -> Any:
        connection = await self._connection(server, lane)
        try:
            if answered:
                response = await connection.send(request)
                self._note_throttle(server, lane, response)
                return response
            async with asyncio.timeout(self._options.request_timeout):
                return await connection.send(request, expect_response=False)
        except ConnectionError as error:
            raise KafkaConnectionError(f"the connection to {server} broke") from error
        except TimeoutError as error:
            # Every later answer on this connection would come after the missing one.
            connection.close()
            raise self._timed_out(server) from error
        except KafkaError as error:
            if (reason := _reason(server, error)) is not None:
                raise reason from error
            raise

    def _note_throttle(self, server: Server, lane: Lane, response: Any) -> None:
        seconds = getattr(response, "throttle_time_ms", 0) / 1000
        if seconds > 0:
            self.throttled += 1
            now = asyncio.get_running_loop().time()
            self._throttled_until[server, lane] = now + seconds

    async def _wait_for_quota(self, server: Server, lane: Lane) -> None:
        """Wait until the broker reads from a connection again, for the request timeout (KIP-219).

        A request that is sent before would use up its timeout in the socket.
        """
        if not self._throttled_until:
            return
        now = asyncio.get_running_loop().time
        patience_ends = now() + self._options.request_timeout
        # An answer to an earlier request may make the time longer meanwhile.
        while (left := self._throttled_until.get((server, lane), -math.inf) - now()) > 0:
            if now() >= patience_ends:
                raise RequestTimedOutError(
                    f"{server} accepts no request for another {left:.0f} seconds, because this "
                    "client has exceeded a quota"
                )
            await asyncio.sleep(min(left, patience_ends - now()))

    def _rank(self, server: Server) -> tuple[bool, bool]:
        connection = self._open.get((server, Lane.CALLS))
        is_closed = connection is None or not connection.connected()
        return self._hangs.is_avoided(server), is_closed

    async def _connection(self, server: Server, lane: Lane) -> BrokerConnection:
        async with self._opening[server, lane]:
            connection = self._open.get((server, lane))
            if connection is None or not connection.connected():
                return await self._open_connection(server, lane)
            if asyncio.get_running_loop().time() >= connection.renew_at:
                return await self._renew(server, lane, connection)
            return connection

    async def _renew(self, server: Server, lane: Lane, old: BrokerConnection) -> BrokerConnection:
        """Replace a connection whose session ends soon, or keep it while that is impossible."""
        with suppress(TimeoutError):  # then it has hung
            async with asyncio.timeout(self._options.request_timeout):
                await old.finish()  # a broker that writes records wants them in their order
        try:
            new = await self._open_connection(server, lane)
        except KafkaError as error:
            now = asyncio.get_running_loop().time()
            if now >= old.ends_at or not old.connected():
                raise
            log.warning("cannot renew the session at %s, and try again: %s", server, text_of(error))
            old.renew_at = min(max(now + 1.0, now + (old.ends_at - now) / 10), old.ends_at)
            return old
        await old.close()
        return new

    async def _open_connection(self, server: Server, lane: Lane) -> BrokerConnection:
        self._security.check_host(server.host)
        connection = self._new_connection(server)
        connection.turn = self._failures[server]
        self._connecting[server, lane] = connection
        try:
            await self._connect(server, connection)
        except BaseException:
            self._failures[server] += 1
            raise
        finally:
            del self._connecting[server, lane]
        self._open[server, lane] = connection
        return connection

    def _new_connection(self, server: Server) -> BrokerConnection:
        security = self._security
        return BrokerConnection(
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

    async def _connect(self, server: Server, connection: BrokerConnection) -> None:
        try:
            async with asyncio.timeout(self._options.request_timeout):
                await connection.connect()
        except TimeoutError as error:
            raise self._timed_out(server) from error
        except KafkaError as error:
            if (reason := _reason(server, error)) is not None:
                raise reason from error
            raise
        except FanOutError:  # an OptionError is a ValueError
            raise
        except (OSError, ValueError) as error:
            # aiokafka raises ValueError for a broker that does not know the SCRAM password either.
            if isinstance(error, ValueError) or _is_tls_refusal(error):
                raise _refused(server, error) from error
            own = server in self._servers or server not in self.advertised
            told = "" if own else ", the address in its broker's advertised.listeners"
            what = f"cannot connect to {server}{told}: {text_of(error)}"
            raise KafkaConnectionError(what) from error

    def _timed_out(self, server: Server) -> KafkaError:
        error: KafkaError = RequestTimedOutError(
            f"{server} did not answer within {self._options.request_timeout:g} seconds"
        )
        return error


def _reason(server: Server, error: KafkaError) -> KafkaError | None:
    """Return the error that says why a connection failed, if the cause of aiokafka's says it."""
    cause = error.__cause__
    if _is_tls_refusal(cause):
        return _refused(server, cause)
    hung: KafkaError | None = None
    if isinstance(cause, RequestTimedOutError):
        hung = RequestTimedOutError(*cause.args)
    return hung


def _is_tls_refusal(error: BaseException | None) -> bool:
    """Return whether TLS failed in the handshake, not by a broken connection."""
    broken = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    return isinstance(error, ssl.SSLError) and not isinstance(error, broken)


def _refused(server: Server, error: BaseException | None) -> KafkaError:
    refused: KafkaError = AuthenticationFailedError(
        f"{server} and this client cannot authenticate each other: {error and text_of(error)}"
    )
    return refused
