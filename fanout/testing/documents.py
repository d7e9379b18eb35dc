"""The JSON in which Kinesis writes records and shards, as both servers of the tests send it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ("child_shard", "encode_record", "hash_key_range")


def encode_record(arrival: int, data: bytes, key: str, number: int) -> bytes:
    """Write a record as events and answers carry it.

    Args:
        arrival: When it arrived, in milliseconds since the Unix epoch.
        data: Its data in base64.
        key: Its partition key.
        number: Its sequence number.
    """
    return (
        b'{"ApproximateArrivalTimestamp":%d.%03d,"Data":"%b","EncryptionType":"NONE",'
        b'"PartitionKey":%b,"SequenceNumber":"%d"}'
        % (*divmod(arrival, 1000), data, json.dumps(key).encode(), number)
    )


def child_shard(shard_id: str, parents: Iterable[str], first: int, last: int) -> dict[str, Any]:
    """Describe a shard as the last event of its parents does.

    Args:
        shard_id: The shard.
        parents: What it continues.
        first: The first hash key of its range.
        last: The last one, included.
    """
    return {
        "ShardId": shard_id,
        "ParentShards": list(parents),
        "HashKeyRange": hash_key_range(first, last),
    }


def hash_key_range(first: int, last: int) -> dict[str, str]:
    """Write a range of hash keys, both ends included."""
    return {"StartingHashKey": str(first), "EndingHashKey": str(last)}
