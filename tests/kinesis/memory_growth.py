"""A reader that takes nothing until nothing more comes, then takes all, and tells its memory.

Its arguments: the endpoint of an embedded Kinesis, the name of its consumer, the bytes that it
may hold, the bytes that it waits to hold, and the records that it waits to read. It prints a JSON
document: the bytes by which its resident memory has grown at most, and what it read from each
shard.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import aioboto3

import fanout
from fanout.kinesis import KinesisSource
from fanout.testing.kinesis.credentials import REGION

if TYPE_CHECKING:
    from fanout import FanOut


def memory(name: str) -> int:
    """Return a figure of this process: VmRSS, its resident bytes now, or VmHWM, at most so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise KeyError(name)


async def settled(stream: FanOut, held: int) -> None:
    """Wait until so many bytes are held, and no more come for half a second."""
    before = -1
    while (now := stream.statistics().bytes_in_flight) < held or now != before:
        before = now
        await asyncio.sleep(0.5)


async def read(source: KinesisSource, held: int, records: int) -> dict[str, list[str]]:
    taken: defaultdict[str, list[str]] = defaultdict(list)
    async with fanout.open(source) as stream:
        await settled(stream, held)
        async for batch in stream:
            taken[batch.split.id] += batch.records.column("sequenceNumber").to_pylist()
            records -= batch.num_records
            if records == 0:
                return taken
    return taken


async def main(endpoint_url: str, consumer: str, *figures: str) -> None:
    allowed, held, records = map(int, figures)
    source = KinesisSource(
        stream="orders",
        consumer=consumer,
        start="TRIM_HORIZON",
        max_bytes_in_flight=allowed,
        endpoint_url=endpoint_url,
        session=aioboto3.Session(
            region_name=REGION, aws_access_key_id="testing", aws_secret_access_key="testing"
        ),
    )
    await fanout.resolve_start(source)  # botocore has read its files by then
    before = memory("VmRSS")
    taken = await read(source, held, records)
    sys.stdout.write(json.dumps({"grown": memory("VmHWM") - before, "log": taken}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
