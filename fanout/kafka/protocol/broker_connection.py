"""One connection to a broker: send requests, receive answers without copies, authenticate.

An answer is received into the memory in which it is decoded. Its frame begins with 32 bits for the
number of bytes that follow: https://kafka.apache.org/protocol.html#protocol_common
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import math
import socket
import struct
import time
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import (
    CorrelationIdError,
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaError,
    KafkaProtocolError,
)
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.types import Array, Bytes, Int32, Schema

from fanout.core.error_text import text_of
from fanout.core.user_functions import is_interrupt
from fanout.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

log = logging.getLogger(__name__)

_SASL_AUTHENTICATE: Final = 36
_RENEWED: Final = 0.85  # the part of a session that is used, the least of Java's client
_NEXT_ADDRESS: Final = 2.0  # seconds for one address where a name has more
_LENGTH_BYTES: Final = 4
_LEAST: Final = 4  # every answer begins with the number of its request
# A longer frame gets more memory when this much has come: the length that a broken peer announces
# is not trusted.
_AT_ONCE: Final = 16 * 1024 * 1024
# So much is read ahead where a frame begins: the answers with few records come in one piece.
_AHEAD: Final = 32 * 1024
# Shorter pieces are copied: only record batches are long.
_COPIED: Final = 32 * 1024
# A block of 32 MiB would have no effect, see DEFAULT_MMAP_THRESHOLD_MAX in glibc's malloc.c.
_KEPT: Final = 31 * 1024 * 1024


class BrokerConnection(AIOKafkaConnection):  # type: ignore[misc]  # aiokafka is untyped
    """A connection to one broker; it answers requests in their order.

    The answer to a cancelled call is skipped when it comes. A broker that limits the time for which
    an authentication holds (KIP-368) closes the connection at the first request after `ends_at`;
    from `renew_at` on another one should take its place. Both are times of the loop. `turn` says
    with which address it begins, where a name has several.
    """

    renew_at = ends_at = math.inf
    turn = 0
    _is_idle: asyncio.Event | None = None

    async def connect(self) -> Any:
        """Connect as aiokafka does, then receive answers with ResponseReceiver."""
        self._loop: Any = _Dialer(asyncio.get_running_loop(), self.turn)
        streams = await super().connect()
        if self._writer is not None:  # the broker may have closed the connection already
            # aiokafka's reader goes on, and reads only the end of the stream.
            frames = ResponseReceiver(self._protocol, self._take, self._break_off)
            self._writer.transport.set_protocol(frames)
        return streams

    def send(self, request: Any, expect_response: bool = True) -> Awaitable[Any]:  # noqa: FBT001, FBT002 - the base's signature
        """Send a request now, and return an awaitable for its answer, or until it is sent."""
        if self._writer is None:
            raise KafkaConnectionError(f"there is no connection to {self.host}:{self.port}")
        prepared = _UnloggedRequest(request).prepare(self._versions)
        number = self._next_correlation_id()
        header = prepared.build_request_header(correlation_id=number, client_id=self._client_id)
        pieces = [header.encode()]
        if request.API_KEY == ProduceRequest.API_KEY:
            # aiokafka's types copy records at each level of the request, which takes longer than
            # all else.
            fields = [getattr(prepared, name) for name in prepared.SCHEMA.names]
            pieces += _pieces(prepared.SCHEMA, fields)
        else:
            pieces.append(prepared.encode())
        try:
            self._writer.write(b"".join((Int32.encode(sum(map(len, pieces))), *pieces)))
        except OSError as error:
            self.close(CloseReason.CONNECTION_BROKEN)
            what = f"the connection to {self.host}:{self.port} broke: {text_of(error)}"
            raise KafkaConnectionError(what) from error
        log.debug("request %d to %s:%d: %s", number, self.host, self.port, prepared)
        if not expect_response:
            sent: Awaitable[Any] = self._writer.drain()
            return sent
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._requests.append((number, prepared, answer))
        response = self._in_time(answer)
        return self._note_session(response) if request.API_KEY == _SASL_AUTHENTICATE else response

    async def _in_time(self, answer: asyncio.Future[Any]) -> Any:
        """Wait for an answer; a timer that sets the error costs less than `asyncio.timeout`."""
        timer = asyncio.get_running_loop().call_later(self._request_timeout, _time_out, answer)
        try:
            return await answer
        finally:
            timer.cancel()

    async def finish(self) -> None:
        """Wait until no request waits for its answer any more."""
        while self._requests:
            self._is_idle = asyncio.Event()
            await self._is_idle.wait()

    async def _note_session(self, answer: Awaitable[Any]) -> Any:
        response = await answer
        seconds = getattr(response, "session_lifetime_ms", 0) / 1000  # since version 1
        if seconds > 0:
            now = asyncio.get_running_loop().time()
            self.renew_at, self.ends_at = now + _RENEWED * seconds, now + seconds
        return response

    def close(self, reason: Any = None, exc: BaseException | None = None) -> Awaitable[None]:
        """Close at once, without waiting for unsent bytes or the close of TLS."""
        if self._writer is not None:
            self._writer.transport.abort()
        if self._is_idle is not None:
            self._is_idle.set()
        closed: Awaitable[None] = super().close(reason, exc)
        return closed

    def authenticator_oauth(self) -> _TokenAuthenticator:
        """Return the authenticator for OAUTHBEARER."""
        return _TokenAuthenticator(super().authenticator_oauth())

    def _take(self, frame: ResponseFrame) -> None:
        """Decode an answer for the call that waits for it, unless that was cancelled."""
        if not self._requests:
            self._break_off("an answer belongs to no request")
            return
        number, request, answer = self._requests[0]
        try:
            answered = request.parse_response_header(frame).correlation_id
            if answered != number:
                self._break_off(f"request {number} has answer {answered}", CorrelationIdError)
                return
            if not answer.done():
                answer.set_result(request.RESPONSE_TYPE.decode(frame))
        except (ValueError, struct.error):  # it may quote the answer, so it is not chained
            self._break_off(f"the answer to {request} cannot be read")
            return
        self._requests.popleft()
        if self._is_idle is not None and not self._requests:
            self._is_idle.set()
        self._last_action = time.monotonic()

    def _break_off(self, why: str, kind: type[KafkaError] = KafkaProtocolError) -> None:
        """Close because later answers cannot be matched with requests."""
        error = kind(f"{self.host}:{self.port} breaks Kafka's protocol: {why}")
        if self._requests and not (answer := self._requests[0][-1]).done():
            answer.set_exception(error)
        self.close(CloseReason.OUT_OF_SYNC, error)


def _time_out(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())


def _pieces(kind: Any, value: Any) -> Iterator[Any]:
    """Yield a field of a request as bytes, in pieces; those of records are not copied.

    Args:
        kind: The field's type in aiokafka.
        value: What it has; where that is bytes, a sequence of buffers.
    """
    if isinstance(kind, Schema):
        for field, item in zip(kind.fields, value, strict=True):
            yield from _pieces(field, item)
    elif isinstance(kind, Array):
        yield Int32.encode(len(value))
        for item in value:
            yield from _pieces(kind.array_of, item)
    elif kind is Bytes:
        yield Int32.encode(sum(map(len, value)))
        yield from value
    else:
        yield kind.encode(value)


@final
class _Dialer:
    """The event loop for aiokafka, but that a connection tries each address of a name.

    The loop's own way is to wait for the first address until the system gives it up.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, turn: int) -> None:
        self._own = loop
        self._turn = turn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    async def create_connection(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int, *, ssl: Any
    ) -> Any:
        found = await self._own.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        if len(found) == 1:
            return await self._own.create_connection(factory, host, port, ssl=ssl)
        at = self._turn % len(found)
        connected = await self._connect((*found[at:], *found[:at]))
        name = host if ssl else None
        return await self._own.create_connection(
            factory, sock=connected, ssl=ssl, server_hostname=name
        )

    async def _connect(self, found: Sequence[Any]) -> socket.socket:
        """Connect to the first address that answers; all but the last have a limited time."""
        failure: OSError | None = None
        for family, kind, protocol, _, address in found:
            sock = socket.socket(family, kind, protocol)
            sock.settimeout(0)
            try:
                last = address == found[-1][-1]
                async with asyncio.timeout(None if last else _NEXT_ADDRESS):
                    await self._own.sock_connect(sock, address)
            except OSError as error:  # TimeoutError is one
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        assert failure is not None
        raise failure


