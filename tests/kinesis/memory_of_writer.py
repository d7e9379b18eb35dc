"""A writer of records of 10 MiB to many shards, which tells its memory.

Its arguments: the endpoint of an embedded Kinesis, and the number of records. It prints the bytes
by which its resident memory has grown at most.
"""

from __future__ import annotations

import asyncio
import sys

import aioboto3

from fanout.kinesis import open_writer
from fanout.testing.kinesis.credentials import REGION
from tests.kinesis.memory_growth import memory


async def main(endpoint_url: str, records: str) -> None:
    session = aioboto3.Session(
        region_name=REGION, aws_access_key_id="testing", aws_secret_access_key="testing"
    )
    async with open_writer("orders", endpoint_url=endpoint_url, session=session) as writer:
        await writer.write([{"partitionKey": "first", "data": b"1"}])
        await writer.flush()
        before = memory("VmRSS")
        for number in range(int(records)):
            key = f"key-{number:03}"
            data = b"%d" % number
            row = {"partitionKey": key, "data": data.ljust((10 << 20) - len(key), b".")}
            await writer.write([row])
    sys.stdout.write(str(memory("VmHWM") - before))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
