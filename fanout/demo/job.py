"""A query of the demo and the drivers that run it, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, TypeAlias, final

import msgspec

from fanout.demo.messages import Holding, Started, decode_message
from fanout.demo.options import DemoFailedError
from fanout.testing.spark.driver_process import start_driver

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from fanout.demo.messages import DriverOptions, Message
    from fanout.testing.spark.driver_process import DriverProcess

__all__ = ("Job",)

OnMessage: TypeAlias = "Callable[[Job, Message], None]"
OnDown: TypeAlias = "Callable[[Job], Awaitable[None]]"


@final
class Job:
    """Run a query: a driver, and another one after it was killed.

    `query` is the name of the query, and `killed_in` the batch in which a driver was killed; None
    if none was.

    Args:
        options: What its first driver is told; the one after it is not killed.
        scratch: Where drivers keep temporary files.
        environment: What is added to their environment.
        on_message: Told everything that a driver says.
        on_down: Awaited while there is no driver, between a kill and the start of another one.
    """

    def __init__(
        self,
        options: DriverOptions,
        *,
        scratch: Path,
        environment: Mapping[str, str],
        on_message: OnMessage,
        on_down: OnDown,
    ) -> None:
        self.query = options.query
        self.killed_in: int | None = None
        self._options = options
        self._scratch = scratch
        self._environment = environment
        self._on_message = on_message
        self._on_down = on_down
        self._driver: DriverProcess | None = None
        self._stopping = False

    async def run(self, log: BinaryIO) -> None:
        """Run until `stop` is called.

        Args:
            log: An open file for what drivers say on stderr.

        Raises:
            DemoFailedError: If a driver ends by itself.

        Cancellation: the driver and its JVM are killed and waited for.
        """
        options = self._options
        while True:
            async with start_driver(
                "fanout.demo.driver",
                msgspec.json.encode(options).decode(),
                scratch=self._scratch,
                environment=self._environment,
                log=log,
            ) as driver:
                self._driver = driver
                await self._listen(driver)
            if self._stopping:
                return
            options = msgspec.structs.replace(options, kill=None)
            await self._on_down(self)

    def stop(self) -> None:
        """Let the driver finish its batch and end."""
        assert self._driver is not None, "the query runs"
        self._stopping = True
        self._driver.stop()

    async def _listen(self, driver: DriverProcess) -> None:
        """Follow a driver until it ends because it was killed or stopped."""
        killed = False
        async for line in driver.lines():
            message = decode_message(line)
            if message is None:
                continue
            if isinstance(message, Started):
                driver.jvm_pid = message.jvm_pid
            self._on_message(self, message)
            if isinstance(message, Holding):
                killed = True
                self.killed_in = message.batch_id
                driver.kill()
        if not killed and not self._stopping:
            raise DemoFailedError("the Spark driver has ended by itself", explained=False)
