"""The producer of the demo: PutRecords at a steady pace, rejected records again."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from fanout.demo.records import digest
from fanout.demo.verification import SentRecord

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence

    from fanout.demo.records import Record

__all__ = ("MAX_CALL_RECORDS", "produce", "put")

# The service's limit of one PutRecords call (AWS API reference).
MAX_CALL_RECORDS: Final = 500

_CALLS_PER_SECOND = 10
_REJECTED_PAUSE = 0.2


async def produce(
    client: Any, stream: str, records: Iterable[Record], *, rate: float
) -> AsyncGenerator[list[SentRecord], None]:
    """Send records at a pace, and yield those of each call as the service has placed them.

    Args:
        client: An open aioboto3 client of Kinesis.
        stream: The stream's name.
        records: What to send.
        rate: Records per second, if the service keeps up.
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    size = min(MAX_CALL_RECORDS, max(1, round(rate / _CALLS_PER_SECOND)))
    left = iter(records)
    sent = 0
    while call := list(islice(left, size)):
        yield await put(client, stream, call)
        sent += len(call)
        await asyncio.sleep(begun + sent / rate - loop.time())


async def put(client: Any, stream: str, records: Sequence[Record]) -> list[SentRecord]:
    """Send up to 500 records, those that the service rejects again, until it has taken all.

    Returns:
        The records with their places, in the order in which they were accepted.
    """
    accepted = []
    while True:
        answer = await client.put_records(
            StreamName=stream,
            Records=[{"Data": record.data, "PartitionKey": record.key} for record in records],
        )
        rejected = []
        for record, result in zip(records, answer["Records"], strict=True):
            if "ErrorCode" in result:
                rejected.append(record)
            else:
                accepted.append(_placed(record, result))
        if not rejected:
            return accepted
        records = rejected
        await asyncio.sleep(_REJECTED_PAUSE)


def _placed(record: Record, result: Any) -> SentRecord:
    return SentRecord(
        number=record.number,
        key=record.key,
        shard=result["ShardId"],
        sequence=int(result["SequenceNumber"]),
        digest=digest(record.data),
    )
