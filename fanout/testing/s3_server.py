"""S3 on 127.0.0.1: moto's, in this process."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from moto.moto_server.werkzeug_app import create_backend_app

from fanout.testing.http_server import HttpServer
from fanout.testing.one_at_a_time import OneAtATime
from fanout.testing.s3_clients import BUCKET, s3_files

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def serve_s3() -> Iterator[str]:
    """Serve S3 with an empty bucket, whose objects this process holds; yield the endpoint."""
    application = OneAtATime(create_backend_app("s3"), _creates)
    server = HttpServer(0, application, name="s3-server")
    try:
        endpoint = f"http://127.0.0.1:{server.port}"
        s3_files(endpoint).create_dir(BUCKET)
        yield endpoint
    finally:
        server.close()


def _creates(environ: dict[str, Any]) -> bool:
    """Say whether a request is a conditional put."""
    return environ.get("HTTP_IF_NONE_MATCH") == "*" and environ["REQUEST_METHOD"] not in {
        "GET",
        "HEAD",
    }
