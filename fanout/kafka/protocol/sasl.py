"""The mechanisms of SASL: the messages by which a client and a broker know each other."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import inspect
import secrets
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from aiokafka.errors import KafkaConnectionError, KafkaError

from fanout.core.user_functions import is_interrupt
from fanout.errors import OptionError

if TYPE_CHECKING:
    from fanout.kafka.security import Security

Exchange: TypeAlias = Callable[[bytes], Awaitable[bytes]]
"""Sends a message to the broker and returns its answer; it raises an error if that is a refusal."""


async def authenticate(security: Security, exchange: Exchange) -> None:
    """Authenticate by the mechanism of the user's options.

    Args:
        security: The options.
        exchange: Exchanges messages with the broker.

    Raises:
        KafkaError: If the broker refuses the client, or the token function raises.
        OptionError: If that function is not async, or returns no string.
        ValueError: If the broker does not know the password itself.
    """
    if security.token is not None:
        token = await get_token(security.token)
        # A broker that refuses a token sends the reason, and fails the exchange when the client has
        # confirmed that with one byte (RFC 7628, section 3.2.3).
        if await exchange(f"n,,\x01auth=Bearer {token}\x01\x01".encode()):
            await exchange(b"\x01")
        return
    user, password = security.username or "", security.password or ""
    match security.sasl:
        case "PLAIN":
            await exchange(f"{user}\0{user}\0{password}".encode())  # RFC 4616
        case "SCRAM-SHA-256":
            await _scram("sha256", user, password, exchange)
        case "SCRAM-SHA-512":
            await _scram("sha512", user, password, exchange)
        case mechanism:
            raise AssertionError(f"{mechanism} needs a token")


async def _scram(hash_name: str, user: str, password: str, exchange: Exchange) -> None:
    """Prove by RFC 5802 that both sides know the password, without sending it."""
    sign = partial(hmac.digest, digest=hash_name)
    nonce = secrets.token_hex(16)
    first = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
    challenge = (await exchange(f"n,,{first}".encode())).decode()
    fields = _fields(challenge)
    if not fields.get("r", "").startswith(nonce):
        raise ValueError("the broker's challenge is not for this client")
    final = f"c=biws,r={fields['r']}"
    signed = f"{first},{challenge},{final}".encode()
    salt, rounds = b64decode(fields.get("s", "")), int(fields.get("i", ""))
    salted = await asyncio.to_thread(
        hashlib.pbkdf2_hmac, hash_name, password.encode(), salt, rounds
    )
    client_key = sign(salted, b"Client Key")
    signature = sign(hashlib.new(hash_name, client_key).digest(), signed)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    answer = await exchange(f"{final},p={b64encode(proof).decode()}".encode())
    expected = sign(sign(salted, b"Server Key"), signed)
    if not hmac.compare_digest(b64decode(_fields(answer.decode()).get("v", "")), expected):
        raise ValueError("the broker does not know the password")


def _fields(message: str) -> dict[str, str]:
    """Return the fields of a message of SCRAM, such as `r=nonce,s=salt`."""
    return {name: value for name, _, value in (each.partition("=") for each in message.split(","))}


async def get_token(function: Callable[[], Awaitable[str]]) -> str:
    """Return a token from a user's function.

    Raises:
        KafkaConnectionError: If the function raises; it is called again later.
        OptionError: If it is not async, or returns no string.
    """
    try:
        returned = function()
        token = await returned if inspect.isawaitable(returned) else returned
    except (KafkaError, asyncio.CancelledError):
        raise
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise KafkaConnectionError(
            f"the function that returns a token raised {type(error).__name__}"
        ) from error
    if not inspect.isawaitable(returned):
        raise OptionError(
            f"token must be an async function that returns a token; what was passed returns "
            f"{type(returned).__name__} without being awaited"
        )
    if not isinstance(token, str):
        raise OptionError(f"the token must be a string, not {type(token).__name__}")
    return token
