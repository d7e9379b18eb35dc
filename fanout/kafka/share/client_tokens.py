"""Tokens of OAUTHBEARER for librdkafka, which asks for them in a thread of its own.

The user's function runs on the loop of the stream. The first token is there before the client is,
because making a client blocks until it has one. After that the client asks when four fifths of a
token's time are over, and ten seconds after each failure.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, final

from aiokafka.errors import KafkaConnectionError

from fanout.core.error_text import text_of
from fanout.errors import ServiceError
from fanout.kafka.protocol.broker_connection import TokenProvider

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

# Seconds that a token is taken to be valid if it does not say so itself. Those of Amazon MSK are
# valid for 15 minutes.
_OPAQUE_LIFETIME: Final = 300.0


@final
class RefusedTokenError(ServiceError):
    """The broker refuses the token of a client."""


@final
class ClientTokens:
    """Give a client its tokens: a function for librdkafka's `oauth_cb`."""

    def __init__(self, token: Callable[[], Awaitable[str]], *, timeout: float) -> None:
        self._provider = TokenProvider(token)
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._first: tuple[str, float] | None = None
        self._getting: asyncio.Task[tuple[str, float]] | None = None
        self._closed = False
        self._expires_at = 0.0  # of the monotonic clock
        self._error: Exception | None = None

    def __call__(self, _config: str) -> tuple[str, float]:
        """Return a token, and when it expires, in seconds since 1970. It blocks.

        The client ignores what is raised, and asks again.
        """
        first, self._first = self._first, None
        return first or asyncio.run_coroutine_threadsafe(self._get_next(), self._loop).result()

    async def get_first(self) -> None:
        """Get the token that the client finds when it is made."""
        self._first = await self._get()

    def raise_if_expired(self) -> None:
        """Raise the error of the user's function, if the last token has expired since."""
        if self._error is not None and time.monotonic() >= self._expires_at:
            raise self._error

    def refusal(self, error: Exception) -> Exception:
        """Return why the broker does not let the client in any more, after what it raised."""
        return self._error or RefusedTokenError(f"the broker refuses the token: {text_of(error)}")

    def close(self) -> None:
        """Cancel a call that is under way, and refuse those that come."""
        self._closed = True
        if self._getting is not None:
            self._getting.cancel()

    async def _get_next(self) -> tuple[str, float]:
        if self._closed:
            raise KafkaConnectionError("the member leaves its group")
        self._getting = asyncio.current_task()
        try:
            return await self._get()
        except Exception as error:
            self._error = error
            log.warning("a member of a share group gets no new token: %s", text_of(error))
            raise
        finally:
            self._getting = None

    async def _get(self) -> tuple[str, float]:
        try:
            async with asyncio.timeout(self._timeout):
                token = await self._provider.token()
        except TimeoutError as error:
            raise KafkaConnectionError(
                f"the function that returns a token took more than {self._timeout:g} seconds"
            ) from error
        lifetime = _lifetime(token)
        self._expires_at, self._error = time.monotonic() + lifetime, None
        return token, datetime.now(UTC).timestamp() + lifetime


def _lifetime(token: str) -> float:
    """Return the seconds until a token expires: the claim `exp` (RFC 7519, 4.1.4) of a JWT."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        lifetime = float(claims["exp"]) - datetime.now(UTC).timestamp()
    except (IndexError, KeyError, TypeError, ValueError):
        return _OPAQUE_LIFETIME
    # The clock of the issuer may be another: whether it has expired is for the broker to say.
    return lifetime if lifetime > 0 else _OPAQUE_LIFETIME
