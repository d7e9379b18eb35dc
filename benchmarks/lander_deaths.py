"""How long the death of a lander stops its splits: two landers, and the embedded Kinesis.

There is no Spark: a lander's process is killed, and another one is started in its place at once, as
Spark does. Records come to all splits all the time; the clock runs from the kill until records of
every split have landed.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from benchmarks.consume_kinesis import CREDENTIALS
from fanout.core.cancellation import in_thread
from fanout.core.opening import open_lineage
from fanout.kinesis import KinesisSource
from fanout.landers.assignment import Assignment
from fanout.landers.control_handshake import SECRET_BYTES
from fanout.landers.control_server import ControlServer
from fanout.landers.coordinator import Coordinator
from fanout.landers.task import LanderTask
from fanout.landing.log.reading import BatchLimits
from fanout.landing.segments.segment_filler import NoRecords
from fanout.landing.segments.segments import LandedBatch
from fanout.landing.storage.local_storage import LocalStorage
from fanout.testing.kinesis.process import KinesisProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from multiprocessing.process import BaseProcess

    from fanout.core.checkpoint import SplitPosition

__all__ = ("PEACE", "measure_deaths")

LANDERS: Final = 2
SPLITS: Final = 8
_IDLE: Final = 1.0
# Seconds between two records of a split.
_PAUSE: Final = 0.05
# Kinesis refuses two subscriptions within five seconds.
PEACE: Final = 8.0


async def measure_deaths(deaths: int, peace: float = PEACE) -> list[float]:
    """Kill a lander so many times; return the seconds until all splits had records again.

    Args:
        deaths: How many times.
        peace: Seconds before each death in which no split moves.
    """
    async with AsyncExitStack() as resources:
        server = resources.enter_context(KinesisProcess())
        server.create_stream("orders", SPLITS)
        tasks = await resources.enter_async_context(asyncio.TaskGroup())
        writing = tasks.create_task(_write(server))
        resources.callback(writing.cancel)
        coordinator, landers = await resources.enter_async_context(_reading(server.endpoint_url))
        await _until_all_move(coordinator)
        return [
            await _death(coordinator, landers, death % LANDERS, peace) for death in range(deaths)
        ]


async def _death(coordinator: Coordinator, landers: _Landers, victim: int, peace: float) -> float:
    splits, since = None, time.perf_counter()
    while time.perf_counter() - since < peace:
        await coordinator.next(_IDLE)
        now = [lander.splits for lander in coordinator.statistics().landers]
        if now != splits:
            splits, since = now, time.perf_counter()
    killed_at = time.perf_counter()
    landers.replace(victim)
    await _until_all_move(coordinator)
    return time.perf_counter() - killed_at


async def _until_all_move(coordinator: Coordinator) -> None:
    """Take batches until each split has moved on from where it was first."""
    first: dict[str, SplitPosition] = {}
    moved: set[str] = set()
    while len(moved) < SPLITS:
        answer = await coordinator.next(_IDLE)
        assert isinstance(answer, LandedBatch | NoRecords)
        for split_id, state in answer.positions.splits.items():
            if first.setdefault(split_id, state) != state:
                moved.add(split_id)


async def _write(server: KinesisProcess) -> None:
    records = [(f"key {number}", b"an order") for number in range(10 * SPLITS)]
    while True:
        await in_thread(partial(server.put_records, "orders", records))
        await asyncio.sleep(_PAUSE)


class _Landers:
    """Processes that are killed, and replaced at once by the next attempt of the same lander.

    Args:
        task: What each does.
    """

    def __init__(self, task: LanderTask) -> None:
        self._task = task
        self._attempts = count(1)
        self._processes = [self._start(lander) for lander in range(LANDERS)]

    def _start(self, lander: int) -> BaseProcess:
        arguments = (lander, next(self._attempts))
        process = get_context("spawn").Process(target=self._task, args=arguments, daemon=True)
        process.start()
        return process

    def replace(self, lander: int) -> None:
        """Kill a lander, and start it again."""
        self._processes[lander].kill()
        self._processes[lander] = self._start(lander)

    def join(self) -> None:
        """Wait until all have ended."""
        for process in self._processes:
            process.join()


@asynccontextmanager
async def _reading(endpoint_url: str) -> AsyncIterator[tuple[Coordinator, _Landers]]:
    source = KinesisSource(
        stream="orders",
        consumer="etl",
        start="TRIM_HORIZON",
        endpoint_url=endpoint_url,
        region=CREDENTIALS["region_name"],
    )
    secret = secrets.token_bytes(SECRET_BYTES)
    async with AsyncExitStack() as resources:
        storage = LocalStorage(Path(resources.enter_context(TemporaryDirectory())))
        opened = await resources.enter_async_context(open_lineage(source))
        coordinator = Coordinator(
            opened.connection,
            opened.progress,
            opened.lineage,
            Assignment(LANDERS),
            lifecycle=opened.lifecycle,
        )
        control = ControlServer("127.0.0.1", 0, secret, coordinator.serve)
        server = await resources.enter_async_context(control)
        tasks = await resources.enter_async_context(asyncio.TaskGroup())
        coordinating = tasks.create_task(coordinator.run())
        resources.callback(coordinating.cancel)
        landers = _Landers(
            LanderTask(
                source=source,
                location=str(storage.root),
                storage_options=None,
                run=1,
                limits=BatchLimits(100_000, 64 << 20, 1.0),
                available_now=False,
                address=server.address,
                secret=secret,
            )
        )
        yield coordinator, landers
        await coordinator.close()
        await in_thread(landers.join)
