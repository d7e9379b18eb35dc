"""One connection to a broker, with what aiokafka's own needs to be used alone.

It closes at once, whatever the broker does, and logs neither secrets nor records.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any, Final, final

from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import (
    CorrelationIdError,
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaError,
    KafkaProtocolError,
)

from fanout.errors import OptionError
from fanout.kafka.protocol.frames import Frames

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from fanout.kafka.protocol.frames import Frame

__all__ = ("BrokerConnection", "TokenProvider", "keep_freed_memory")

# A block of 32 MiB would have no effect, see DEFAULT_MMAP_THRESHOLD_MAX in glibc's malloc.c.
_KEPT: Final = 31 * 1024 * 1024


def keep_freed_memory() -> None:
    """Let glibc keep what answers took for the answers after them.

    It would give most of that back to the kernel each time, and to get an answer's pages anew
    takes three times as long as all else that is done to receive it. What glibc keeps is twice as
    much as the largest block that it has mapped and freed, see M_MMAP_THRESHOLD and
    M_TRIM_THRESHOLD in mallopt(3); a block that nobody writes to takes no memory.
    """
    bytes(_KEPT)


class BrokerConnection(AIOKafkaConnection):  # type: ignore[misc]  # aiokafka is untyped
    """A connection to one broker; requests are answered in their order.

    A call that is cancelled leaves its answer to be skipped when it comes.
    """

    async def connect(self) -> Any:
        """Connect, by aiokafka's own way; answers are received by ours from then on."""
        streams = await super().connect()
        if self._writer is not None:  # the broker may have hung up on its last word
            # aiokafka's reader goes on, and has nothing to read but the end.
            frames = Frames(self._protocol, self._take, self._break_off)
            self._writer.transport.set_protocol(frames)
        return streams

    def send(self, request: Any, expect_response: bool = True) -> Awaitable[Any]:  # noqa: FBT001, FBT002 - the base's signature
        """Send a request now, and return what waits for the answer."""
        answer: Awaitable[Any] = super().send(_Terse(request), expect_response)
        return answer

    def close(self, reason: Any = None, exc: BaseException | None = None) -> Awaitable[None]:
        """Close without waiting for a broker that takes no more bytes, or no farewell of TLS."""
        if self._writer is not None:
            self._writer.transport.abort()
        closed: Awaitable[None] = super().close(reason, exc)
        return closed

    def authenticator_oauth(self) -> _TokenAuthenticator:
        """Return what talks OAUTHBEARER with the broker."""
        return _TokenAuthenticator(super().authenticator_oauth())

    def _take(self, frame: Frame) -> None:
        """Read an answer for whoever waits for it, if anybody still does."""
        if not self._requests:
            self._break_off("there is an answer to no request")
            return
        number, request, answer = self._requests[0]
        try:
            answered = request.parse_response_header(frame).correlation_id
            if answered != number:
                self._break_off(f"request {number} has answer {answered}", CorrelationIdError)
                return
            if not answer.done():
                answer.set_result(request.RESPONSE_TYPE.decode(frame))
        except ValueError:  # it may quote the answer, so it is not chained
            self._break_off(f"the answer to {request} cannot be read")
            return
        self._requests.popleft()
        self._last_action = time.monotonic()

    def _break_off(self, why: str, kind: type[KafkaError] = KafkaProtocolError) -> None:
        """Close because nobody can tell from now on what belongs to which request."""
        error = kind(f"{self.host}:{self.port} breaks Kafka's protocol: {why}")
        if self._requests and not (answer := self._requests[0][-1]).done():
            answer.set_exception(error)
        self.close(CloseReason.OUT_OF_SYNC, error)


@final
class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka is untyped
    """A user's function in the form in which aiokafka takes it.

    Args:
        token: The function.
    """

    def __init__(self, token: Callable[[], Awaitable[str]]) -> None:
        self._token = token

    async def token(self) -> str:
        """Return a token.

        Raises:
            KafkaConnectionError: The function raised; it is tried again.
            OptionError: It returned no string.
        """
        try:
            token = await self._token()
        except KafkaError:
            raise
        except Exception as error:
            raise KafkaConnectionError(
                f"the function that returns a token raised {type(error).__name__}"
            ) from error
        if not isinstance(token, str):
            raise OptionError(f"the token must be a string, not {type(token).__name__}")
        return token


@final
class _TokenAuthenticator:
    """OAUTHBEARER that hears a refusal; aiokafka takes every answer for a welcome.

    A broker that refuses a token says why, and fails the exchange when the client has confirmed
    that by one byte (RFC 7628, section 3.2.3).
    """

    def __init__(self, authenticator: Any) -> None:
        self._authenticator = authenticator

    async def step(self, answer: bytes | None) -> tuple[bytes, bool] | None:
        if answer:
            return b"\x01", True
        step: tuple[bytes, bool] | None = await self._authenticator.step(answer)
        return step


@final
class _Terse:
    """A request whose text in aiokafka's debug log, and that of its answer, is its name alone.

    aiokafka would log passwords and records.
    """

    def __init__(self, request: Any) -> None:
        self._request = request

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> Any:
        """Return the request in the newest version that the broker has."""
        try:
            struct = self._request.prepare(versions)
        except NotImplementedError as error:
            raise IncompatibleBrokerVersion(str(error)) from error
        struct.__class__ = _terse(struct.__class__)
        return struct


@functools.cache
def _terse(kind: Any) -> type[Any]:
    members: dict[str, Any] = {"__repr__": lambda _: kind.__name__}
    response = getattr(kind, "RESPONSE_TYPE", None)
    if response is not None:
        members["RESPONSE_TYPE"] = _terse(response)
    return type(kind.__name__, (kind,), members)
