"""A process that copies a topic as a member of a group, exactly once: to be stopped and killed.

Run as `python -m tests.kafka.group.copier SERVERS FROM TO GROUP ID`. It prints a line of JSON when
it has written what it has got, then waits a moment, and one when that is committed or lost. SIGTERM
ends it.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import Any

import fanout
from fanout.core.backoff import Backoff
from fanout.kafka import Cluster, ConsumerGroup, KafkaSource, Security, open_writer

_AT_ONCE = 10
_MOMENT = 0.3  # seconds


def say(what: str, **more: Any) -> None:
    print(json.dumps({"what": what} | more), flush=True)  # noqa: T201 - for who counts


async def run(servers: str, source: str, target: str, group: str, id_: str) -> None:
    cluster = Cluster(servers, security=Security(protocol="PLAINTEXT"))
    orders = KafkaSource(cluster=cluster, topics=source, backoff=Backoff(base=0.01, cap=0.1))
    loop = asyncio.get_running_loop()
    async with (
        open_writer(cluster, target, transactional_id=id_) as writer,
        fanout.open(orders, group=ConsumerGroup(group_id=group)) as stream,
    ):
        loop.add_signal_handler(signal.SIGTERM, stream.stop)
        say("begun", splits=())
        while not stream.stopping:
            drained = await stream.drain(max_records=_AT_ONCE, max_wait=0.2)
            for batch in drained.batches:
                await writer.write(batch.records.select(["key", "value"]))
            if drained.batches:
                await writer.flush()
                splits = sorted({batch.split.id for batch in drained.batches})
                say("written", splits=splits)
                await asyncio.sleep(_MOMENT)
            try:
                await writer.commit(drained)
            except fanout.SplitLostError as error:
                say("lost", splits=error.splits)
            else:
                if drained.batches:
                    say("committed", splits=splits)


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
