"""A REST catalog of Iceberg on this machine, whose answers can be lost, and whose commits be late.

pyiceberg's client calls it; behind it is another catalog of pyiceberg, such as one in SQLite.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Literal

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Fault = Literal["lost", "late", "refused"]

_STATUS = {
    NoSuchTableError: 404,
    NoSuchNamespaceError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
}


@dataclass(eq=False)
class RestCatalog:
    """The catalog.

    Attributes:
        faults: Of the next commits; an empty text is for one that nothing happens to.
        late: Commits whose answer nobody waits for, and that are still to come.
    """

    catalog: Catalog
    faults: list[Fault | Literal[""]] = field(default_factory=list)
    late: list[Callable[[], Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    uri: str = ""

    def call(self, method: str, path: str, body: bytes) -> Any:
        """Answer a request; None for a connection that is closed without an answer."""
        parts = path.partition("?")[0].strip("/").split("/")[1:]
        calls: dict[tuple[str, int], Callable[..., Any]] = {
            ("GET", 1): self._config,
            ("POST", 1): self._make_namespace,
            ("GET", 2): self._namespace,
            ("POST", 3): self._create,
            ("GET", 4): self._load,
            ("POST", 4): self._commit,
            ("DELETE", 4): self._drop,
        }
        answer = calls[method, len(parts)]
        with self.lock:
            return answer(json.loads(body or b"{}"), *parts[1::2])

    def _config(self, _: Any) -> Any:
        return {"defaults": {}, "overrides": {}}

    def _make_namespace(self, given: Any) -> Any:
        self.catalog.create_namespace(tuple(given["namespace"]))
        return given

    def _load(self, _: Any, *table: str) -> Any:
        return self._told(self.catalog.load_table(table))

    def _drop(self, _: Any, *table: str) -> Any:
        self.catalog.drop_table(table)
        return {}

    def _namespace(self, _: Any, name: str) -> Any:
        properties = self.catalog.load_namespace_properties(name)
        return {"namespace": [name], "properties": dict(properties)}

    def _create(self, given: Any, namespace: str) -> Any:
        columns, properties = Schema.model_validate(given["schema"]), given["properties"]
        name = (namespace, given["name"])
        return self._told(self.catalog.create_table(name, columns, properties=properties))

    def _commit(self, given: Any, *table: str) -> Any:
        given.setdefault("identifier", {"namespace": [table[0]], "name": table[1]})
        request = CommitTableRequest.model_validate_json(json.dumps(given))

        def commit() -> Any:
            return self.catalog.commit_table(
                self.catalog.load_table(table), request.requirements, request.updates
            )

        fault = self.faults.pop(0) if self.faults else ""
        if fault == "refused":
            raise NotImplementedError("model")
        if fault == "late":
            self.late.append(commit)
            return None
        done = commit()
        return None if fault == "lost" else self._told(done)

    def _told(self, table: Any) -> Any:
        metadata = json.loads(table.metadata.model_dump_json())
        return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}


@contextmanager
def rest_catalog(properties: dict[str, str]) -> Iterator[RestCatalog]:
    """Serve a catalog, with the properties of the one behind it."""
    served = RestCatalog(load_catalog("served", **properties))

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status = 200
            try:
                answer = served.call(self.command, self.path, body)
            except Exception as error:  # noqa: BLE001 - each is an answer
                status = _STATUS.get(type(error), 500)
                failed = {"message": str(error), "type": type(error).__name__, "code": status}
                answer = {"error": failed}
            if answer is None:
                self.close_connection = True
                return
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815 - the server's names

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        served.uri = f"http://127.0.0.1:{server.server_port}"
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()
