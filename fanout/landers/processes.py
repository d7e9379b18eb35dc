"""Read a source with landers that are processes of this machine."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import pickle  # noqa: TID251 - nothing is unpickled here
import secrets
import signal
import sys
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, final

import msgspec

from fanout.core.backoff import Backoff, FullJitter
from fanout.core.cancellation import TaskScope, finished, in_thread
from fanout.core.error_text import text_of
from fanout.core.findings import LANDERS_APART
from fanout.core.stored_json import MALFORMED_JSON
from fanout.errors import FanOutError, OptionError, SetupError, StreamStateError
from fanout.landers.assignment import Assignment
from fanout.landers.control_handshake import SECRET_BYTES
from fanout.landers.control_server import ControlServer
from fanout.landers.process import START, CannotBegin, LogLine, Order
from fanout.landers.reading import open_for_landers
from fanout.landers.task import LanderTask
from fanout.landing.lander import check_not_lent
from fanout.landing.segments.bad_records import keeping_bad_records
from fanout.landing.storage.opening import absolute_location

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Mapping

    from fanout.core.checkpoint import Checkpoint
    from fanout.core.source import Source
    from fanout.core.statistics import Statistics
    from fanout.landers.coordinator import Coordinator
    from fanout.landers.reading import LandersReading
    from fanout.landing.log.reading import LandingPlace, Reading, ReadingOptions
    from fanout.landing.segments.segment_filler import NoRecords, Stopped
    from fanout.landing.segments.segments import LandedBatch

log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(base=1.0, cap=30.0)
# All begin at once, and a busy machine takes long to load their libraries: splits wait so long for
# the last of them, as a move costs more.
_GATHERING_SECONDS: Final = 30.0
# A process that has run for so long was well: the next failure is a first one.
_WELL_SECONDS: Final = 60.0
# How long processes may take to end when they are told to; then they are killed.
_END_SECONDS: Final = 5.0

_LINE: Final[msgspec.json.Decoder[LogLine | CannotBegin]] = msgspec.json.Decoder(
    LogLine | CannotBegin
)


@asynccontextmanager
async def read_by_processes(
    place: LandingPlace,
    source: Source,
    *,
    processes: int,
    storage_options: Mapping[str, str] | None,
    options: ReadingOptions,
) -> AsyncIterator[Reading]:
    """Read with so many processes, which land at a place, while the block runs.

    Raises:
        OptionError: The source cannot be pickled, or locks its records.

    Cancellation: the processes have ended before the block is left.
    """
    if place.bad is not None:
        source = keeping_bad_records(source)
    secret = secrets.token_bytes(SECRET_BYTES)
    opening = open_for_landers(
        source,
        place,
        partial(ControlServer, "127.0.0.1", 0, secret),
        assignment=Assignment(processes, gathering=_GATHERING_SECONDS),
        bounded=options.available_now,
        eager=False,
        on_resubscribe=options.on_resubscribe,
    )
    async with opening as reading:
        check_not_lent(reading.opened.connection.capabilities, reading.opened.connection.identity)

        def pickled() -> bytes:
            return _pickled(
                LanderTask(
                    source=source,
                    location=absolute_location(place.storage),
                    storage_options=storage_options,
                    run=place.run,
                    limits=options.limits,
                    available_now=options.available_now,
                    compression=options.compression,
                    partitions=place.partitions,
                    address=reading.address,
                    secret=secret,
                )
            )

        task = await in_thread(pickled)
        async with TaskScope() as tasks:
            tasks.spawn(reading.run())
            started = _Processes(reading.coordinator, task)
            async with started.running(processes):
                landers = _ByProcesses(reading)
                yield landers, landers


@final
class _ByProcesses:
    """What the processes land, as a landing takes it."""

    def __init__(self, reading: LandersReading) -> None:
        self._reading = reading
        self._coordinator = reading.coordinator

    async def run(self) -> None:
        """Wait for the end, which is also that of another run that takes over."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._coordinator.stop()

    async def next(self, idle: float) -> LandedBatch | NoRecords | Stopped:
        """Wait for what lands; see `LandedSegments`."""
        try:
            return await self._coordinator.next(idle)
        except StreamStateError as error:
            raise (self._coordinator.failure or error) from None

    async def acknowledge(self, positions: Checkpoint) -> None:
        """Acknowledge to the service what is landed."""
        await self._reading.acknowledge(positions)

    def stop(self) -> None:
        """Read no more, and land what was read."""
        self._coordinator.finish()

    def statistics(self) -> Statistics:
        """Return the counters of all processes together."""
        return self._coordinator.statistics()


