"""A job that reads a topic, and writes each value in capitals, exactly once: to be killed.

Run as `python -m tests.kafka.writer.read_process_write SERVERS FROM TO ID`. It ends at the end of
the topic, and says when it begins.
"""

from __future__ import annotations

import asyncio
import sys

import pyarrow.compute as pc

import fanout
from fanout.kafka import Cluster, KafkaSource, Security, open_writer

ID = "read-process-write"
AT_ONCE = 40


async def run(servers: str, source: str, target: str, transactional_id: str = ID) -> None:
    cluster = Cluster(servers, security=Security(protocol="PLAINTEXT"))
    orders = KafkaSource(cluster=cluster, topics=source, stop="latest")
    async with open_writer(cluster, target, transactional_id=transactional_id) as writer:
        resume = await writer.positions(orders)
        async with fanout.open(orders, resume=resume) as stream:
            print("begun", flush=True)  # noqa: T201 - for who kills it
            while (drained := await stream.drain(max_records=AT_ONCE)).batches:
                for batch in drained.batches:
                    rows = batch.records.select(["key", "value"])
                    capitals = pc.utf8_upper(rows["value"].cast("string"))
                    await writer.write(rows.set_column(1, "value", capitals))
                await writer.commit(drained)


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
