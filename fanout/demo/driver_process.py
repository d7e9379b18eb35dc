"""The demo's hold on its Spark driver: start it, hear it, stop it, kill it, leave nothing of it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, final

import msgspec

from fanout.demo.messages import Started, decode_message
from fanout.demo.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from fanout.demo.messages import DriverOptions, Message

__all__ = ("DriverProcess", "start_driver")

# The JVM of a killed driver notices within about 2 s; then it is killed as well.
_JVM_GRACE = 10.0


@final
class DriverProcess:
    """A running driver; made by `start_driver`.

    The JVM inherits the driver's stdout, so the end of that pipe says that both have gone.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._jvm_pid: int | None = None

    async def messages(self) -> AsyncIterator[Message]:
        """Yield what the driver says, until it and its JVM have gone."""
        async for line in self._stdout:
            message = decode_message(line)
            if isinstance(message, Started):
                self._jvm_pid = message.jvm_pid
            if message is not None:
                yield message

    def stop(self) -> None:
        """Ask the driver to finish its batch and end."""
        self._stdin.close()

    def kill(self) -> None:
        """Send SIGKILL to the driver, which is the Python process alone."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """Kill what is left, and wait until driver and JVM have gone; idempotent."""
        self.kill()
        try:
            async with asyncio.timeout(_JVM_GRACE):
                await self._gone()
        except TimeoutError:
            if self._jvm_pid is None:
                raise
            with suppress(ProcessLookupError):
                os.kill(self._jvm_pid, signal.SIGKILL)
            await self._gone()

    async def _gone(self) -> None:
        while await self._stdout.read(1 << 16):
            pass
        await self._process.wait()


@asynccontextmanager
async def start_driver(
    options: DriverOptions, environment: Mapping[str, str], log: BinaryIO
) -> AsyncIterator[DriverProcess]:
    """Start a driver, and leave nothing of it when the block is left.

    Args:
        options: What it needs to know.
        environment: What is added to this process's environment.
        log: An open file for its stderr.
    """
    workspace = Workspace(Path(options.root))
    inherited = {name: value for name, value in os.environ.items() if name != "AWS_PROFILE"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "fanout.demo.driver",
        msgspec.json.encode(options).decode(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=log,
        cwd=workspace.scratch,
        env=inherited | dict(environment) | {"TMPDIR": str(workspace.scratch)},
        # Ctrl-C is for the demo, which ends its children in order.
        start_new_session=True,
    )
    driver = DriverProcess(process)
    try:
        yield driver
    finally:
        await driver.close()
