"""The events of a simulated shard, as bytes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from fanout.testing.frames import encode_event

if TYPE_CHECKING:
    from fanout.testing.simulation.log import SourceLog, SourceShard
    from fanout.testing.simulation.service import Page

__all__ = ("OVERHEAD", "event_frame", "half_an_end")

_EVENT: Final = "SubscribeToShardEvent"
OVERHEAD: Final = len(encode_event(_EVENT, b""))
"""What a frame takes beside its payload, in bytes."""


def event_frame(shard: SourceShard, page: Page, log: SourceLog) -> bytes:
    """Write an event of a shard.

    Args:
        shard: The shard.
        page: What the event carries.
        log: What the stream holds.
    """
    return encode_event(_EVENT, _payload(shard, page, log))


def half_an_end(shard: SourceShard, page: Page, log: SourceLog, until: int | None) -> bytes:
    """Write an event with one sign of the shard's end without the other.

    Args:
        shard: The shard.
        page: What the event carries.
        log: What the stream holds.
        until: The sequence number after which the shard goes on, although it has children; None
            where it has none, and nothing comes behind.
    """
    document = json.loads(_payload(shard, page, log))
    if until is None:
        document.pop("ContinuationSequenceNumber", None)
        document.pop("ChildShards", None)
    else:
        child = {
            "ShardId": "shardId-999999999999",
            "ParentShards": [shard.shard_id],
            "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "1"},
        }
        document.setdefault("ChildShards", [child])
        document["ContinuationSequenceNumber"] = str(until)
    return encode_event(_EVENT, json.dumps(document).encode())


def _payload(shard: SourceShard, page: Page, log: SourceLog) -> bytes:
    if page.continuation is None:
        children = [
            {
                "ShardId": child.shard_id,
                "ParentShards": list(child.parents),
                "HashKeyRange": {
                    "StartingHashKey": str(child.hash_range.start),
                    "EndingHashKey": str(child.hash_range.end),
                },
            }
            for child in log.children(shard.shard_id)
        ]
        position = f'"ChildShards":{json.dumps(children)}'
    else:
        position = f'"ContinuationSequenceNumber":"{page.continuation}"'
    records = b",".join(record.encoded for record in page.records)
    tail = f'],{position},"MillisBehindLatest":{page.millis_behind}}}'
    return b"".join((b'{"Records":[', records, tail.encode()))
