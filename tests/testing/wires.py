"""Have boto3 speak what it does not speak by itself: CBOR, and HTTP/2."""

from __future__ import annotations

import base64
import json
import ssl
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cbor2
import httpx
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError
from urllib3.exceptions import IncompleteRead, ProtocolError
from urllib3.exceptions import ReadTimeoutError as StreamTimeoutError

if TYPE_CHECKING:
    from collections.abc import Iterator

CBOR = "application/x-amz-cbor-1.1"
# The servers speak no TLS, and each client of httpx would read all certificates of the machine.
NO_AUTHORITIES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
# A time is in milliseconds, as no other CBOR has it.
_SECONDS = {1: lambda value, _: value / 1000}


@dataclass(frozen=True)
class Wire:
    http2: bool = False
    cbor: bool = False

    def __str__(self) -> str:
        return f"{'HTTP/2' if self.http2 else 'HTTP/1.1'} {'CBOR' if self.cbor else 'JSON'}"


PLAIN = Wire()


class _Body:
    """The part of urllib3's response that botocore uses."""

    def __init__(self, answer: httpx.Response) -> None:
        self._answer = answer

    def stream(self) -> Iterator[bytes]:
        try:
            yield from self._answer.iter_raw()
        except httpx.ReadTimeout as error:
            raise StreamTimeoutError(None, "/", "Read timed out.") from error  # type: ignore[arg-type]
        except httpx.TransportError as error:
            raise ProtocolError(str(error)) from error

    def close(self) -> None:
        self._answer.close()


class _Converted:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self) -> Iterator[bytes]:
        yield self._content


@contextmanager
def speaking(client: Any, wire: Wire) -> Iterator[None]:
    """Let all calls of a client of Kinesis go over a wire."""
    if wire == PLAIN:
        yield
        return
    # httpx resets no stream that it reads no further, but it closes a connection that is idle.
    with httpx.Client(
        verify=NO_AUTHORITIES,
        http1=not wire.http2,
        http2=wire.http2,
        timeout=client.meta.config.read_timeout,
        limits=httpx.Limits(max_keepalive_connections=0),
    ) as http:

        def send(request: Any, **_: Any) -> AWSResponse:
            return _send(http, request, wire)

        client.meta.events.register("before-send.kinesis", send)
        yield


def _send(http: httpx.Client, request: Any, wire: Wire) -> AWSResponse:
    headers = {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in request.headers.items()
    }
    body = request.body
    if wire.cbor:
        body = to_cbor(json.loads(body))
        headers |= {"Content-Type": CBOR, "Content-Length": str(len(body))}
    try:
        answer = http.send(
            http.build_request(request.method, request.url, headers=headers, content=body),
            stream=True,
        )
    except httpx.ReadTimeout as error:
        raise ReadTimeoutError(endpoint_url=request.url, error=error) from error
    except httpx.TransportError as error:
        raise ConnectionClosedError(endpoint_url=request.url, error=error) from error
    if "eventstream" in answer.headers["content-type"]:
        return _answered(request, answer, _Body(answer))
    try:
        content = answer.read()
    except httpx.TransportError as error:
        broken = IncompleteRead(answer.num_bytes_downloaded, 0)
        raise ConnectionClosedError(endpoint_url=request.url, error=broken) from error
    assert answer.http_version == ("HTTP/2" if wire.http2 else "HTTP/1.1")
    if wire.cbor and answer.headers["content-type"] != "text/html":
        assert answer.headers["content-type"] == CBOR
        content = json.dumps(
            cbor2.loads(content, semantic_decoders=_SECONDS), default=_base64
        ).encode()
    return _answered(request, answer, _Converted(content))


def _answered(request: Any, answer: httpx.Response, body: _Body | _Converted) -> AWSResponse:
    return AWSResponse(request.url, answer.status_code, dict(answer.headers), body)


def to_cbor(document: Any) -> bytes:
    """Write a request as the SDK for Java does: byte strings, and times in milliseconds."""
    return cbor2.dumps(_typed("", document), indefinite_containers=True)


def _typed(name: str, value: Any) -> Any:
    match value:
        case dict():
            return {key: _typed(key, each) for key, each in value.items()}
        case list():
            return [_typed(name, each) for each in value]
        case str() if name == "Data":
            return base64.b64decode(value)
        case int() | float() if name.endswith("Timestamp"):
            return cbor2.CBORTag(1, round(value * 1000))
    return value


def _base64(value: Any) -> str:
    assert isinstance(value, bytes)
    return base64.b64encode(value).decode()