@final
class ResponseFrame:
    """A received answer as a file, from which aiokafka's types read; its bytes must not change."""

    def __init__(self, data: bytearray | memoryview) -> None:
        self._data = memoryview(data).toreadonly()
        self._at = 0

    def read(self, nbytes: int) -> bytes | memoryview:
        """Return the next bytes; a large piece is a view, not a copy."""
        piece = self._data[self._at : self._at + nbytes]
        self._at += nbytes
        return piece if nbytes > _COPIED else bytes(piece)


@final
class ResponseReceiver(asyncio.BufferedProtocol):
    """Receive answers in place of aiokafka's protocol, which would copy them.

    Args:
        replaced: That protocol, which still gets all events except the bytes.
        take: Called with each answer.
        fail: Called once with the reason if no answer can follow.
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
        self._ahead = _memory(_AHEAD)
        self._frame: memoryview | None = None  # that of which the beginning has come
        self._length = 0  # that of the frame
        self._received = 0  # bytes, of the frame or ahead

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the base's signature
        """Return the memory for what comes next.

        That is the rest of a frame whose beginning has come, without room for the next frame. Where
        a frame begins it is read together with what follows it, so that a short one comes at once.
        """
        return (self._ahead if self._frame is None else self._frame)[self._received :]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle received bytes."""
        self._received += nbytes
        if self._frame is None:
            self._cut()
        elif self._received == self._length:
            whole, self._frame, self._received = self._frame, None, 0
            self._take(ResponseFrame(whole))
        elif self._received == len(self._frame):
            self._grow(self._frame, 2 * self._received)

    def _cut(self) -> None:
        """Cut what was read ahead into frames; the last one may have to be received further."""
        ahead, self._received = self._ahead[: self._received], 0
        while len(ahead) >= _LENGTH_BYTES:
            length = int.from_bytes(ahead[:_LENGTH_BYTES], signed=True)
            if length < _LEAST:
                self._fail(f"an answer cannot have {length} bytes")
                return
            ahead = ahead[_LENGTH_BYTES:]
            if length > len(ahead):
                self._length, self._received = length, len(ahead)
                self._grow(ahead, _AT_ONCE)
                return
            self._take(ResponseFrame(bytearray(ahead[:length])))
            ahead = ahead[length:]
        self._received = len(ahead)
        self._ahead[: len(ahead)] = ahead

    def _grow(self, received: memoryview, nbytes: int) -> None:
        """Get memory for a frame up to some bytes, of which these are received."""
        self._frame = _memory(min(self._length, nbytes))
        self._frame[: len(received)] = received

    def eof_received(self) -> bool | None:
        """Pass on the end of the stream."""
        return self._replaced.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on the end of the connection."""
        self._replaced.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass on that the write buffer is full."""
        self._replaced.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the write buffer has room again."""
        self._replaced.resume_writing()


@final
class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka is untyped
    """A user's token function as aiokafka's token provider."""

    def __init__(self, token: Callable[[], Awaitable[str]]) -> None:
        self._token = token

    async def token(self) -> str:
        """Return a token, or raise KafkaConnectionError, so that the function is called again."""
        try:
            returned = self._token()
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


@final
class _TokenAuthenticator:
    """OAUTHBEARER that notices a refusal; aiokafka takes every answer for success.

    A broker that refuses a token sends the reason, and fails the exchange when the client has
    confirmed that with one byte (RFC 7628, section 3.2.3).
    """

    def __init__(self, authenticator: Any) -> None:
        self._authenticator = authenticator

    async def step(self, answer: bytes | None) -> tuple[bytes, bool] | None:
        if answer:
            return b"\x01", True
        step: tuple[bytes, bool] | None = await self._authenticator.step(answer)
        return step


@final
class _UnloggedRequest:
    """A request that appears in debug logs, like its answer, by name only.

    The representations of aiokafka's types have passwords and records.
    """

    def __init__(self, request: Any) -> None:
        self._request = request

    def prepare(self, versions: Mapping[int, tuple[int, int]]) -> Any:
        """Return the request in the newest version that the broker supports."""
        try:
            struct = self._request.prepare(versions)
        except NotImplementedError as error:
            raise IncompatibleBrokerVersion(str(error)) from error
        struct.__class__ = _unlogged(struct.__class__)
        return struct


@functools.cache
def _unlogged(kind: Any) -> type[Any]:
    members: dict[str, Any] = {"__repr__": lambda _: kind.__name__}
    response = getattr(kind, "RESPONSE_TYPE", None)
    if response is not None:
        members["RESPONSE_TYPE"] = _unlogged(response)
    return type(kind.__name__, (kind,), members)


def _memory(nbytes: int) -> memoryview:
    """Return memory that is written before it is read; a bytearray would be filled with zeros."""
    return np.empty(nbytes, np.uint8).data


def keep_freed_memory() -> None:
    """Make glibc keep the freed memory of answers for later answers.

    Otherwise it returns most of that memory to the kernel each time, and new pages for an answer
    take three times as long as everything else to receive it. glibc keeps twice the size of the
    largest block that it has mapped and freed, see M_MMAP_THRESHOLD and M_TRIM_THRESHOLD in
    mallopt(3); a block without a write takes no memory.
    """
    bytes(_KEPT)
