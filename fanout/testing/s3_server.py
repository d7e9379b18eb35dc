"""S3 on 127.0.0.1: moto's, in this process."""

from __future__ import annotations

from contextlib import contextmanager
from io import BytesIO
from threading import Lock
from typing import TYPE_CHECKING, Any, final

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

from fanout.testing.http_server import HttpServer
from fanout.testing.s3_clients import BUCKET, s3_files

if TYPE_CHECKING:
    from collections.abc import Iterator


@final
class _AtomicCreation:
    """Serve one conditional put at a time: moto looks for the object first, and writes it later.

    Args:
        application: moto.
    """

    def __init__(self, application: Any) -> None:
        self._application = application
        self._lock = Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        """Serve a request."""
        if environ.get("HTTP_IF_NONE_MATCH") != "*" or environ["REQUEST_METHOD"] in {"GET", "HEAD"}:
            return self._application(environ, start_response)
        # A client that stalls in the middle of its body must not hold the others up.
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        with self._lock:
            return self._application(environ | {"wsgi.input": BytesIO(body)}, start_response)


@contextmanager
def serve_s3() -> Iterator[str]:
    """Serve S3 with an empty bucket, whose objects this process holds.

    Yields:
        The endpoint.
    """
    # It takes a request that names no other service for one of S3.
    application = _AtomicCreation(DomainDispatcherApplication(create_backend_app))
    server = HttpServer(0, application, name="s3-server")
    try:
        endpoint = f"http://127.0.0.1:{server.port}"
        s3_files(endpoint).create_dir(BUCKET)
        yield endpoint
    finally:
        server.close()
