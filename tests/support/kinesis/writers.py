"""Writers to the embedded Kinesis, and what is read of them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from fanout.kinesis import open_writer
from tests.support.kinesis.reading import session

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    import fanout
    from fanout.kinesis import KinesisWriter
    from tests.support.kinesis.reading import Stream


def writing(stream: Stream, /, **options: Any) -> AbstractAsyncContextManager[KinesisWriter]:
    """Open a writer to the stream of a test."""
    where = {"endpoint_url": stream.server.endpoint_url, "session": session()}
    return open_writer(**{"stream": "orders"} | where | options)


def rows(*records: tuple[str, bytes | str]) -> list[dict[str, Any]]:
    """Return rows of partition keys and data."""
    return [{"partitionKey": key, "data": data} for key, data in records]


def numbered(count: int, keys: int, first: int = 0) -> list[dict[str, Any]]:
    """Return rows of several keys in turn; the data is the number of the row."""
    return rows(*((f"key-{n % keys}", b"%d" % n) for n in range(first, first + count)))


async def read(stream: Stream, **options: Any) -> dict[str, list[bytes]]:
    """Return the data of all records that are there now, by partition key, in their order."""
    found: defaultdict[str, list[bytes]] = defaultdict(list)
    for batch in await _batches(stream, **options):
        columns = (batch.records[name].to_pylist() for name in ("partitionKey", "data"))
        for key, data in zip(*columns, strict=True):
            found[key].append(data)
    return dict(found)


async def _batches(stream: Stream, **options: Any) -> list[fanout.Batch]:
    batches: list[fanout.Batch] = []
    async with stream.open(**options) as running:
        while not running.caught_up:
            batches += (await running.drain(max_wait=0.1)).batches
    return batches


def first_occurrences(data: list[bytes]) -> list[bytes]:
    """Return values in the order in which they come for the first time."""
    return list(dict.fromkeys(data))
