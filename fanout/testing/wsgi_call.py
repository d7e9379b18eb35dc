"""Call a WSGI application for a request, and send its answer in parts."""

from __future__ import annotations

import io
import sys
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote_to_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

Headers = list[tuple[str, str]]

# They belong to a connection of HTTP/1.1.
_OF_A_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "upgrade"}
# Each answer gets a date here.
_LEFT_OUT = _OF_A_CONNECTION | {"date"}

FAILED: Headers = [(":status", "500"), ("content-length", "0")]
"""The answer where an application has raised."""


class Send(Protocol):
    """Sends a part of an answer; the headers come with the first part."""

    def __call__(self, data: bytes, headers: Headers | None = None, *, end: bool = False) -> None:
        """Send it, and end the answer if it is the last part."""


def environ_of(headers: Iterable[tuple[str, str]], body: bytes) -> dict[str, Any]:
    """Return the environment of a request, as PEP 3333 has it."""
    # The names of headers are in small letters; those of HTTP/2 begin with a colon.
    fields: dict[str, str] = {}
    for name, value in headers:
        fields[name] = f"{fields[name]},{value}" if name in fields else value
    path, _, query = fields.pop(":path", "/").partition("?")
    host = fields.pop(":authority", fields.pop("host", "127.0.0.1"))
    environ: dict[str, Any] = {
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": fields.pop(":scheme", "http"),
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        "REQUEST_METHOD": fields.pop(":method", "GET"),
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
        "QUERY_STRING": query,
        "REMOTE_ADDR": "127.0.0.1",
        "SERVER_NAME": host.rpartition(":")[0] or host,
        "SERVER_PORT": host.rpartition(":")[2],
        "SERVER_PROTOCOL": "HTTP/2",
        "HTTP_HOST": host,
        "CONTENT_TYPE": fields.pop("content-type", ""),
    }
    environ.update({f"HTTP_{_variable(name)}": value for name, value in fields.items()})
    environ["CONTENT_LENGTH"] = str(len(body))
    return environ


def call(app: Any, environ: dict[str, Any], send: Send) -> None:
    """Run an application and send its answer."""
    started: list[tuple[str, Headers]] = []

    def start(status: str, headers: Headers, *_: Any) -> None:
        started[:] = [(status, headers)]

    answer = app(environ, start)
    try:
        _send_all(answer, started, send)
    finally:
        if hasattr(answer, "close"):
            answer.close()


def _send_all(answer: Iterable[bytes], started: list[tuple[str, Headers]], send: Send) -> None:
    headers: Headers | None = None
    for part in answer:
        if headers is None:
            headers = _encoded(*started[0])
            if ("content-length", str(len(part))) in headers:
                send(part, headers, end=True)
                return
            send(part, headers)
        elif part:
            send(part)
    send(b"", _encoded(*started[0]) if headers is None else None, end=True)


def _encoded(status: str, headers: Headers) -> Headers:
    code, _, _ = status.partition(" ")
    kept = [(name.lower(), str(value)) for name, value in headers]
    return [
        (":status", code),
        ("date", formatdate(usegmt=True)),
        *(each for each in kept if each[0] not in _LEFT_OUT),
    ]


def _variable(name: str) -> str:
    return name.upper().replace("-", "_")
