"""Send SubscribeToShard over HTTP/2, in place of the HTTP client inside aiobotocore.

botocore prepares, signs and judges each call as before. The module uses private names of
aiobotocore's HTTP session, so that both have the same certificates and proxies; see
`aws.raw_bodies` for the supported versions.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, final
from urllib.parse import SplitResult, urlsplit

from aiobotocore.awsrequest import AioAWSResponse
from botocore.exceptions import (
    ConnectTimeoutError,
    EndpointConnectionError,
    ProxyConnectionError,
    SSLError,
)
from botocore.httpsession import get_cert_path, mask_proxy_url

from fanout.errors import SetupError
from fanout.kinesis.aws.http2_connection import Http2ClientConnection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_PORTS: Final = {"http": 80, "https": 443}
# They belong to a connection of HTTP/1.1; the host has a field of its own.
_OF_HTTP1: Final = frozenset({"connection", "expect", "host", "transfer-encoding"})
_LONGEST_HEAD: Final = 1 << 14
_OK: Final = "200"


@asynccontextmanager
async def subscribe_over_http2(client: Any, connect_timeout: float) -> AsyncIterator[None]:
    """Have a client, and no other of its session, call SubscribeToShard over HTTP/2 in the block.

    The calls share connections, each with as many as the service allows. A connection is closed
    with its last call.
    """
    transport = _Http2Transport(client._endpoint.http_session, connect_timeout)  # noqa: SLF001  # no public name exists
    client.meta.events.register("before-send.kinesis.SubscribeToShard", transport.send)
    try:
        yield
    finally:
        await transport.close()


@final
class _Http2Transport:
    def __init__(self, session: Any, connect_timeout: float) -> None:
        self._session = session
        self._connect_timeout = connect_timeout
        self._connections: list[Http2ClientConnection] = []
        self._opening = asyncio.Lock()
        self._tls: ssl.SSLContext | None = None

    async def send(self, request: Any, **_: Any) -> AioAWSResponse:
        """Send a request, and wait for the head of the answer; a cancellation resets the stream."""
        url = urlsplit(request.url)
        async with self._opening:
            response = (await self._with_room(url)).start(_fields(request, url), request.body)
        try:
            await response.head()
        except BaseException:
            response.close()
            raise
        return AioAWSResponse(request.url, response.status, response.headers, response)

    async def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.abort()
        for connection in self._connections:
            await connection.lost()

    async def _with_room(self, url: SplitResult) -> Http2ClientConnection:
        self._connections = [each for each in self._connections if not each.is_lost]
        for connection in self._connections:
            if connection.has_room:
                return connection
        try:
            async with asyncio.timeout(self._connect_timeout):
                connection = await self._open(url)
        except TimeoutError as error:
            raise ConnectTimeoutError(endpoint_url=url.geturl(), error=error) from error
        except ProxyConnectionError:  # it is an OSError, too
            raise
        except ssl.SSLError as error:
            raise SSLError(endpoint_url=url.geturl(), error=error) from error
        except OSError as error:
            raise EndpointConnectionError(endpoint_url=url.geturl(), error=error) from error
        return connection

    async def _open(self, url: SplitResult) -> Http2ClientConnection:
        if url.scheme == "https" and self._tls is None:
            self._tls = await asyncio.to_thread(_tls_context, self._session)
        host, port = url.hostname or "", url.port or _PORTS[url.scheme]
        proxy = self._session._proxy_config.proxy_url_for(url.geturl())  # noqa: SLF001  # see above
        where: dict[str, Any] = {"host": host, "port": port}
        if proxy:
            headers = self._session._proxy_config.proxy_headers_for(proxy)  # noqa: SLF001  # see above
            where = {"sock": await _through_proxy(proxy, headers, f"{host}:{port}")}
        transport, connection = await asyncio.get_running_loop().create_connection(
            Http2ClientConnection,
            **where,
            ssl=self._tls if url.scheme == "https" else None,
            server_hostname=host if url.scheme == "https" else None,
        )
        self._connections.append(connection)
        try:
            _check_protocol(transport, host)
            await connection.settled()
        except BaseException:
            connection.abort()
            raise
        return connection


def _fields(request: Any, url: SplitResult) -> list[tuple[str, str]]:
    """Return the headers of a signed request, as HTTP/2 has them."""
    fields = [
        (":method", request.method),
        (":scheme", url.scheme),
        (":authority", url.netloc),
        (":path", url.path or "/"),
    ]
    for name, value in request.headers.items():
        if name.lower() not in _OF_HTTP1:
            text = value.decode() if isinstance(value, bytes) else str(value)
            fields.append((name.lower(), text))
    return fields


def _check_protocol(transport: asyncio.Transport, host: str) -> None:
    encrypted = transport.get_extra_info("ssl_object")
    if encrypted is not None and encrypted.selected_alpn_protocol() != "h2":
        raise SetupError(f"{host} does not speak HTTP/2: leave http_version out")


def _tls_context(session: Any) -> ssl.SSLContext:
    """Trust and show the certificates that aiobotocore's session does. It reads files."""
    context = ssl.create_default_context(cafile=get_cert_path(session._verify))  # noqa: SLF001  # see above
    if not session._verify:  # noqa: SLF001  # see above
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if session._cert_file:  # noqa: SLF001  # see above
        context.load_cert_chain(session._cert_file, session._key_file)  # noqa: SLF001  # see above
    context.set_alpn_protocols(["h2"])
    return context


async def _through_proxy(proxy: str, headers: dict[str, str], target: str) -> socket.socket:
    """Connect to a proxy, which must not speak TLS itself, and have it connect to the target."""
    where = urlsplit(proxy)
    if where.scheme != "http":
        raise SetupError(
            "http_version=2 does not go through a proxy that speaks TLS itself: name its http:// "
            "address, or leave http_version out"
        )
    shown = mask_proxy_url(proxy)
    try:
        connected = await _connect(where.hostname or "", where.port or _PORTS["http"])
    except OSError as error:
        raise ProxyConnectionError(proxy_url=shown, error=error) from error
    try:
        await _ask_proxy(connected, headers, target)
    except OSError as error:
        connected.close()
        raise ProxyConnectionError(proxy_url=shown, error=error) from error
    except BaseException:
        connected.close()
        raise
    return connected


async def _connect(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    connected = socket.socket(family, kind, protocol)
    connected.settimeout(0)
    try:
        await loop.sock_connect(connected, address)
    except BaseException:
        connected.close()
        raise
    return connected


async def _ask_proxy(connected: socket.socket, headers: dict[str, str], target: str) -> None:
    loop = asyncio.get_running_loop()
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    await loop.sock_sendall(connected, "\r\n".join([*lines, "", ""]).encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        # Byte by byte: what follows the head belongs to the target.
        byte = await loop.sock_recv(connected, 1)
        if not byte or len(head) > _LONGEST_HEAD:
            raise ConnectionResetError("it closed the connection without an answer")
        head += byte
    status = head.partition(b"\r\n")[0].decode("latin-1")
    if status.split(" ")[1:2] != [_OK]:
        raise ConnectionRefusedError(f"it answers {status!r} to a connection to {target}")
