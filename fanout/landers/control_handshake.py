"""How landers and their driver trust each other: a shared secret, and a certificate."""

from __future__ import annotations

import hmac
import secrets
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, final

from websockets.exceptions import ConnectionClosed

from fanout._exports import naming_extras

if TYPE_CHECKING:
    from collections.abc import Mapping

    from websockets.asyncio.connection import Connection

SECRET_BYTES: Final = 32
_NONCE_BYTES: Final = 32
_PROOF_BYTES: Final = 32
_LANDER: Final = b"fanout control channel 1, lander"
_DRIVER: Final = b"fanout control channel 1, driver"


class HandshakeFailedError(Exception):
    """The other side does not know the secret, or does not speak this protocol."""


async def admit_lander(connection: Connection, secret: bytes) -> None:
    """Prove the driver to a lander, after the lander has proved itself."""
    driver_nonce = secrets.token_bytes(_NONCE_BYTES)
    try:
        await connection.send(driver_nonce)
        answer = await _receive(connection, _NONCE_BYTES + _PROOF_BYTES)
        lander_nonce, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
        _check(proof, _proof(secret, _LANDER, driver_nonce, lander_nonce))
        await connection.send(_proof(secret, _DRIVER, driver_nonce, lander_nonce))
    except ConnectionClosed as error:
        raise HandshakeFailedError("it ended the connection during the handshake") from error


async def greet_driver(connection: Connection, secret: bytes) -> None:
    """Prove a lander to the driver, and let the driver prove itself."""
    lander_nonce = secrets.token_bytes(_NONCE_BYTES)
    try:
        driver_nonce = await _receive(connection, _NONCE_BYTES)
        proof = _proof(secret, _LANDER, driver_nonce, lander_nonce)
        await connection.send(lander_nonce + proof)
        answer = await _receive(connection, _PROOF_BYTES)
    except ConnectionClosed as error:
        raise HandshakeFailedError("it ended the connection during the handshake") from error
    _check(answer, _proof(secret, _DRIVER, driver_nonce, lander_nonce))


def _proof(secret: bytes, label: bytes, driver_nonce: bytes, lander_nonce: bytes) -> bytes:
    return hmac.digest(secret, label + driver_nonce + lander_nonce, "sha256")


def _check(proof: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(proof, expected):
        raise HandshakeFailedError("it does not know this query's secret")


async def _receive(connection: Connection, length: int) -> bytes:
    message = await connection.recv()
    if not isinstance(message, bytes) or len(message) != length:
        raise HandshakeFailedError("it does not speak this protocol")
    return message


# Where one of these is on, Spark encrypts what its driver and executors say to each other.
_SPARK_SETTINGS: Final = (
    "spark.ssl.enabled",
    "spark.ssl.rpc.enabled",
    "spark.network.crypto.enabled",
    "spark.authenticate.enableSaslEncryption",
)
# Longer than a query runs. The clocks of the machines may differ by a day.
_VALID: Final = timedelta(days=3650)
_CLOCK_SKEW: Final = timedelta(days=1)


@final
@dataclass(frozen=True, slots=True)
class ControlCertificate:
    """The certificate of a query, made by its driver."""

    certificate: str  # as PEM; it travels with the Spark job
    key: bytes = field(repr=False)  # the private key, as PEM; it stays in the driver


def spark_encrypts(settings: Mapping[str, str]) -> bool:
    """Return whether Spark's settings ask for encryption between driver and executors."""
    return any(settings.get(name, "").strip().lower() == "true" for name in _SPARK_SETTINGS)


def new_certificate() -> ControlCertificate:
    """Make a certificate that is signed with its own key, by the library cryptography."""
    with naming_extras("TLS between the driver and its landers"):
        from cryptography import x509  # noqa: PLC0415 - few drivers need it
        from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fanout driver")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    return ControlCertificate(
        certificate.public_bytes(encoding).decode(),
        key.private_bytes(
            encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )


def driver_tls(made: ControlCertificate) -> ssl.SSLContext:
    """Return what `ControlServer` needs; it blocks for a moment, as ssl reads keys from files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with TemporaryDirectory() as directory:  # which its owner alone may read
        path = Path(directory, "driver.pem")
        path.write_bytes(made.key + made.certificate.encode())
        context.load_cert_chain(path)
    return context


def lander_tls(certificate: str) -> ssl.SSLContext:
    """Return what `connect` needs to trust this certificate, under any host name, and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate is the query's, wherever its driver is
    context.load_verify_locations(cadata=certificate)
    return context