@final
class _Processes:
    """Keep a process running for each of some landers.

    Each gets its orders over a pipe that stays open, and ends when that is closed, also because
    this process was killed.
    """

    def __init__(self, coordinator: Coordinator, task: bytes) -> None:
        self._coordinator = coordinator
        self._task = task
        self._attempts = itertools.count(1)
        self._jitter = FullJitter(_BACKOFF, Random())  # noqa: S311 - no secret
        self._ending = False

    @asynccontextmanager
    async def running(self, count: int) -> AsyncIterator[None]:
        """Run so many while the block runs; tell them to stop after it, and wait until they have.

        Cancellation: those that have not ended are killed.
        """
        async with TaskScope() as tasks:
            keeping = [tasks.spawn(self._keep(lander)) for lander in range(count)]
            try:
                yield
            finally:
                self._ending = True
                connected = {one.lander for one in self._coordinator.statistics().landers}
                for lander, task in enumerate(keeping):
                    if lander not in connected:
                        task.cancel()
                await self._coordinator.close()
                await asyncio.wait(keeping, timeout=_END_SECONDS)

    async def _keep(self, lander: int) -> None:
        """Run the process of a lander again and again."""
        time, failures = asyncio.get_running_loop().time, -1
        await asyncio.sleep(lander * LANDERS_APART)
        while not self._ending:
            began = time()
            error = await self._run(lander)
            self._coordinator.task_ended(lander, error)
            if self._ending or self._coordinator.failure is not None:
                return
            if error is not None:
                log.warning("%s; another one takes its place", text_of(error))
            failures = 0 if time() - began >= _WELL_SECONDS else failures + 1
            await asyncio.sleep(self._jitter.delay(failures))

    async def _run(self, lander: int) -> FanOutError | None:
        """Run a process to its end; return why it has ended, None if it was told to."""
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                START,
                f"lander={lander}",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            failure = SetupError(f"{sys.executable} cannot be started: {text_of(error)}")
            self._coordinator.fail(failure)
            return failure
        try:
            return await self._attend(lander, process)
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):  # `process.kill` may take its exit code away
                    os.kill(process.pid, signal.SIGKILL)
                await finished(asyncio.create_task(process.wait()))

    async def _attend(self, lander: int, process: Process) -> FanOutError | None:
        level = logging.getLogger("fanout").getEffectiveLevel()
        order = Order(self._task, lander, next(self._attempts), level)
        assert process.stdin is not None
        with suppress(ConnectionError):  # it has ended
            process.stdin.write(_encoded(order))
            await process.stdin.drain()
        refusal = await self._relay(lander, process)
        code = await process.wait()
        process.stdin.close()
        if refusal is not None:
            self._coordinator.fail(refusal)
            return refusal
        if code == 0:
            return None
        how = (
            f"was killed by {signal.Signals(-code).name}" if code < 0 else f"has ended with {code}"
        )
        return SetupError(f"process {process.pid} of lander {lander} {how}")

    async def _relay(self, lander: int, process: Process) -> SetupError | None:
        """Log what a process logs, until it ends; return why it could not begin."""
        assert process.stdout is not None
        refusal = None
        async for line in process.stdout:
            with suppress(*MALFORMED_JSON):  # it was killed while it wrote
                match _LINE.decode(line):
                    case LogLine(level, name, text):
                        logging.getLogger(name).log(level, "lander %d: %s", lander, text)
                    case CannotBegin(text):
                        refusal = SetupError(
                            f"a process cannot read the source that it was sent: {text}; define "
                            f"what the source has of yours, such as a decode function, in a module "
                            f"that can be imported, and not in the program that is run"
                        )
        return refusal


def _pickled(task: LanderTask) -> bytes:
    try:
        return pickle.dumps(task)
    except OptionError:
        raise
    except Exception as error:
        raise OptionError(
            f"the source cannot be sent to other processes: {text_of(error)}; define functions in "
            f"a module, and leave out what this process alone has, such as session=; or leave out "
            f"processes="
        ) from error


def _encoded(order: Order) -> bytes:
    """Return what a process reads first: where its modules are, and what it does."""
    path = json.dumps([str(one) for one in sys.path]).encode()
    return b"%b\n%b\n" % (path, msgspec.json.encode(order))
