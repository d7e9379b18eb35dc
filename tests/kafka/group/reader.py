"""A process that reads a topic as a member of a group, and says what it got: to be killed.

Run as `python -m tests.kafka.group.reader SERVERS TOPIC GROUP [blocks]`: with the last word, its
first batch blocks the loop until a line comes on the standard input, before it is acknowledged. It
prints a line of JSON for each batch that it has got, with the time of this machine's monotonic
clock, and for each that it has lost. SIGTERM ends it.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys

import fanout
from fanout.core.backoff import Backoff
from fanout.kafka import Cluster, ConsumerGroup, KafkaSource, Security


async def run(servers: str, topic: str, group: str, blocks: str = "") -> None:
    cluster = Cluster(servers, security=Security(protocol="PLAINTEXT"))
    source = KafkaSource(cluster=cluster, topics=topic, backoff=Backoff(base=0.01, cap=0.1))
    loop, block = asyncio.get_running_loop(), bool(blocks)
    async with fanout.open(source, group=ConsumerGroup(group_id=group)) as stream:
        loop.add_signal_handler(signal.SIGTERM, stream.stop)
        async for batch in stream:
            offsets = batch.records.column("offset").to_pylist()
            said = {"split": batch.split.id, "offsets": offsets, "time": loop.time()}
            print(json.dumps(said), flush=True)  # noqa: T201 - for who counts
            if block:
                sys.stdin.readline()  # as a handler does that should not
            block = False
            try:
                await stream.acknowledge(batch)
            except fanout.SplitLostError:
                print(json.dumps(said | {"lost": True}), flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
