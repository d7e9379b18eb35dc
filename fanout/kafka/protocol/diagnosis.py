"""Say why a server of a cluster cannot be used, and what to change, in words for people.

Where an error has several causes, a probe sends one SaslHandshake request, which every listener of
Kafka answers before a client has authenticated itself: with its SASL mechanisms, or with
ILLEGAL_SASL_STATE where it has no SASL. It sends no credentials, so it checks no certificate.
"""

from __future__ import annotations

import asyncio
import errno
import io
import re
import socket
import ssl
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, final

from aiokafka.errors import (
    CorrelationIdError,
    IllegalSaslStateError,
    KafkaConnectionError,
    KafkaError,
    KafkaProtocolError,
    RequestTimedOutError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.admin import SaslHandShakeRequest_v1, SaslHandShakeResponse_v1

from fanout.core.error_text import text_of
from fanout.core.sentence import Sentence
from fanout.errors import FanOutError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.kafka.cluster import Server
    from fanout.kafka.security import Security

_NUMBER: Final = 0x66616E  # of the request; the answer repeats it
_SHORTEST, _LONGEST = 8, 4096  # bytes of an answer
# Seconds for each step. A server that waits for the end of a line gets one after that time.
_PATIENCE: Final = 1.0
_LINES: Final = b"\r\n\r\n"
_TLS_ALERT: Final = b"\x15\x03"  # the beginning of an alert in every version of TLS
# RFC 4422, section 3.1. They are shown to people, and the peer may be anything.
_MECHANISM: Final = re.compile("[A-Z0-9_-]{1,20}")

_SET_PROTOCOL: Final = Sentence.of("set {protocol:the protocol} to ")

# OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH
_OTHER_NAME: Final = {62, 64}
_NO_NAME: Final = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}
# How asyncio words the failures of a name with several addresses, without an errno.
_ALL_REFUSED: Final = f"Multiple exceptions: [Errno {errno.ECONNREFUSED}]"

_REFUSED: Final = "no server listens; check that the broker runs, and the port"
_NETWORK: Final = {
    errno.ECONNREFUSED: _REFUSED,
    errno.EHOSTUNREACH: "there is no route to the host; check the address and the network",
    errno.ENETUNREACH: "the network is unreachable; check the address and the network",
}

# What these mean depends on the server.
_UNCLEAR: Final = (
    CorrelationIdError,
    KafkaConnectionError,
    KafkaProtocolError,
    RequestTimedOutError,
    IllegalSaslStateError,
    UnsupportedSaslMechanismError,
)


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
    if over_tls.kind is PeerKind.CLOSING:
        over_tls = await _ask(server, context)  # a reset may overtake the alert of a refusal
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


_PEERS: Final = {
    PeerKind.HTTP: ("an HTTP server answers, not a Kafka broker; check the port", False),
    PeerKind.FOREIGN: (
        "a server of another protocol answers, not a Kafka broker; check the port",
        False,
    ),
    PeerKind.CLOSING: (
        "the connection is accepted, and closed without an answer; check the port and the broker",
        True,
    ),
    PeerKind.SILENT: (
        "the connection is accepted, but nothing answers; check the port and the broker",
        True,
    ),
}


@final
@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a server cannot be used, and whether the same attempt may work later (`passes`).

    `text` has the reason and what to do, as clauses without a full stop.
    """

    text: str
    passes: bool
    error: Exception


async def diagnose(server: Server, security: Security, error: Exception) -> Diagnosis:
    """Return why an attempt to connect has failed; probe the server where the error is unclear."""
    text, passes = _known(security, error) or _seen(await probe(server), security, error)
    return Diagnosis(text, passes, error)


def _known(security: Security, error: Exception) -> tuple[str, bool] | None:
    """Judge an error that says enough by itself."""
    if isinstance(error, FanOutError):
        return Sentence(error), False
    causes = [*_causes(error)]
    for cause in causes:
        if found := _network(cause) or _certificate(cause):
            return found
        if isinstance(cause, SaslAuthenticationFailed):
            why = ", ".join(map(str, cause.args))
            return f"the broker refuses the credentials, by {security.sasl}: {why}", False
    if not isinstance(error, KafkaError) or isinstance(error, _UNCLEAR):
        return None
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return None
    return text_of(error), bool(error.retriable)


def _network(error: BaseException) -> tuple[str, bool] | None:
    match error:
        case socket.gaierror():
            text = f"the name cannot be resolved ({error.strerror}); check the host"
            return text, error.errno not in _NO_NAME
        case UnicodeError():
            return "the host is not a valid name; check it", False
        case OSError(errno=int(number)) if number in _NETWORK:
            return _NETWORK[number], True
        case OSError() if str(error).startswith(_ALL_REFUSED):
            return _REFUSED, True
        case _:
            return None


def _certificate(error: BaseException) -> tuple[str, bool] | None:
    if not isinstance(error, ssl.SSLCertVerificationError):
        return None
    why = error.verify_message
    if error.verify_code in _OTHER_NAME:
        return f"its certificate is for another host ({why}); use a name that it has", False
    ways = Sentence.of("; pass its authority's as {ca_file}")
    return Sentence(f"its certificate is not trusted ({why})", ways), False


def _seen(peer: Peer, security: Security, error: Exception) -> tuple[str, bool]:
    """Judge what a probe has seen after an error that may have several causes."""
    if peer.tls and not security.tls and peer.kind in {PeerKind.TLS, PeerKind.SILENT}:
        protocol = security.protocol.replace("PLAINTEXT", "SSL")
        return Sentence("a listener with TLS answers; ", _SET_PROTOCOL, protocol), False
    if peer.kind in _PEERS:
        return _PEERS[peer.kind]
    late = isinstance(error, TimeoutError | RequestTimedOutError)
    text = "the broker does not answer in time" if late else text_of(error)
    if peer.kind is PeerKind.NONE:
        return f"{text}; check the address and the firewall", True
    return _listener(peer, security) or _tls_refused(error) or (text, True)


def _listener(peer: Peer, security: Security) -> tuple[str, bool] | None:
    """Compare a listener with the protocol and the mechanism of an attempt."""
    if peer.kind is not PeerKind.KAFKA or peer.unclear:
        return None
    mechanisms = ", ".join(peer.mechanisms)
    if peer.protocol != security.protocol:
        text = f"a Kafka listener of the protocol {peer.protocol} answers"
        if mechanisms:
            text = f"{text}, with {mechanisms}"
        ways = f"{peer.protocol}, or use the port of {security.protocol}"
        return Sentence(text, "; ", _SET_PROTOCOL, ways), False
    if security.sasl is not None and security.sasl not in peer.mechanisms:
        text = f"the broker does not take the mechanism {security.sasl}"
        ways = Sentence.of("; set {mechanism:the mechanism} to one of ")
        return Sentence(text, ways, mechanisms), False
    return None


def _tls_refused(error: Exception) -> tuple[str, bool] | None:
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLError) and "ALERT" in (cause.reason or ""):
            text = f"the broker refuses this client in the TLS handshake ({cause.reason})"
            ways = "; where it asks for client certificates, set {certificate_file}"
            return Sentence(text, Sentence.of(ways)), False
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
