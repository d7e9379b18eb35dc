"""An S3 that moto serves."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import boto3
from moto.server import ThreadedMotoServer

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = "lake"


@contextmanager
def moto_s3() -> Iterator[str]:
    """Serve S3 with an empty bucket.

    Yields:
        The endpoint.
    """
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        client = s3_client(endpoint)
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield endpoint
    finally:
        server.stop()


def s3_client(endpoint: str) -> Any:
    """Return boto3's client of an endpoint; the caller closes it."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )


def s3_options(endpoint: str) -> dict[str, str]:
    """Return the options of an object storage on an endpoint."""
    return {
        "endpoint": endpoint,
        "region": "us-east-1",
        "access_key_id": "testing",
        "secret_access_key": "testing",
    }
