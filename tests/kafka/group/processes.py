"""Members of groups in processes of their own, and what tests say to brokers and wait for."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from fanout.kafka.cluster import Cluster
from fanout.kafka.protocol.connections import CallTimeouts, open_connections
from fanout.kafka.protocol.messages.share_groups import AlterGroupRequest
from tests.support.kafka.brokers import HERE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from fanout.testing.kafka.broker import KafkaBroker

# Members that stand still for a while keep their partitions.
SESSION = 10.0
# Seconds after which a test takes what it waits for as missing.
GUARD = 180.0


async def until(fact: Callable[[], object]) -> None:
    async with asyncio.timeout(GUARD):
        while not fact():  # noqa: ASYNC110 - a stream does not report it
            await asyncio.sleep(0.02)


def set_session(broker: KafkaBroker, group: str, seconds: float = SESSION) -> None:
    """Have the broker give partitions away after so many seconds without a heartbeat."""
    settings = {"consumer.session.timeout.ms": f"{seconds * 1000:.0f}"}

    async def alter() -> None:
        cluster = Cluster(broker.bootstrap_servers, security=HERE)
        async with open_connections(cluster, CallTimeouts(15.0)) as connections:
            answer = await connections.send_to_any(AlterGroupRequest(group, settings))
            ((code, *_),) = answer.resources
            assert code == 0

    asyncio.run(alter())


class Process:
    """A member in a process of its own, and what it has said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: list[dict[str, Any]] = []

    async def listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.said.append(json.loads(line))

    def tell(self) -> None:
        """Write a line to the program's standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    async def end(self) -> None:
        """Have a program end that a line on its standard input ends."""
        self.tell()
        assert await self.process.wait() == 0

    @property
    def got(self) -> list[tuple[str, int]]:
        return [(d["split"], n) for d in self.said if "lost" not in d for n in d["offsets"]]


def started(program: str, *arguments: str) -> AbstractAsyncContextManager[Process]:
    """Run a program of this folder, and end it."""
    return running(sys.executable, "-m", f"tests.kafka.group.{program}", *arguments)


@asynccontextmanager
async def running(*command: str) -> AsyncIterator[Process]:
    """Run a command, and end it by SIGTERM where it has not ended."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 24
    )
    made = Process(process)
    listening = asyncio.create_task(made.listen())
    try:
        yield made
    finally:
        assert process.stdin is not None
        process.stdin.close()  # what waits for a line hears no signal
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.terminate()
        await process.wait()
        await listening
