"""moto's DynamoDB beside Kinesis: the Kinesis Client Library keeps its leases in it."""

from __future__ import annotations

from typing import Any

import moto.dynamodb.models

from fanout.testing.one_at_a_time import OneAtATime

# moto's types stay outside, as for Kinesis.
_backends: Any = moto.dynamodb.models.dynamodb_backends


def with_dynamodb(moto: Any) -> OneAtATime:
    """Serve one call of DynamoDB at a time, so that of two workers one gets a lease."""
    return OneAtATime(moto, _is_for_dynamodb)


def drop_tables() -> None:
    """Drop all tables of this process."""
    _backends.clear()


def _is_for_dynamodb(environ: dict[str, Any]) -> bool:
    return str(environ.get("HTTP_X_AMZ_TARGET", "")).startswith("DynamoDB_")
