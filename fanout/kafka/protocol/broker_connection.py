"""Frames, each received into the memory in which it is read.

A frame is 32 bits that say how many bytes follow, and these bytes:
https://kafka.apache.org/protocol.html#protocol_common
"""

from __future__ import annotations

import asyncio
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

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

__all__ = (
    "BrokerConnection",
    "ResponseFrame",
    "ResponseReceiver",
    "TokenProvider",
    "keep_freed_memory",
)


_LENGTH_BYTES: Final = 4

_LEAST: Final = 4  # every answer begins with the number of its request
# A frame that announces more gets more when this much has come: what a broken peer announces is
# not taken at its word.
_AT_ONCE: Final = 16 * 1024 * 1024
# Names and numbers are shorter, only record batches are not.
_COPIED: Final = 32 * 1024


@final
class ResponseFrame:
    """A frame as a file, from which aiokafka's types read.

    Args:
        data: Its bytes, which nobody changes any more.
    """

    def __init__(self, data: bytearray) -> None:
        self._data = memoryview(data).toreadonly()
        self._at = 0

    def read(self, nbytes: int) -> bytes | memoryview:
        """Return the next bytes; where they are many, they are not copied."""
        piece = self._data[self._at : self._at + nbytes]
        self._at += nbytes
        return piece if nbytes > _COPIED else bytes(piece)


@final
class ResponseReceiver(asyncio.BufferedProtocol):
    """Receive frames in place of a protocol that would copy them.

    Args:
        replaced: That protocol, which is told everything but the bytes.
        take: Called with each frame.
        fail: Called once with what is wrong, where no frame can follow.
    """

    def __init__(
        self,
        replaced: asyncio.Protocol,
        take: Callable[[ResponseFrame], None],
        fail: Callable[[str], None],
    ) -> None:
        self._replaced = replaced
        self._take = take
        self._fail = fail
        self._length: int | None = None  # None while the length itself is received
        self._buffer = bytearray(_LENGTH_BYTES)
        self._received = 0

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the base's signature
        """Return where the rest of the frame, and no byte of the next one, is received."""
        return memoryview(self._buffer)[self._received :]

    def buffer_updated(self, nbytes: int) -> None:
        """Note that bytes have been received."""
        self._received += nbytes
        if self._received < len(self._buffer):
            return
        received, length = self._buffer, self._length
        if length is None:
            self._expect(int.from_bytes(received, signed=True))
        elif len(received) < length:
            self._buffer = bytearray(min(length, 2 * len(received)))
            self._buffer[: len(received)] = received
        else:
            self._length, self._buffer, self._received = None, bytearray(_LENGTH_BYTES), 0
            self._take(ResponseFrame(received))

    def _expect(self, length: int) -> None:
        if length < _LEAST:
            self._fail(f"an answer cannot have {length} bytes")
        else:
            self._length, self._buffer, self._received = length, bytearray(min(length, _AT_ONCE)), 0

    def eof_received(self) -> bool | None:
        """Pass on that nothing follows."""
        return self._replaced.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on that the connection is gone."""
        self._replaced.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass on that the peer does not keep up."""
        self._replaced.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the peer keeps up again."""
        self._replaced.resume_writing()


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
            frames = ResponseReceiver(self._protocol, self._take, self._break_off)
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

    def _take(self, frame: ResponseFrame) -> None:
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
