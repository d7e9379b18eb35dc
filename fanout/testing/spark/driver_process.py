"""A Spark driver in a process of its own: start it, hear it, stop it, kill it, leave nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO, final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

__all__ = ("DriverProcess", "start_driver")

# The JVM of a killed driver notices within about 2 s; then it is killed as well.
_JVM_GRACE = 10.0


@final
class DriverProcess:
    """A running driver; made by `start_driver`.

    The JVM inherits the driver's stdout, so the end of that pipe says that both have gone. Set
    `jvm_pid` as soon as the driver has told it: Spark's JVM outlives a killed driver by a moment.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self.jvm_pid: int | None = None

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield what the driver, or its JVM, prints, until both have gone."""
        async for line in self._stdout:
            yield line

    def stop(self) -> None:
        """Ask the driver to finish its batch and end."""
        self._stdin.close()

    def kill(self) -> None:
        """Send SIGKILL to the driver, which is the Python process alone."""
        with suppress(ProcessLookupError):
            self._process.kill()

    def kill_all(self) -> None:
        """Send SIGKILL to the driver and to its JVM, if that is known."""
        self.kill()
        if self.jvm_pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.jvm_pid, signal.SIGKILL)

    async def close(self) -> None:
        """Kill what is left, and wait until driver and JVM have gone; idempotent."""
        self.kill()
        try:
            async with asyncio.timeout(_JVM_GRACE):
                await self._gone()
        except TimeoutError:
            if self.jvm_pid is None:
                raise
            self.kill_all()
            await self._gone()

    async def _gone(self) -> None:
        while await self._stdout.read(1 << 16):
            pass
        await self._process.wait()


@asynccontextmanager
async def start_driver(
    module: str,
    argument: str,
    *,
    scratch: Path,
    environment: Mapping[str, str],
    log: BinaryIO,
) -> AsyncIterator[DriverProcess]:
    """Start a driver, and leave nothing of it when the block is left.

    Args:
        module: The module that is run; it ends when its stdin closes.
        argument: Its one argument.
        scratch: Where it runs, and keeps temporary files.
        environment: What is added to this process's environment.
        log: An open file for its stderr.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "AWS_PROFILE"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        argument,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=log,
        cwd=scratch,
        env=inherited
        | {"TMPDIR": str(scratch), "PYSPARK_PYTHON": sys.executable}
        | dict(environment),
        # Ctrl-C is for the caller, who ends its children in order.
        start_new_session=True,
    )
    driver = DriverProcess(process)
    try:
        yield driver
    finally:
        await driver.close()
