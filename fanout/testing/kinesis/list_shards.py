"""ListShards: filters and pages, which moto ignores.

https://docs.aws.amazon.com/kinesis/latest/APIReference/API_ListShards.html
"""

from __future__ import annotations

import base64
import json
import time
from typing import TYPE_CHECKING, Any

import msgspec

from fanout.core.stored_json import MALFORMED_JSON

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fanout.testing.kinesis.shard import Shard


class ListShardsError(ValueError):
    """A filter or a token cannot be used; the text is the service's answer."""


def filter_shards(shards: Iterable[Shard], shard_filter: dict[str, Any] | None) -> list[Shard]:
    """Return the shards that a ShardFilter asks for, by shard id."""
    # The trim horizon is the stream's creation, or when its shards last expired.
    ordered = sorted(shards, key=lambda shard: shard.shard_id)
    wanted = shard_filter or {"Type": "FROM_TRIM_HORIZON"}
    match wanted:
        case {"Type": "FROM_TRIM_HORIZON"}:
            return ordered
        case {"Type": "AT_TRIM_HORIZON"}:
            listed = {shard.shard_id for shard in ordered}
            return [s for s in ordered if not any(p.shard_id in listed for p in s.parents)]
        case {"Type": "AT_LATEST"}:
            return [shard for shard in ordered if shard.is_open]
        case {"Type": "AFTER_SHARD_ID", "ShardId": str(shard_id)}:
            return [shard for shard in ordered if shard.shard_id > shard_id]
        case {"Type": "AT_TIMESTAMP", "Timestamp": int() | float() as seconds}:
            millis = round(seconds * 1000)
            return [s for s in ordered if s.opened_at <= millis and not s.closed_before(millis)]
        case {"Type": "FROM_TIMESTAMP", "Timestamp": int() | float() as seconds}:
            millis = round(seconds * 1000)
            return [shard for shard in ordered if not shard.closed_before(millis)]
        case _:
            raise ListShardsError(f"ShardFilter {wanted} is invalid.")


def encode_token(stream: str, after: str, shard_filter: dict[str, Any] | None) -> str:
    """Return the NextToken of a page that ends with a shard."""
    return base64.b64encode(
        json.dumps([stream, after, shard_filter, time.monotonic()]).encode()
    ).decode()


def decode_token(token: str) -> tuple[str, str, dict[str, Any] | None, float]:
    """Take a NextToken apart: stream, last shard id, filter, and when it was issued."""
    try:
        fields = base64.b64decode(token, validate=True)
        return msgspec.json.decode(fields, type=tuple[str, str, dict[str, Any] | None, float])
    except (*MALFORMED_JSON, ValueError) as error:
        raise ListShardsError(f"NextToken {token} is invalid.") from error
