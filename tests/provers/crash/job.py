"""Run the drivers of the job, one after the other on the same checkpoints."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, final

import msgspec

from fanout.testing.spark.driver_process import DriverFailed, DriverStarted, Message, start_driver
from tests.provers.crash.control import CONTROL
from tests.provers.crash.moments import Pipeline, Sink  # msgspec reads the annotations

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fanout.testing.spark.driver_process import DriverProcess

__all__ = ("CLUSTER_CORES", "CrashJob", "JobOptions")

# Of each worker of the cluster: four landers, and batches.
CLUSTER_CORES: Final = 6

_MODULE = "tests.provers.crash.driver"

_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


@final
class JobOptions(msgspec.Struct, frozen=True):
    """The options of a driver of the job.

    Args:
        root: The directory of the campaign.
        pipelines: The pipelines that it runs.
        endpoint_url: The endpoint of Kinesis; the stream is named like the input of the pipeline.
        bootstrap_servers: The addresses of Kafka.
        max_records: The most records in a batch.
        at_least_once: The pipelines that write at least once instead of exactly once.
        master: Spark's master; empty for a session in the driver's process alone.
        sink: What it writes to.
        location: The location of its destination; empty for Kafka.
        planted: The name of a bug that is planted into its driver; empty for none.
    """

    root: str
    pipelines: tuple[Pipeline, ...]
    endpoint_url: str
    bootstrap_servers: str
    max_records: int
    at_least_once: tuple[Pipeline, ...] = ()
    master: str = ""
    sink: Sink = Sink.KAFKA
    location: str = ""
    planted: str = ""


@final
class CrashJob:
    """Run one driver after the other, on the same checkpoints.

    `gone` is set while there is none, and `running` while its queries run. When it has gone,
    `failure` holds why, until `forgive` is called because it was killed.

    Args:
        options: The options of each driver.
        environment: What is added to this process's environment.
        log: An open file for its stderr.
        tasks: Owns the task that reads the driver's messages.
    """

    def __init__(
        self,
        options: JobOptions,
        environment: Mapping[str, str],
        log: BinaryIO,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._options = options
        self._environment = {**environment, CONTROL: options.root, "PYTHONPATH": _import_path()}
        self._log = log
        self._tasks = tasks
        self._driver: DriverProcess[Message] | None = None
        self.starts = 0
        self.failure: str | None = None
        self.running = asyncio.Event()
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
        """Let the driver end."""
        if self._driver is not None:
            self._driver.stop()

    def forgive(self) -> None:
        """Note that the driver was killed, and did not end by itself."""
        self.failure = None

    async def _run(self) -> None:
        self.failure = "the driver ended by itself; its log may show why"
        try:
            async with start_driver(
                _MODULE,
                self._options,
                _decoder,
                scratch=Path(self._options.root, "scratch"),
                environment=self._environment,
                log=self._log,
            ) as driver:
                self._driver = driver
                async for message in driver.messages():
                    if isinstance(message, DriverStarted):
                        self.running.set()
                    elif isinstance(message, DriverFailed):
                        self.failure = f"{message.error}: {message.sentence}"
        finally:
            self._driver = None
            self.running.clear()
            self.gone.set()


def _import_path() -> str:
    """Return the PYTHONPATH of the driver and its workers: they import the tests too."""
    inherited = os.environ.get("PYTHONPATH")
    root = str(Path(__file__).parents[3])
    return f"{root}{os.pathsep}{inherited}" if inherited else root
