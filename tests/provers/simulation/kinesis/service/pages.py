"""The records that the simulated service sends of a shard at a moment, and their bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from fanout.testing.kinesis.frames import child_shard, encode_event

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from random import Random

    from tests.provers.simulation.kinesis.service.stream_log import SourceRecord, SourceShard

__all__ = ("ShardPage", "answer_of", "damaged", "event_of", "pieces_of", "read_page")

_MAX_PIECES: Final = 20


@final
@dataclass(frozen=True, slots=True)
class ShardPage:
    """The content of one event or response.

    Args:
        records: The records.
        continuation: After which number the next one begins; None at the end of the shard.
        millis_behind: How far the last record is behind the newest one.
    """

    records: tuple[SourceRecord, ...]
    continuation: int | None
    millis_behind: int

    @property
    def size(self) -> int:
        """The bytes of its data and keys, by which the service limits what it sends."""
        return sum(record.size for record in self.records)


def read_page(
    shard: SourceShard, cursor: int, moment: int, *, limit: int, room: int, between: bool
) -> ShardPage:
    """Return what a shard has after a number at a moment.

    Args:
        shard: The shard.
        cursor: The number.
        moment: When, in milliseconds since the Unix epoch.
        limit: The most records.
        room: The most bytes, except for a single record.
        between: Whether inside a backlog the continuation lies between two records, or is the
            number of the one before.
    """
    first, arrived = shard.after(cursor), shard.arrived(moment)
    stop, size = first, 0
    while stop < min(arrived, first + limit):
        size += shard.records[stop].size
        if size > room and stop > first:
            break
        stop += 1
    records = shard.records[first:stop]
    if stop < arrived:
        return ShardPage(
            records, _inside(shard, stop, between), _millis_behind(shard, stop, moment)
        )
    tip = None if shard.closed_at(moment) else max(cursor, shard.number_at(moment) - 1)
    return ShardPage(records, tip, 0)


def _inside(shard: SourceShard, stop: int, between: bool) -> int:  # noqa: FBT001 - of read_page
    before = shard.numbers[stop - 1]
    return (before + shard.numbers[stop]) // 2 if between else before


def _millis_behind(shard: SourceShard, stop: int, moment: int) -> int:
    return max(1, moment - shard.arrivals[stop - 1])


def event_of(page: ShardPage, children: Iterable[SourceShard]) -> bytes:
    """Write a page as an event of a subscription, in its frame.

    Args:
        page: The page.
        children: What continues the shard, for the page that ends it.
    """
    following: dict[str, Any] = {}
    if page.continuation is None:
        following["ChildShards"] = _describe(children)
    else:
        following["ContinuationSequenceNumber"] = str(page.continuation)
    return encode_event("SubscribeToShardEvent", _document(page, following))


def answer_of(page: ShardPage, iterator: str | None, children: Iterable[SourceShard]) -> bytes:
    """Write a page as the answer of GetRecords.

    Args:
        page: The page.
        iterator: With what to go on; None at the end of the shard.
        children: What continues the shard, for the page that ends it.
    """
    following: dict[str, Any] = {"NextShardIterator": iterator}
    if iterator is None:
        following["ChildShards"] = _describe(children)
    return _document(page, following)


def _document(page: ShardPage, following: dict[str, Any]) -> bytes:
    records = b",".join(record.encoded for record in page.records)
    tail = json.dumps(following | {"MillisBehindLatest": page.millis_behind}).removeprefix("{")
    return b"".join((b'{"Records":[', records, b"],", tail.encode()))


def _describe(children: Iterable[SourceShard]) -> list[dict[str, Any]]:
    return [
        child_shard(child.shard_id, child.parents, child.hash_range.start, child.hash_range.end)
        for child in children
    ]


def damaged(frame: bytes) -> bytes:
    """Return a frame whose checksum is wrong."""
    return frame[:-1] + bytes([frame[-1] ^ 1])


def pieces_of(data: bytes, random: Random | None) -> Iterator[bytes]:
    """Cut bytes as a network might: at random, or into many equal pieces where there is none.

    Args:
        data: The bytes.
        random: Where chance comes from; None for equal pieces.
    """
    if random is None:
        size = max(1, -(-len(data) // _MAX_PIECES))
        cuts = list(range(size, len(data), size))
    else:
        cuts = sorted(random.randrange(len(data)) for _ in range(random.randrange(3)))
    for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True):
        if stop > start:
            yield data[start:stop]
