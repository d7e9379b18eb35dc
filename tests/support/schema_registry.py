"""A schema registry in this process with Confluent's API; it can be down, and notes calls."""

from __future__ import annotations

import itertools
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from uuid import UUID

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

__all__ = ("EmbeddedRegistry", "embedded_registry")


_PLACES = itertools.count()


class EmbeddedRegistry:
    """What the registry has: `schemas` by their id, `subjects` with the ids of their versions."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.calls: list[str] = []
        self.authorization: str | None = None
        self.status = 200
        self.answer: bytes | None = None
        self.url = ""

    def register(self, subject: str, schema: Any, **more: Any) -> int:
        """Add a version to a subject, and return the id of its schema."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        document = {"schema": text} | {name: each for name, each in more.items() if each}
        found = [number for number, each in self.schemas.items() if each == document]
        number = found[0] if found else len(self.schemas) + 1
        self.schemas[number] = document
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def guid(self, number: int) -> str:
        """Return the GUID of a schema, which ends in a zero."""
        return str(UUID(bytes=b"guid" + number.to_bytes(11, "big") + b"\0"))

    def get(self, path: str) -> dict[str, Any] | None:
        """Answer; a schema that has a `text` besides is that where it is not asked for as bytes."""
        path, _, query = path.partition("?")
        found = self._found(path)
        if found is None or "text" not in found or query == "format=serialized":
            return found
        return found | {"schema": found["text"]}

    def _found(self, path: str) -> dict[str, Any] | None:
        if match := re.fullmatch(r"/schemas/ids/(\d+)", path):
            return self.schemas.get(int(match[1]))
        if match := re.fullmatch(r"/schemas/guids/([0-9a-f-]{36})", path):
            numbers = (number for number in self.schemas if self.guid(number) == match[1])
            return self.schemas.get(next(numbers, 0))
        if match := re.fullmatch(r"/subjects/([^/]+)/versions/(latest|\d+)", path):
            versions = self.subjects.get(match[1], [])
            version = len(versions) if match[2] == "latest" else int(match[2])
            if 0 < version <= len(versions):
                number = versions[version - 1]
                more = {"subject": match[1], "version": version, "id": number}
                return self.schemas[number] | more
        return None

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        match = re.fullmatch(r"/subjects/([^/]+)(/versions)?", path.partition("?")[0])
        if match is None:
            return None
        more = {name: body.get(name) for name in ("schemaType", "references")}
        document = {"schema": body["schema"]} | {name: each for name, each in more.items() if each}
        known = [self.schemas[number] for number in self.subjects.get(match[1], [])]
        if match[2] is None and document not in known:
            return None
        number = self.register(match[1], body["schema"], **more)
        version = self.subjects[match[1]].index(number) + 1
        more = {"id": number, "subject": match[1], "version": version}
        return more | {"guid": self.guid(number)} | body


@contextmanager
def embedded_registry(context: ssl.SSLContext | None = None) -> Iterator[EmbeddedRegistry]:
    registry = EmbeddedRegistry()
    # A process keeps the schemas of a URL, and a later registry may get the port of this one.
    place = f"/{next(_PLACES)}"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.path = self.path.removeprefix(place)
            self.answer(registry.get(self.path))

        def do_POST(self) -> None:
            self.path = self.path.removeprefix(place)
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(registry.post(self.path, json.loads(body)))

        def answer(self, found: dict[str, Any] | None) -> None:
            registry.calls.append(self.path)
            registry.authorization = self.headers["Authorization"]
            status = registry.status if registry.status != 200 or found is not None else 404
            problem = {"error_code": 40403, "message": "not found"}
            body = registry.answer or json.dumps(problem if found is None else found).encode()
            self.send_response(status)
            if status == 302:
                self.send_header("Location", f"{registry.url}/elsewhere")
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    scheme = "http" if context is None else "https"
    registry.url = f"{scheme}://127.0.0.1:{server.server_address[1]}{place}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
