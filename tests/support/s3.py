"""Clients of an S3 on 127.0.0.1: boto3's, and the options of an object storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import boto3
import pytest

from fanout.testing.s3_server import serve_s3

if TYPE_CHECKING:
    from collections.abc import Iterator

# Fixtures that yield an endpoint. S3Mock takes seconds to start.
S3_SERVERS: Final = ("moto", pytest.param("s3mock", marks=pytest.mark.prove))


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    with serve_s3() as endpoint:
        yield endpoint


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
