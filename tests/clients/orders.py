"""A stream that grows, and what a client has to read of it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple, final

if TYPE_CHECKING:
    from fanout.testing.kinesis.server import KinesisServer

FIRST, SECOND, THIRD, FOURTH = (f"shardId-{index:012}" for index in range(4))


class Record(NamedTuple):
    """One record, as the programs print it."""

    number: str
    key: str
    value: str


@final
class Orders:
    """The stream `orders` with four shards, and its records by shard in their order."""

    def __init__(self, server: KinesisServer) -> None:
        self.server = server
        self.written: defaultdict[str, list[Record]] = defaultdict(list)
        server.create_stream("orders", 4)

    @property
    def count(self) -> int:
        return sum(map(len, self.written.values()))

    def put(self, count: int) -> None:
        records = [(f"key-{n}", str(n)) for n in range(self.count, self.count + count)]
        placed = self.server.put_records("orders", [(key, text.encode()) for key, text in records])
        for (shard, number), (key, text) in zip(placed, records, strict=True):
            self.written[shard].append(Record(number, key, text))

    def reshard(self, count: int) -> None:
        """Split a shard and merge two others, with so many records before and after the merge."""
        self.server.split_shard("orders", FIRST)
        self.put(count)
        self.server.merge_shards("orders", THIRD, FOURTH)
        self.put(count)
