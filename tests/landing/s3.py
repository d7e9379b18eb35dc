"""Clients of an S3 on 127.0.0.1: boto3's, and the options of an object storage."""

from __future__ import annotations

from typing import Any, Final

import boto3
import pytest

# Fixtures that yield an endpoint. S3Mock takes seconds to start.
S3_SERVERS: Final = ("moto", pytest.param("s3mock", marks=pytest.mark.prove))


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
