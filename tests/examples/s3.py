"""moto's S3 server for a test."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import boto3
from moto.server import ThreadedMotoServer

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ("BUCKET", "names_of_objects", "s3_server")

BUCKET = "lake"


@contextmanager
def s3_server() -> Iterator[str]:
    """Run a server with an empty bucket.

    Yields:
        Its endpoint.
    """
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        _client(endpoint).create_bucket(Bucket=BUCKET)
        yield endpoint
    finally:
        server.stop()


def names_of_objects(endpoint: str) -> list[str]:
    """Return the names of objects in the bucket; there are at most a thousand."""
    found = _client(endpoint).list_objects_v2(Bucket=BUCKET)
    return [entry["Key"] for entry in found.get("Contents", [])]


def _client(endpoint: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
