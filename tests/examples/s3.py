"""moto's S3 server, in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import boto3

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ("BUCKET", "names_of_objects", "s3_server")

BUCKET = "lake"
PATIENCE = 30.0


@contextmanager
def s3_server(log: Path) -> Iterator[str]:
    """Run a server with an empty bucket.

    Args:
        log: The file that it writes to.

    Yields:
        Its endpoint.
    """
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)  # noqa: S603 - our own
    try:
        endpoint = _endpoint(log)
        _client(endpoint).create_bucket(Bucket=BUCKET)
        yield endpoint
    finally:
        server.kill()
        server.wait()


def names_of_objects(endpoint: str) -> list[str]:
    """Return the names of objects in the bucket; there are at most a thousand."""
    found = _client(endpoint).list_objects_v2(Bucket=BUCKET)
    return [entry["Key"] for entry in found.get("Contents", [])]


def _endpoint(log: Path) -> str:
    deadline = time.monotonic() + PATIENCE
    while (found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())) is None:
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return found.group()


def _client(endpoint: str) -> Any:
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
