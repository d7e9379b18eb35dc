"""Run a Spark driver in a process of its own, which can be stopped and killed.

Both ends are here: `start_driver` starts a driver and reads its messages, and `run_driver` is the
main function of the driver. Options are the driver's one argument, as JSON. Messages are lines of
JSON on its stdout. Its stdin carries nothing: it closes to stop the driver, and when its parent
dies.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO, Generic, TypeAlias, TypeVar, final

import msgspec

from fanout.core.stored_json import MALFORMED_JSON
from fanout.errors import FanOutError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

# The JVM of a killed driver notices within about 2 s; then it is killed as well.
_JVM_GRACE = 10.0

_STDIN = 0


@final
class DriverStarted(msgspec.Struct, frozen=True, tag=True):
    """The driver's queries run."""

    jvm_pid: int  # of Spark's JVM, which outlives a killed driver by a moment


@final
class DriverFailed(msgspec.Struct, frozen=True, tag=True):
    """The driver has ended by an error."""

    error: str  # the name of its class
    sentence: str


Message: TypeAlias = DriverStarted | DriverFailed
"""The messages of every driver; a driver may have more."""

M = TypeVar("M")


@final
class DriverProcess(Generic[M]):
    """A running driver; made by `start_driver`."""

    # The JVM inherits the driver's stdout, so the end of that pipe says that both have gone.

    def __init__(
        self, process: asyncio.subprocess.Process, decoder: msgspec.json.Decoder[M]
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._decoder = decoder
        self._jvm_pid: int | None = None

    async def messages(self) -> AsyncIterator[M]:
        """Yield the messages of the driver until it and its JVM have gone."""
        async for line in self._stdout:
            message = decode_message(line, self._decoder)
            if message is None:
                continue
            if isinstance(message, DriverStarted):
                self._jvm_pid = message.jvm_pid
            yield message

    def stop(self) -> None:
        """Let the driver finish its batch and end."""
        self._stdin.close()

    def kill(self) -> None:
        """Send SIGKILL to the driver, which is the Python process alone."""
        with suppress(ProcessLookupError):
            self._process.kill()

    def kill_all(self) -> None:
        """Send SIGKILL to the driver and, once it has started, to its JVM."""
        self.kill()
        if self._jvm_pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._jvm_pid, signal.SIGKILL)

    async def close(self) -> None:
        """Kill what is left, and wait until driver and JVM have gone; idempotent."""
        self.kill()
        try:
            async with asyncio.timeout(_JVM_GRACE):
                await self._gone()
        except TimeoutError:
            if self._jvm_pid is None:
                raise
            self.kill_all()
            await self._gone()

    async def _gone(self) -> None:
        while await self._stdout.read(1 << 16):
            pass
        await self._process.wait()


def decode_message(line: bytes, decoder: msgspec.json.Decoder[M]) -> M | None:
    """Return the message in a line; None if the JVM, which has the same stdout, printed it."""
    try:
        return decoder.decode(line)
    except MALFORMED_JSON:
        return None


@asynccontextmanager
async def start_driver(
    module: str,
    options: msgspec.Struct,
    decoder: msgspec.json.Decoder[M],
    *,
    scratch: Path,
    environment: Mapping[str, str],
    log: BinaryIO,
) -> AsyncIterator[DriverProcess[M]]:
    """Start a driver, and leave nothing of it when the block is left.

    The module calls `run_driver`; its one argument are the options, and its messages include
    `DriverStarted` and `DriverFailed`. It runs and keeps temporary files in `scratch`; its stderr
    is in `log`. The environment is added to that of this process. Cancellation: the driver and its
    JVM are killed and waited for.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "AWS_PROFILE"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        msgspec.json.encode(options).decode(),
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
    driver = DriverProcess(process, decoder)
    try:
        yield driver
    finally:
        await driver.close()


@final
class DriverLink:
    """The driver's end: it sends messages, and learns when to stop."""

    # `stopping` is set when the driver is to end, or its parent has died.

    def __init__(self) -> None:
        self.stopping = threading.Event()

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; one thread at a time."""
        sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()


def run_driver(
    main: Callable[[DriverLink], None], *, on_stop: Callable[[], None] | None = None
) -> int:
    """Run the queries of a driver until `DriverLink.stopping` is set; return the exit code.

    The error by which they end is sent; a FanOutError exits with 1. `on_stop` is called in another
    thread when the driver is to stop.
    """
    link = DriverLink()

    def await_stop() -> None:
        # Below sys.stdin, whose lock a thread that still reads would hold when Python ends.
        while os.read(_STDIN, 1024):
            pass
        link.stopping.set()
        if on_stop is not None:
            on_stop()

    threading.Thread(target=await_stop, daemon=True).start()
    try:
        main(link)
    except FanOutError as error:
        link.send(DriverFailed(type(error).__name__, str(error)))
        return 1
    return 0
