"""How a lander and the driver prove to each other that they know the query's secret.

The driver sends a nonce. The lander answers with a nonce of its own and its proof. The driver then
sends its proof. A proof is the HMAC-SHA256, with the secret as key, of a label and both nonces. The
labels differ, so neither proof can be sent back as the other. The nonces are new each time, so a
proof that was recorded fits no other connection. The lander proves itself first, so a stranger
obtains no proof from the driver.
"""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING, Final

from websockets.exceptions import ConnectionClosed

if TYPE_CHECKING:
    from websockets.asyncio.connection import Connection

SECRET_BYTES: Final = 32
_NONCE_BYTES: Final = 32
_PROOF_BYTES: Final = 32
_LANDER: Final = b"fanout control channel 1, lander"
_DRIVER: Final = b"fanout control channel 1, driver"


class HandshakeFailedError(Exception):
    """The other side does not know the secret, or does not speak this protocol."""


def new_secret() -> bytes:
    """Return the secret of a query: the driver makes it, and it travels with the Spark job."""
    return secrets.token_bytes(SECRET_BYTES)


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
