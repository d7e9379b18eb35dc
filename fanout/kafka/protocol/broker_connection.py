"""One connection to a broker: authenticate, send requests, and match answers with requests."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final, final

from aiokafka.errors import (
    CorrelationIdError,
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaError,
    KafkaProtocolError,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.admin import ApiVersionRequest, SaslAuthenticateRequest, SaslHandShakeRequest

from fanout.kafka.protocol.error_codes import raise_for_code
from fanout.kafka.protocol.response_frames import ResponseReceiver
from fanout.kafka.protocol.sasl import authenticate

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable

    from fanout.kafka.cluster import Server
    from fanout.kafka.protocol.response_frames import ResponseFrame
    from fanout.kafka.security import Security

log = logging.getLogger(__name__)

_WHOLE: Final = 2**31  # no frame has as many bytes


@final
class BrokerConnection:
    """A connection to one broker; it answers requests in their order.

    The answer to a cancelled call is skipped when it comes. Nothing logs what a request or an
    answer holds.

    Args:
        server: The broker.
        security: How to authenticate.
        context: The TLS context; None without TLS.
        client_id: The name of this client in the broker's logs and quotas.
        request_timeout: Seconds that the broker may take to answer.
        max_idle: Seconds after which a connection without requests is closed.
    """

    def __init__(
        self,
        server: Server,
        security: Security,
        context: ssl.SSLContext | None,
        *,
        client_id: str,
        request_timeout: float,
        max_idle: float,
    ) -> None:
        self._server = server
        self._security = security
        self._context = context
        self._client_id = client_id
        self._request_timeout = request_timeout
        self._max_idle = max_idle
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._versions: dict[int, tuple[int, int]] = {}
        # The requests that wait for answers: their numbers, the requests, and the futures of the
        # answers. A token of SASL has no number.
        self._requests: deque[tuple[int | None, Any, asyncio.Future[Any]]] = deque()
        self._number = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._closed = self._loop.create_future()
        self._last_action = self._loop.time()
        self._idle_check: asyncio.TimerHandle | None = None

    async def connect(self) -> None:
        """Connect, learn what the broker supports, and authenticate.

        Raises:
            KafkaError: If the broker refuses the client, or breaks the connection.
            OSError: If it cannot be reached.
            ValueError: If the broker does not know the password.
        """
        receiver = ResponseReceiver(self._take, self._break_off, self._lost, self._writable)
        self._transport, _ = await self._loop.create_connection(
            lambda: receiver, self._server.host, self._server.port, ssl=self._context
        )
        self._idle_check = self._loop.call_later(self._max_idle, self._close_if_idle)
        try:
            await self._look_up_versions()
            if self._security.sasl is not None:
                await self._authenticate(self._security.sasl)
        except BaseException:
            self.close()
            raise

    def connected(self) -> bool:
        """Return whether requests can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: Any, *, expect_response: bool = True) -> Awaitable[Any]:
        """Send a request now, and return an awaitable for its answer.

        Raises:
            KafkaError: If the connection is closed, or the broker does not support the request.
        """
        try:
            struct = request.prepare(self._versions)
        except NotImplementedError as error:
            raise IncompatibleBrokerVersion(str(error)) from error
        self._number = (self._number + 1) % 2**31
        header = struct.build_request_header(self._number, self._client_id)
        log.debug("%s is asked %d by %s", self._server, self._number, type(struct).__name__)
        self._write(header.encode(), struct.encode())
        return self._answer(self._number, struct) if expect_response else self._written()

    def close(self, error: Exception | None = None) -> asyncio.Future[None]:
        """Close at once, without waiting for unsent bytes or the close of TLS.

        Args:
            error: The reason, for the calls that wait.

        Returns:
            A future that is done when the connection is closed.
        """
        if self._transport is None:
            self._lost(error)
        else:
            self._transport.abort()
            self._fail(error)
        return self._closed

    async def _look_up_versions(self) -> None:
        answer = await self.send(ApiVersionRequest())
        self._versions = {key: (least, most) for key, least, most in answer.api_versions}

    async def _authenticate(self, mechanism: str) -> None:
        answer = await self.send(SaslHandShakeRequest(mechanism))
        taken = answer.enabled_mechanisms
        code = 0 if mechanism in taken else UnsupportedSaslMechanismError.errno
        what = f"{self._server} takes {', '.join(taken) or 'no mechanism'}, not {mechanism}"
        raise_for_code(answer.error_code or code, what)
        exchange = self._exchange if answer.API_VERSION > 0 else self._exchange_bare
        await authenticate(self._security, exchange)

    async def _exchange(self, token: bytes) -> bytes:
        answer = await self.send(SaslAuthenticateRequest(token))
        raise_for_code(answer.error_code, answer.error_message)
        return bytes(answer.sasl_auth_bytes or b"")

    async def _exchange_bare(self, token: bytes) -> bytes:
        """Exchange tokens without a header, as brokers before Kafka 1.0 do."""
        assert self._transport is not None
        receiver = self._transport.get_protocol()
        assert isinstance(receiver, ResponseReceiver)
        receiver.least, least = 0, receiver.least
        self._write(token)
        frame: ResponseFrame = await self._answer(None, None)
        receiver.least = least
        return bytes(frame.read(_WHOLE))

    def _write(self, *parts: bytes) -> None:
        if self._transport is None or not self.connected():
            raise KafkaConnectionError(f"the connection to {self._server} is closed")
        self._transport.write(b"".join((sum(map(len, parts)).to_bytes(4), *parts)))

    def _answer(self, number: int | None, request: Any) -> Awaitable[Any]:
        answer = self._loop.create_future()
        self._requests.append((number, request, answer))
        return self._in_time(answer)

    async def _in_time(self, answer: asyncio.Future[Any]) -> Any:
        async with asyncio.timeout(self._request_timeout):
            return await answer

    async def _written(self) -> None:
        """Wait until the write buffer has room again."""
        await self._writable.wait()
        if not self.connected():
            raise KafkaConnectionError(f"the connection to {self._server} broke")

    def _take(self, frame: ResponseFrame) -> None:
        """Decode an answer for the call that waits for it, unless that was cancelled."""
        if not self._requests:
            self._break_off("an answer belongs to no request")
            return
        number, request, answer = self._requests[0]
        try:
            if number is not None:
                answered = request.parse_response_header(frame).correlation_id
                if answered != number:
                    self._break_off(f"request {number} has answer {answered}", CorrelationIdError)
                    return
            if not answer.done():
                response = frame if number is None else request.RESPONSE_TYPE.decode(frame)
                log.debug("%s answers %s by %s", self._server, number, type(response).__name__)
                answer.set_result(response)
        except ValueError:  # it may quote the answer, so it is not chained
            self._break_off(f"the answer to {type(request).__name__} cannot be read")
            return
        self._requests.popleft()
        self._last_action = self._loop.time()

    def _break_off(self, why: str, kind: type[KafkaError] = KafkaProtocolError) -> None:
        """Close because later answers cannot be matched with requests."""
        error = kind(f"{self._server} breaks Kafka's protocol: {why}")
        if self._requests and not (answer := self._requests[0][-1]).done():
            answer.set_exception(error)
        self.close(error)

    def _lost(self, error: Exception | None) -> None:
        """Note that the connection is closed, by either side."""
        self._fail(error)
        if not self._closed.done():
            self._closed.set_result(None)

    def _fail(self, cause: Exception | None) -> None:
        """Fail the calls that wait; no other can follow."""
        for *_, answer in self._requests:
            if not answer.done():
                error = KafkaConnectionError(f"the connection to {self._server} was closed")
                error.__cause__ = cause
                answer.set_exception(error)
        self._requests.clear()
        if self._idle_check is not None:
            self._idle_check.cancel()

    def _close_if_idle(self) -> None:
        left = self._last_action + self._max_idle - self._loop.time()
        if left <= 0 and not self._requests:
            self.close()
            return
        wait = left if left > 0 else self._max_idle
        self._idle_check = self._loop.call_later(wait, self._close_if_idle)
