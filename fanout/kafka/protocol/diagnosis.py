"""Say why a server of a cluster cannot be used, and what to change, in words for people."""

from __future__ import annotations

import errno
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

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

from fanout.core.error_text import text_of
from fanout.core.sentence import Sentence
from fanout.errors import FanOutError
from fanout.kafka.protocol.peer_probe import Peer, PeerKind, probe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanout.kafka.cluster import Server
    from fanout.kafka.security import Security

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
