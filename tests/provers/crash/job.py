"""The campaign's hold on its job: start it, hear it, and know when it is gone."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, final

import msgspec

from fanout.core.stored_json import MALFORMED_JSON
from fanout.testing.spark.driver_process import start_driver
from tests.provers.crash.control import CONTROL
from tests.provers.crash.driver_messages import Failed, Message, Started

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.testing.spark.driver_process import DriverProcess
    from tests.provers.crash.driver_messages import DriverOptions

__all__ = ("CrashJob",)

_MODULE = "tests.provers.crash.driver"

_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


@final
class CrashJob:
    """Run one driver after the other, on the same checkpoints.

    `gone` is set while none runs. `failure` then tells why the last one ended, until whoever has
    killed it forgives that.

    Args:
        options: What it needs to know.
        root: The directory of the campaign.
        environment: What is added to this process's environment.
        log: An open file for its stderr.
        tasks: What owns the task that listens to it.
    """

    def __init__(
        self,
        options: DriverOptions,
        root: Path,
        environment: Mapping[str, str],
        log: BinaryIO,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._argument = msgspec.json.encode(options).decode()
        self._scratch = root / "scratch"
        self._environment = {**environment, CONTROL: str(root), "PYTHONPATH": _import_path()}
        self._log = log
        self._tasks = tasks
        self._driver: DriverProcess | None = None
        self.starts = 0
        self.failure: str | None = None
        self.gone = asyncio.Event()
        self.gone.set()

    def start(self) -> None:
        """Start a driver; none runs."""
        assert self.gone.is_set()
        self.gone.clear()
        self.starts += 1
        self._tasks.create_task(self._run())

    def kill(self) -> None:
        """Kill the driver and its JVM."""
        if self._driver is not None:
            self._driver.kill_all()

    def stop(self) -> None:
        """Ask the driver to end."""
        if self._driver is not None:
            self._driver.stop()

    def forgive(self) -> None:
        """Note that the driver was killed, and did not end by itself."""
        self.failure = None

    async def _run(self) -> None:
        self.failure = "the driver ended by itself; its log may tell why"
        try:
            async with start_driver(
                _MODULE,
                self._argument,
                scratch=self._scratch,
                environment=self._environment,
                log=self._log,
            ) as driver:
                self._driver = driver
                async for line in driver.lines():
                    self._take(driver, line)
        finally:
            self._driver = None
            self.gone.set()

    def _take(self, driver: DriverProcess, line: bytes) -> None:
        try:
            message = _decoder.decode(line)
        except MALFORMED_JSON:
            return  # the JVM has the same stdout, and may print what it likes
        match message:
            case Started(jvm_pid=pid):
                driver.jvm_pid = pid
            case Failed(sentence=sentence):
                self.failure = sentence


def _import_path() -> str:
    """Return the PYTHONPATH of the driver and its workers: they import the tests too."""
    inherited = os.environ.get("PYTHONPATH")
    root = str(Path(__file__).parents[3])
    return f"{root}{os.pathsep}{inherited}" if inherited else root
