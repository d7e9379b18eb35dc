"""The producer of the demo: records at a steady pace, whatever is done to the stream meanwhile."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence

    from fanout.demo.records import Record
    from fanout.demo.service import Stream
    from fanout.demo.verification import SentRecord

__all__ = ("MAX_CALL_RECORDS", "produce")

# The limit of one PutRecords call (AWS API reference); it suits Kafka as well.
MAX_CALL_RECORDS: Final = 500

_CALLS_PER_SECOND = 10


async def produce(
    stream: Stream, records: Iterable[Record], *, rate: float
) -> AsyncGenerator[Sequence[SentRecord], None]:
    """Send records at a pace, and yield those of each call as the service has placed them.

    Args:
        stream: Where to send them.
        records: What to send.
        rate: Records per second, if the service keeps up.
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    size = min(MAX_CALL_RECORDS, max(1, round(rate / _CALLS_PER_SECOND)))
    left = iter(records)
    sent = 0
    while call := list(islice(left, size)):
        yield await stream.put(call)
        sent += len(call)
        await asyncio.sleep(begun + sent / rate - loop.time())
