"""Run the drivers of a job, one after the other on the same checkpoints, each in its own process.

`fanout.testing.spark.driver_process` has the driver's end of the link.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, Generic, TypeVar, final

import msgspec

from fanout.testing.spark.driver_process import DriverFailed, DriverStarted, decode_message

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

# The JVM of a killed driver notices within about 2 s; then it is killed as well.
_JVM_GRACE = 10.0

M = TypeVar("M")


@final
class SparkJob(Generic[M]):
    """Run one driver after the other.

    `gone` is set while there is none, and `running` while its queries run. When it has gone,
    `failure` holds why; who has killed it forgets that. `options` are those of the next driver. The
    task group owns the task that reads a driver's messages; cancelled, it kills the driver and its
    JVM, and waits for them. An error of `on_message` ends that task.
    """

    def __init__(
        self,
        module: str,
        options: msgspec.Struct,
        decoder: msgspec.json.Decoder[M],
        *,
        scratch: Path,
        environment: Mapping[str, str],
        log: BinaryIO,
        tasks: asyncio.TaskGroup,
        on_message: Callable[[M], None] = lambda _: None,
    ) -> None:
        self.options = options
        self.failure: str | None = None
        self.running = asyncio.Event()
        self.gone = asyncio.Event()
        self.gone.set()
        self._module = module
        self._decoder = decoder
        self._scratch = scratch
        self._environment = environment
        self._log = log
        self._tasks = tasks
        self._on_message = on_message
        self._process: asyncio.subprocess.Process | None = None
        self._jvm_pid: int | None = None

    def start(self) -> None:
        """Start a driver; none runs."""
        assert self.gone.is_set()
        self.gone.clear()
        self._tasks.create_task(self._run())

    def stop(self) -> None:
        """Let the driver finish its batch and end."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def kill(self) -> None:
        """Send SIGKILL to the driver and, once it has started, to its JVM."""
        with suppress(ProcessLookupError):
            if self._process is not None:
                _kill(self._process)
        with suppress(ProcessLookupError):
            if self._jvm_pid is not None:
                os.kill(self._jvm_pid, signal.SIGKILL)

    async def _run(self) -> None:
        self.failure = "the driver ended by itself; its log may show why"
        try:
            self._process = process = await self._spawn()
            assert process.stdout is not None
            try:
                async for line in process.stdout:
                    self._take(decode_message(line, self._decoder))
            finally:
                await self._end(process, process.stdout)
        finally:
            self._process = self._jvm_pid = None
            self.running.clear()
            self.gone.set()

    async def _spawn(self) -> asyncio.subprocess.Process:
        inherited = {name: value for name, value in os.environ.items() if name != "AWS_PROFILE"}
        own = {"TMPDIR": str(self._scratch), "PYSPARK_PYTHON": sys.executable}
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            self._module,
            msgspec.json.encode(self.options).decode(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log,
            cwd=self._scratch,
            env=inherited | own | dict(self._environment),
            # Ctrl-C is for the caller, who ends its children in order.
            start_new_session=True,
        )

    def _take(self, message: M | None) -> None:
        if isinstance(message, DriverStarted):
            self._jvm_pid = message.jvm_pid
            self.running.set()
        elif isinstance(message, DriverFailed):
            self.failure = f"{message.error}: {message.sentence}"
        if message is not None:
            self._on_message(message)

    async def _end(self, process: asyncio.subprocess.Process, stdout: asyncio.StreamReader) -> None:
        """Kill what is left, and wait until driver and JVM have gone.

        The JVM inherits the driver's stdout, so the end of that pipe says that both have gone.
        """
        with suppress(ProcessLookupError):
            _kill(process)
        try:
            async with asyncio.timeout(_JVM_GRACE):
                await stdout.read()
        except TimeoutError:
            if self._jvm_pid is None:
                raise
            self.kill()
            await stdout.read()
        await process.wait()


def _kill(process: asyncio.subprocess.Process) -> None:
    """Send SIGKILL to a child.

    `kill` of asyncio would reap a child that has just ended. The thread that waits for it would
    then not know how it ended, and say so on standard error.
    """
    if process.returncode is None:
        os.kill(process.pid, signal.SIGKILL)
