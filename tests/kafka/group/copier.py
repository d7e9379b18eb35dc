"""A process that copies a topic as a member of a group, exactly once: to be stopped and killed.

Run as `python -m tests.kafka.group.copier SERVERS FROM TO GROUP ID`. It prints a line of JSON when
it has written what it has got, then waits a moment, and one when that is committed or lost. After a
line on its standard input it says that it holds, and commits nothing that it writes from then on
until the next line. SIGTERM ends it.
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


async def obey(may_commit: asyncio.Event) -> None:
    """Hold from one line of the standard input to the next."""
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    while await lines.readline():
        if may_commit.is_set():
            may_commit.clear()
            say("holds", splits=())
        else:
            may_commit.set()
    may_commit.set()


async def run(servers: str, source: str, target: str, group: str, id_: str) -> None:
    cluster = Cluster(servers, security=Security(protocol="PLAINTEXT"))
    orders = KafkaSource(cluster=cluster, topics=source, backoff=Backoff(base=0.01, cap=0.1))
    loop = asyncio.get_running_loop()
    may_commit = asyncio.Event()
    may_commit.set()
    obeying = asyncio.create_task(obey(may_commit))
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
                await may_commit.wait()
            try:
                await writer.commit(drained)
            except fanout.SplitLostError as error:
                say("lost", splits=error.splits)
            else:
                if drained.batches:
                    say("committed", splits=splits)
    obeying.cancel()


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
