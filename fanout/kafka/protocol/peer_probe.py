"""Look at what listens at an address: Kafka or not, with TLS or without it, with SASL or without.

The probe sends one SaslHandshake request, which every listener of Kafka answers before a client has
authenticated itself: with its SASL mechanisms, or with ILLEGAL_SASL_STATE where it has no SASL. It
sends no credentials, so it checks no certificate.
"""

from __future__ import annotations

import asyncio
import io
import re
import ssl
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, final

from aiokafka.errors import IllegalSaslStateError
from aiokafka.protocol.admin import SaslHandShakeRequest_v1, SaslHandShakeResponse_v1

if TYPE_CHECKING:
    from fanout.kafka.cluster import Server

_NUMBER: Final = 0x66616E  # of the request; the answer repeats it
_SHORTEST, _LONGEST = 8, 4096  # bytes of an answer
# Seconds for each step. A server that waits for the end of a line gets one after that time.
_PATIENCE: Final = 1.0
_LINES: Final = b"\r\n\r\n"
_TLS_ALERT: Final = b"\x15\x03"  # the beginning of an alert in every version of TLS
# RFC 4422, section 3.1. They are shown to people, and the peer may be anything.
_MECHANISM: Final = re.compile("[A-Z0-9_-]{1,20}")


@final
class PeerKind(Enum):
    """What answers at an address."""

    KAFKA = "a Kafka broker"
    TLS = "a server with TLS that refuses this client"
    HTTP = "an HTTP server"
    FOREIGN = "a server of another protocol"
    CLOSING = "a server that closes every connection"
    SILENT = "a server that answers nothing"
    NONE = "no server"


@final
@dataclass(frozen=True, slots=True)
class Peer:
    """What a probe has found at an address: what answers, and the SASL mechanisms of a listener.

    It is `unclear` where a broker says neither its mechanisms nor that it has no SASL.
    """

    kind: PeerKind
    tls: bool = False
    mechanisms: tuple[str, ...] = ()
    unclear: bool = False

    @property
    def protocol(self) -> str:
        """The security protocol of the listener, by Kafka's name."""
        return f"{'SASL_' if self.mechanisms else ''}{'SSL' if self.tls else 'PLAINTEXT'}"


async def probe(server: Server) -> Peer:
    """Say what answers at an address, without TLS or with it; it takes at most some seconds."""
    peer = await _ask(server, None)
    if peer.kind not in {PeerKind.TLS, PeerKind.CLOSING}:
        return peer
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    over_tls = await _ask(server, context)
    return over_tls if over_tls.tls else peer


async def _ask(server: Server, context: ssl.SSLContext | None) -> Peer:
    tls = context is not None
    try:
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await asyncio.open_connection(server.host, server.port, ssl=context)
    except OSError as error:  # TimeoutError and SSLError are some
        # A peer with TLS refuses a handshake by an alert, and another one does not understand it.
        if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
            return Peer(PeerKind.TLS, tls=True)
        return Peer(PeerKind.CLOSING if tls else PeerKind.NONE)
    try:
        return await _answer(reader, writer, tls=tls)
    except (OSError, EOFError) as error:
        return Peer(_kind_of(error, tls=tls), tls=tls)
    finally:
        writer.transport.abort()


def _kind_of(error: OSError | EOFError, *, tls: bool) -> PeerKind:
    if isinstance(error, TimeoutError):
        return PeerKind.SILENT
    if isinstance(error, asyncio.IncompleteReadError) and error.partial:
        return PeerKind.FOREIGN
    # With TLS 1.3 a server refuses a client after the handshake.
    return PeerKind.TLS if tls else PeerKind.CLOSING


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, tls: bool) -> Peer:
    request: Any = SaslHandShakeRequest_v1("PLAIN")
    header: Any = request.build_request_header(correlation_id=_NUMBER, client_id="fanout-probe")
    message = header.encode() + request.encode()
    writer.write(len(message).to_bytes(4) + message)
    try:
        async with asyncio.timeout(_PATIENCE):
            begin = await reader.readexactly(4)
    except TimeoutError:
        writer.write(_LINES)
        async with asyncio.timeout(_PATIENCE):
            begin = await reader.readexactly(4)
    if begin == b"HTTP":
        return Peer(PeerKind.HTTP, tls=tls)
    if begin.startswith(_TLS_ALERT):
        return Peer(PeerKind.TLS)
    length = int.from_bytes(begin)
    if not _SHORTEST <= length <= _LONGEST:
        return Peer(PeerKind.FOREIGN, tls=tls)
    async with asyncio.timeout(_PATIENCE):
        number, answer = await reader.readexactly(4), await reader.readexactly(length - 4)
    if int.from_bytes(number) != _NUMBER:
        return Peer(PeerKind.FOREIGN, tls=tls)
    try:
        response: Any = SaslHandShakeResponse_v1.decode(io.BytesIO(answer))
    except ValueError:
        return Peer(PeerKind.FOREIGN, tls=tls)
    names = [name for name in response.enabled_mechanisms or () if _MECHANISM.fullmatch(name or "")]
    unclear = not names and response.error_code != IllegalSaslStateError.errno
    return Peer(PeerKind.KAFKA, tls=tls, mechanisms=tuple(names), unclear=unclear)
