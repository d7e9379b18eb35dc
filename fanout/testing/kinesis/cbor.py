"""Speak CBOR to clients that do, as the AWS SDK for Java v2 does but for SubscribeToShard.

An answer has the encoding of its request; a blob is a byte string, and a time is tag 1 with
milliseconds. The event stream is JSON for every client.
"""

from __future__ import annotations

import binascii
import io
import json
from typing import TYPE_CHECKING, Any

import cbor2

if TYPE_CHECKING:
    from collections.abc import Iterable

CBOR = "application/x-amz-cbor-1.1"
JSON = "application/x-amz-json-1.1"

# In a request's environment: whether its client speaks CBOR.
_SPEAKS_CBOR = "fanout.cbor"
# https://www.iana.org/assignments/cbor-tags: a time since the epoch.
_TIME = 1
_BLOB = "Data"
_TIMES = (
    "ApproximateArrivalTimestamp",
    "ConsumerCreationTimestamp",
    "FirstReceiveTimestamp",
    "QueueCreationTimestamp",
    "StreamCreationTimestamp",
    "Timestamp",
)
_UNREADABLE = {
    "__type": "SerializationException",
    "message": "The body of the request is not readable as CBOR.",
}


class CborApplication:
    """Read requests in CBOR, and answer them in CBOR; all others pass as they are."""

    def __init__(self, app: Any) -> None:
        self._app = app

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer one request."""
        if not environ.get("CONTENT_TYPE", "").startswith("application/x-amz-cbor"):
            untouched: Iterable[bytes] = self._app(environ, start_response)
            return untouched
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        try:
            request = cbor_to_json(body)
        except (cbor2.CBORError, TypeError, ValueError):
            answer = cbor2.dumps(_UNREADABLE)
            start_response("400 Bad Request", _headers([], answer))
            return [answer]
        environ["wsgi.input"] = io.BytesIO(request)
        environ["CONTENT_LENGTH"] = str(len(request))
        environ["CONTENT_TYPE"] = JSON
        environ[_SPEAKS_CBOR] = True
        return self._answer(environ, start_response)

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start(status: str, headers: list[tuple[str, str]], *_: Any) -> None:
            started[:] = [(status, headers)]

        body: Iterable[bytes] = self._app(environ, start)
        ((status, headers),) = started
        kind = {name.lower(): value for name, value in headers}.get("content-type", "")
        if "json" not in kind:
            start_response(status, headers)
            return body
        answer = b"".join(body)
        if answer:
            answer = json_to_cbor(answer)
        start_response(status, _headers(headers, answer))
        return [answer]


def speaks_cbor(environ: dict[str, Any]) -> bool:
    """Say whether a request came in CBOR."""
    return _SPEAKS_CBOR in environ


def cbor_to_json(body: bytes) -> bytes:
    """Write a request in CBOR, one map, as JSON: blobs in base64, times in seconds."""
    # Anything else raises a CBORError, a TypeError or a ValueError.
    if not body:
        return b"{}"
    source = io.BytesIO(body)
    request = cbor2.load(source, semantic_decoders={_TIME: lambda value, _: value / 1000})
    if source.read(1) or not isinstance(request, dict):
        raise ValueError("a request is one map")
    return json.dumps(request, default=_base64).encode()


def json_to_cbor(answer: bytes) -> bytes:
    """Write an answer in JSON as CBOR."""
    return cbor2.dumps(json.loads(answer, object_hook=_typed))


def _base64(value: object) -> str:
    if isinstance(value, bytes):
        return binascii.b2a_base64(value, newline=False).decode()
    raise TypeError(f"there is no JSON for {type(value).__name__}")


def _typed(document: dict[str, Any]) -> dict[str, Any]:
    if isinstance(data := document.get(_BLOB), str):
        document[_BLOB] = binascii.a2b_base64(data)
    for name in _TIMES:
        if isinstance(seconds := document.get(name), int | float):
            document[name] = cbor2.CBORTag(_TIME, round(seconds * 1000))
    return document


def _headers(headers: list[tuple[str, str]], answer: bytes) -> list[tuple[str, str]]:
    kept = [each for each in headers if each[0].lower() not in {"content-type", "content-length"}]
    return [*kept, ("Content-Type", CBOR), ("Content-Length", str(len(answer)))]
