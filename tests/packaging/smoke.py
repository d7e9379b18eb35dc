"""Try an installed fanout in an environment that holds nothing else.

The release runs this file there. It reads an embedded Kinesis from Python and by the command line.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import fanout
import fanout.kafka
import fanout.spark
from fanout.kinesis import KinesisSource
from fanout.testing import KinesisServer

RECORDS = [(f"key {number}", f"record {number}".encode()) for number in range(100)]


async def read(source: KinesisSource) -> list[bytes]:
    found: list[bytes] = []
    async with fanout.open(source) as stream:
        async for batch in stream:
            found += batch.records.column("data").to_pylist()
            await stream.acknowledge(batch)
            if len(found) >= len(RECORDS):
                break
    return found


def command(*words: str) -> str:
    """Run the installed command and return what it printed."""
    done = subprocess.run(  # noqa: S603 - our own command
        [Path(sys.executable).with_name("fanout"), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def main(version: str) -> None:
    assert command("--version") == f"fanout {version}\n"
    with KinesisServer() as server:
        os.environ |= server.environment
        server.create_stream("orders", shards=2)
        server.put_records("orders", RECORDS)
        source = KinesisSource(stream="orders", consumer="etl", start="TRIM_HORIZON")
        assert sorted(asyncio.run(read(source))) == sorted(data for _, data in RECORDS)
        shown = command("doctor", "orders", "etl")
        assert "2 open, 0 closed" in shown, shown


if __name__ == "__main__":
    main(*sys.argv[1:])
